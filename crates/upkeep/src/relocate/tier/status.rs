//! The tiers of a pool for `canopy status`.

use super::record::{self, CopiesReport, MoverReport, mover_report};
use canopy_base::text::{bytes, date};
use canopy_config::placement::{format_move_when, parse_rules, parse_tiers};
use canopy_control::{BranchReport, OsText, PoolReport};
use canopy_policy::placement::MoveWhen;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// A tier, and how full it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct TierReport {
    name: String,
    /// Its branches, also those that have not answered.
    branches: Vec<OsText>,
    /// Bytes in all, and those that users cannot fill any more.
    size: u64,
    used: u64,
    /// Above so many per cent it gives files to the next tier; null if it does not for that reason.
    mark: Option<u8>,
    /// When files leave it, in words.
    move_when: Vec<String>,
}

/// The tiers of a pool, and what moves files between them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TierStatus {
    /// In the order of the option.
    tiers: Vec<TierReport>,
    /// The last `canopy tier`; null if none is known.
    mover: Option<MoverReport>,
    /// A rule wants copies.
    wants_copies: bool,
}

impl TierStatus {
    /// Looks at the tiers that the options have, with the space of those of their branches that have answered.
    pub fn of(
        mountpoint: &Path,
        pool: Option<&PoolReport>,
        branches: impl Iterator<Item = BranchSpace>,
    ) -> TierStatus {
        let branches: Vec<BranchSpace> = branches.collect();
        let option = |name: &str| pool.and_then(|pool| pool.options.get(name)).map_or("", String::as_str);
        let rules = parse_rules(option("rules")).unwrap_or_default();
        let mut mover = mover_report(mountpoint);
        if let Some(copies) = mover.as_mut().and_then(|mover| mover.copies.as_mut()) {
            copies.since =
                pool.map_or(0, |pool| pool.closed.1.saturating_sub(copies.upto.max(pool.closed.0)));
        }
        let wants_copies = rules.iter().any(|rule| rule.copies.is_some_and(|copies| copies > 1));
        TierStatus {
            tiers: tier_reports(option("tiers"), &branches, pool.map_or(&[][..], |pool| &pool.branches)),
            mover,
            wants_copies,
        }
    }

    /// Returns what to tell, each with its name.
    pub fn facts(&self) -> impl Iterator<Item = (&'static str, String)> {
        let tiers = self.tiers.iter().map(|tier| ("tier", tier.to_string()));
        let copies = self.wants_copies.then(|| {
            let known = self.mover.as_ref().and_then(|mover| mover.copies.as_ref());
            ("copies", known.map_or_else(|| NO_MOVER.to_owned(), ToString::to_string))
        });
        tiers.chain(copies).chain(self.mover.iter().map(|mover| ("mover", mover.to_string())))
    }
}

impl TierStatus {
    /// Returns what is wrong with copies: each with a word for programs, a text and a fix.
    pub fn troubles(&self) -> impl Iterator<Item = (&'static str, String, String)> {
        let runs = self.mover.as_ref().is_some_and(|mover| mover.running);
        let none = (self.wants_copies && !runs).then(|| {
            let fix = "canopy tier POOL makes them once, systemctl enable --now canopy-tier@NAME from now on";
            ("copies-not-made", "a rule wants copies, and nothing makes them".to_owned(), fix.to_owned())
        });
        // While it works, the number says nothing.
        let waiting = self.mover.iter().filter(|mover| mover.running && mover.state == record::WAITS);
        let short = waiting.filter_map(|mover| mover.copies.as_ref()).find(|copies| copies.short > 0);
        let short = short.map(|CopiesReport { short, .. }| {
            let files = if *short == 1 { "1 file has" } else { &format!("{short} files have") };
            let text = format!("{files} fewer copies than a rule wants, and cannot get more");
            ("too-few-copies", text, "canopy tier POOL --dry-run says why".to_owned())
        });
        none.into_iter().chain(short)
    }
}

/// What to tell if a rule wants copies, and nothing makes them.
const NO_MOVER: &str = "none were made yet (canopy tier POOL, or systemctl enable --now canopy-tier@NAME)";

impl fmt::Display for CopiesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = date(i64::try_from(self.looked).unwrap_or(0));
        match self.short {
            0 => write!(f, "no file has too few")?,
            1 => write!(f, "1 file has too few")?,
            short => write!(f, "{short} files have too few")?,
        }
        write!(f, "; all checked {when}")?;
        match self.since {
            0 => Ok(()),
            1 => write!(f, ", 1 closed since the mover looked"),
            since => write!(f, ", {since} closed since the mover looked"),
        }
    }
}

/// A branch whose disk has answered.
#[derive(Clone, Debug)]
pub struct BranchSpace {
    pub path: PathBuf,
    /// Equal for branches on one filesystem.
    pub filesystem: u64,
    pub size: u64,
    pub available: u64,
}

fn tier_reports(option: &str, branches: &[BranchSpace], all: &[BranchReport]) -> Vec<TierReport> {
    let report = |tier: canopy_policy::placement::Tier| {
        let mut disks: Vec<&BranchSpace> = branches.iter().filter(|it| tier.holds(&it.path)).collect();
        disks.sort_by_key(|it| it.filesystem);
        disks.dedup_by_key(|it| it.filesystem);
        TierReport {
            branches: all.iter().map(|it| it.path.clone()).filter(|it| tier.holds(&it.to_path())).collect(),
            size: disks.iter().map(|it| it.size).sum(),
            used: disks.iter().map(|it| it.size.saturating_sub(it.available)).sum(),
            mark: tier.move_when.iter().find_map(|when| match when {
                MoveWhen::Fuller { than, .. } => Some(*than),
                _ => None,
            }),
            move_when: tier.move_when.iter().map(format_move_when).collect(),
            name: tier.name,
        }
    };
    // A daemon of another version may have tiers that are not understood here.
    parse_tiers(option).unwrap_or_default().into_iter().map(report).collect()
}

impl fmt::Display for TierReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.used.saturating_mul(100).checked_div(self.size) {
            Some(percent) => write!(f, "{}: {percent}% of {}", self.name, bytes(self.size))?,
            None => write!(f, "{}: without a branch", self.name)?,
        }
        match self.move_when.as_slice() {
            [] => Ok(()),
            when => write!(f, "; files move when {}", when.join(", ")),
        }
    }
}

impl fmt::Display for MoverReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |seconds: u64| date(i64::try_from(seconds).unwrap_or(0));
        match (self.running, self.ended) {
            (true, _) => write!(f, "pid {}, {}", self.pid, self.state)?,
            (false, Some(ended)) => write!(f, "ended at {}", time(ended))?,
            (false, None) => write!(f, "did not end; began at {}", time(self.began))?,
        }
        let files = if self.files == 1 { "file" } else { "files" };
        write!(f, "; moved {} {files} ({})", self.files, bytes(self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_on_one_disk_count_once() {
        let space = |path, filesystem, available| BranchSpace {
            path: PathBuf::from(path),
            filesystem,
            size: 1 << 30,
            available,
        };
        let branches = [space("/ssd", 1, 1 << 29), space("/d1", 2, 0), space("/d2", 2, 0)];
        let reports =
            tier_reports("ssd=/ssd|fuller than 70%|older than 2 days;disks=/d*;none=/x", &branches, &[]);
        let lines: Vec<String> = reports.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "ssd: 50% of 1.0G; files move when fuller than 70%, older than 2 days",
                "disks: 100% of 1.0G",
                "none: without a branch"
            ]
        );
        assert_eq!((reports[0].mark, reports[1].mark), (Some(70), None));
        assert!(tier_reports("not a tier", &branches, &[]).is_empty());
    }

    #[test]
    fn files_with_too_few_copies_are_told() {
        let told = |short, since| CopiesReport { short, looked: 60, upto: 1, since }.to_string();
        assert_eq!(told(0, 0), "no file has too few; all checked 1970-01-01T00:01:00+0000");
        assert_eq!(
            told(3, 2),
            "3 files have too few; all checked 1970-01-01T00:01:00+0000, 2 closed since the mover looked"
        );
        let status = |wants_copies| TierStatus { tiers: Vec::new(), mover: None, wants_copies };
        assert_eq!(status(true).facts().collect::<Vec<_>>(), [("copies", NO_MOVER.to_owned())]);
        assert_eq!(status(false).facts().count(), 0);
    }

    #[test]
    fn a_mover_that_was_killed_is_told() {
        let mut report = MoverReport {
            pid: 7,
            state: "moves files".into(),
            files: 2,
            bytes: 2048,
            ..MoverReport::default()
        };
        assert_eq!(
            report.to_string(),
            "did not end; began at 1970-01-01T00:00:00+0000; moved 2 files (2.0K)"
        );
        report.running = true;
        assert_eq!(report.to_string(), "pid 7, moves files; moved 2 files (2.0K)");
        (report.running, report.ended) = (false, Some(60));
        assert_eq!(report.to_string(), "ended at 1970-01-01T00:01:00+0000; moved 2 files (2.0K)");
    }
}
