//! What `canopy verify` prints.

use super::judge::Verdict;
use super::round::Round;
use crate::error::{Error, Result};
use crate::output::{complain, print, print_json, shown};
use crate::pool_link::PoolLink;
use crate::progress::Progress;
use crate::relocate::Sum;
use canopy_base::text::bytes;
use canopy_control::OsText;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// How many files without a checksum, or with a stale one, are printed.
const SHOWN: u64 = 20;

/// How many files are printed whose checksum cannot be stored for the same reason.
const ALIKE: u64 = 3;

/// The report of `--json`. `files` is the sum of the seven sums that follow it; `stored` are among `missing` and `stale`, and
/// `fixed` among `damaged`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) command: &'static str,
    pub(super) pool: OsText,
    pub(super) dry_run: bool,
    /// A signal has ended the command.
    pub(super) stopped: bool,
    pub(super) files: Sum,
    pub(super) sound: Sum,
    pub(super) missing: Sum,
    pub(super) stale: Sum,
    pub(super) damaged: Sum,
    pub(super) in_use: Sum,
    pub(super) unread: Sum,
    pub(super) not_begun: Sum,
    pub(super) stored: Sum,
    pub(super) fixed: Sum,
    /// Fixes that an earlier command had begun, and this one has finished.
    pub(super) resumed: u64,
    /// Paths whose copies differ.
    pub(super) differing: u64,
    /// What could not be looked at, besides `unread`.
    pub(super) failed: u64,
    /// With `--resume`: all runs of the round together.
    pub(super) round: Option<Round>,
    pub(super) findings: Vec<Finding>,
}

/// Something to say of a path.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    what: &'static str,
    path: OsText,
    branches: Vec<OsText>,
    #[serde(skip_serializing_if = "str::is_empty")]
    why: String,
}

/// What is said of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    Missing,
    Stale,
    NotStored,
    Damaged,
    Fixed,
    Differing,
    InUse,
    Unread,
    Note,
}

impl What {
    /// The word for programs, and the one for people.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            What::Missing => ("missing", "no checksum"),
            What::Stale => ("stale", "stale checksum"),
            What::NotStored => ("not-stored", "checksum not stored"),
            What::Damaged => ("damaged", "damaged"),
            What::Fixed => ("fixed", "fixed"),
            What::Differing => ("differing", "copies differ"),
            What::InUse => ("in-use", "in use"),
            What::Unread => ("unread", "not read"),
            What::Note => ("note", "note"),
        }
    }

    /// It is printed with `--quiet`, too.
    fn is_bad(self) -> bool {
        matches!(self, What::Damaged | What::Differing | What::Unread)
    }
}

/// Where findings go.
#[derive(Debug)]
pub(super) struct Teller {
    pub(super) json: bool,
    pub(super) quiet: bool,
    /// How many lines there were that are limited.
    few: u64,
    /// How many files got no checksum, by the reason: a read-only snapshot has all files of its subvolume.
    unstored: BTreeMap<String, u64>,
}

impl Teller {
    pub(super) fn new(json: bool, quiet: bool) -> Teller {
        Teller { json, quiet, few: 0, unstored: BTreeMap::new() }
    }
}

impl Report {
    pub(super) fn new(pool: &PoolLink, dry_run: bool) -> Report {
        let none = Sum::default();
        Report {
            command: "verify",
            pool: OsText::from(pool.mountpoint.as_path()),
            dry_run,
            stopped: false,
            files: none,
            sound: none,
            missing: none,
            stale: none,
            damaged: none,
            in_use: none,
            unread: none,
            not_begun: none,
            stored: none,
            fixed: none,
            resumed: 0,
            differing: 0,
            failed: 0,
            round: None,
            findings: Vec::new(),
        }
    }

    /// The sum that files with a verdict count in.
    pub(super) fn sum(&mut self, verdict: Verdict) -> &mut Sum {
        match verdict {
            Verdict::Sound => &mut self.sound,
            Verdict::Missing => &mut self.missing,
            Verdict::Stale => &mut self.stale,
            Verdict::Damaged => &mut self.damaged,
            Verdict::InUse => &mut self.in_use,
            Verdict::Unread => &mut self.unread,
        }
    }

    /// Says something of a path of the pool, and the branches that it is about.
    pub(super) fn tell(
        &mut self,
        teller: &mut Teller,
        progress: &Progress,
        what: What,
        (path, branches): (&Path, &[&Path]),
        why: &str,
    ) {
        let (word, phrase) = what.words();
        if teller.json {
            let branches = branches.iter().map(|branch| OsText::from(*branch)).collect();
            self.findings.push(Finding { what: word, path: path.into(), branches, why: why.to_owned() });
            return;
        }
        if matches!(what, What::Missing | What::Stale) {
            teller.few += 1;
            if teller.few > SHOWN {
                return;
            }
        }
        if what == What::NotStored {
            let alike = teller.unstored.entry(why.to_owned()).or_default();
            *alike += 1;
            if *alike > ALIKE {
                return;
            }
        }
        let branches: Vec<String> = branches.iter().map(|branch| shown(branch)).collect();
        let mut line = format!("{phrase}: {}", shown(path));
        if !branches.is_empty() {
            let _ = write!(line, " on {}", branches.join(", "));
        }
        if !why.is_empty() {
            let _ = write!(line, " ({why})");
        }
        progress.around(|| match teller.quiet {
            true if what.is_bad() => complain(&line),
            true => {}
            false => print(&format!("{line}\n")),
        });
    }

    /// Prints the summary.
    ///
    /// # Errors
    /// If something is wrong.
    pub(super) fn finish(&self, teller: &Teller) -> Result<()> {
        if teller.json {
            print_json(self);
        } else if !teller.quiet {
            print(&self.text(teller));
        }
        let unread = self.unread.files + self.failed;
        // What an earlier run of the round has found is still to be mended.
        let (damaged, differing) = match &self.round {
            Some(round) => (round.damaged, round.differing),
            None => (self.damaged.files - self.fixed.files, self.differing),
        };
        match (self.stopped, unread, damaged, differing) {
            (true, ..) => Err(Error::Stopped),
            (_, 0, 0, 0) => Ok(()),
            (_, 0, damaged, differing) => Err(Error::Damaged { damaged, differing }),
            (_, unread, damaged, differing) => Err(Error::Unread { unread, damaged, differing }),
        }
    }

    fn text(&self, teller: &Teller) -> String {
        let round = self.round.as_ref().map(Round::text).unwrap_or_default();
        self.own_text(teller) + &round
    }

    fn own_text(&self, teller: &Teller) -> String {
        let mut text = String::new();
        if teller.few > SHOWN {
            let more = teller.few - SHOWN;
            let _ = writeln!(text, "no checksum, or a stale one: {more} more (--json lists all)");
        }
        for (why, files) in teller.unstored.iter().filter(|(_, files)| **files > ALIKE) {
            let _ = writeln!(text, "checksum not stored: {} more files ({why})", files - ALIKE);
        }
        let _ = write!(text, "files: {}: {} sound", files(self.files), self.sound.files);
        for (sum, word) in [
            (self.missing, "without a checksum"),
            (self.stale, "with a stale one"),
            (self.damaged, "damaged"),
            (self.in_use, "in use"),
            (self.unread, "not read"),
            (self.not_begun, "not begun"),
        ] {
            if sum.files > 0 {
                let _ = write!(text, ", {} {word}", sum.files);
            }
        }
        text.push('\n');
        if self.differing > 0 {
            let _ = writeln!(text, "paths whose copies differ: {}", self.differing);
        }
        let lacking = self.missing.files + self.stale.files;
        if self.dry_run {
            if lacking > 0 {
                let _ = writeln!(text, "checksums to store, with --yes: {lacking}");
            }
            return text;
        }
        if lacking > 0 {
            let _ = writeln!(text, "checksums stored: {} of {lacking}", self.stored.files);
        }
        if self.damaged.files + self.resumed > 0 {
            let _ = write!(text, "fixed: {} of {}", self.fixed.files, self.damaged.files);
            if self.resumed > 0 {
                let _ = write!(text, ", and {} that an earlier command had begun", self.resumed);
            }
            text.push('\n');
        }
        text
    }
}

fn files(sum: Sum) -> String {
    format!("{} ({})", sum.files, bytes(sum.bytes))
}
