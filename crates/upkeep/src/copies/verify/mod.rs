//! `canopy verify`: finds content that has changed by itself and copies that differ, stores checksums, and fixes.

mod collect;
mod fix;
mod journal;
mod judge;
mod report;
mod round;

#[cfg(any(test, fuzzing))]
pub(crate) use journal::fuzz;

use crate::consent::{Alone, Consent, ConsentArgs, says_yes};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::held::NotTouched;
use crate::manners::ThrottleArgs;
use crate::output::{print, report_missing};
use crate::pace::Pace;
use crate::pool_link::PoolLink;
use crate::progress::Progress;
use crate::relocate::{FILES, Sum, apart};
use crate::stop::Stop;
use blake3::Hash;
use clap::Args;
use collect::{Collected, Unit, collect};
use fix::Resumed;
use journal::Journal;
use judge::{Judged, Reader, Verdict};
use report::{Report, Teller, What};
use round::Rounds;
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Check files against their checksums, store new ones, and repair
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct VerifyArgs {
    /// The pool's mountpoint or name
    pub pool: PathBuf,
    /// Files and directories of the pool, instead of all of it
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    #[command(flatten)]
    pub consent: ConsentArgs,
    #[arg(long, hide = true, conflicts_with = "dry_run")]
    pub fix: bool,
    /// Go on where the last --resume has stopped
    #[arg(long, conflicts_with_all = ["paths", "include", "exclude", "min_size", "max_size", "older", "newer", "owner"])]
    pub resume: bool,
    /// Stop after so long (such as 5h)
    #[arg(long = "for", value_name = "TIME", requires = "resume", value_parser = crate::filter::age)]
    pub most: Option<Duration>,
    #[command(flatten)]
    pub manners: ThrottleArgs,
}

const NOTES: &str = "\
Stores checksums and fixes what is damaged if you say yes; else it only reads.
With --resume, several runs make one round through the pool.

Exit status: 1 if a file is damaged or copies differ, 4 if something was not
read.
Example: canopy verify /mnt/pool /mnt/pool/photos --yes";

/// What the command does, and what it has found.
struct Work<'w> {
    pool: &'w PoolLink,
    stop: &'w Stop,
    reader: Reader<'w>,
    report: Report,
    teller: Teller,
    /// Branches and inode numbers of files whose fix was cut off.
    cut_off: HashSet<(usize, u64)>,
    rounds: Option<Rounds>,
}

/// Runs the command.
pub fn verify(args: &VerifyArgs) -> Result<()> {
    let pool = PoolLink::named(&args.pool)?;
    let given = ConsentArgs { yes: args.consent.yes || args.fix, ..args.consent };
    let consent = Consent::of(given, Alone::Shows, &args.manners);
    if pool.is_read_only && consent.is_given() {
        return Err(Error::PoolReadOnly(pool.mountpoint.clone()));
    }
    report_missing(&pool);
    let manners = &args.manners;
    let (stop, filter) = (Stop::on_signals()?, Filter::new(&manners.filter)?);
    let starts = if args.paths.is_empty() { vec![PathBuf::new()] } else { apart(&pool, &args.paths)? };
    let writes = match consent {
        Consent::Asked if !pool.is_read_only => {
            let collected = collect(&pool, &starts, &filter, &stop)?;
            asks_to_write(&collected, &stop)?
        }
        _ => consent.is_given(),
    };
    let reader = Reader {
        pool: &pool,
        writes,
        stop: &stop,
        pace: Pace::of(manners),
        progress: Progress::new(0, true),
        without_attributes: BTreeSet::new(),
    };
    let mut work = Work {
        pool: &pool,
        stop: &stop,
        reader,
        report: Report::new(&pool, !writes),
        teller: Teller::new(manners.json, manners.quiet),
        cut_off: HashSet::new(),
        rounds: args.resume.then(|| Rounds::of(&pool.mountpoint, args.most)),
    };
    work.report.failed = pool.missing().count() as u64;
    work.resume();
    let Collected { mut units, failed } = collect(&pool, &starts, &filter, &stop)?;
    for stays in failed {
        work.report.failed += 1;
        work.tell(What::Unread, (&stays.path, &[]), &stays.why);
    }
    if let Some(rounds) = &work.rounds {
        rounds.skip(&mut units);
    }
    for item in units.iter().flat_map(|unit| &unit.items) {
        work.report.files.add(item.copy.size());
    }
    work.reader.progress = Progress::new(work.report.files.bytes, manners.quiet || manners.json);
    let next = work.verify_all(&mut units);
    work.finish(next.map(|next| &units[next]))
}

/// Asks whether files may be changed. Nobody knows which before all have been read, so the question comes first.
fn asks_to_write(collected: &Collected, stop: &Stop) -> Result<bool> {
    let mut files = Sum::default();
    for item in collected.units.iter().flat_map(|unit| &unit.items) {
        files.add(item.copy.size());
    }
    if files.files == 0 {
        return Ok(true);
    }
    print(&format!("to read: {}\n", files.counted(FILES)));
    says_yes("Store missing checksums, and fix damaged files from a whole copy? (n only reads)", stop)
}

impl Work<'_> {
    fn tell(&mut self, what: What, place: (&Path, &[&Path]), why: &str) {
        self.report.tell(&mut self.teller, &self.reader.progress, what, place, why);
    }

    /// Finishes fixes that were cut off.
    fn resume(&mut self) {
        let pool = self.pool;
        for (index, branch) in pool.branches.iter().enumerate() {
            for (journal, head) in Journal::cut_off(branch).unwrap_or_default() {
                let Some(head) = head else {
                    // Nothing has been written to the file.
                    if self.reader.writes {
                        let _ = journal.remove();
                    }
                    continue;
                };
                let path = pool.mountpoint.join(&head.path);
                let place = (path.as_path(), &[branch.path.as_path()][..]);
                let resumed = if self.reader.writes && branch.gives() {
                    fix::resume(branch, &journal, &head)
                } else {
                    Err(NotTouched::Because(String::new()))
                };
                match resumed {
                    Ok(Resumed::Fixed) => {
                        self.report.resumed += 1;
                        self.tell(What::Fixed, place, "finished for an earlier command");
                    }
                    Ok(Resumed::Dropped) => {}
                    Err(why) => {
                        self.cut_off.insert((index, head.ino));
                        if let NotTouched::Because(why) = why
                            && !why.is_empty()
                        {
                            self.tell(What::Note, place, &format!("an earlier fix was interrupted: {why}"));
                        }
                    }
                }
            }
        }
    }

    /// Verifies units until it is to stop. Returns the one that is next.
    fn verify_all(&mut self, units: &mut [Unit]) -> Option<usize> {
        let mut next = None;
        for (index, unit) in units.iter_mut().enumerate() {
            if next.is_none() && self.rounds.as_ref().is_some_and(Rounds::is_over) {
                next = Some(index);
            }
            if next.is_some() {
                unit.items.iter().for_each(|item| self.report.not_begun.add(item.copy.size()));
                continue;
            }
            if let Some(rounds) = &mut self.rounds {
                rounds.reach(&self.report, unit);
            }
            // It loses the files that are not read.
            let whole = unit.items[0].clone();
            self.verify(unit);
            if self.stop.is_set() {
                if unit.items.is_empty() {
                    unit.items.push(whole);
                }
                next = Some(index);
            }
        }
        next
    }

    /// Reads the files of a unit, fixes what is damaged, and compares copies.
    fn verify(&mut self, unit: &mut Unit) {
        let mut judged: Vec<Judged> = Vec::with_capacity(unit.items.len());
        for (index, item) in unit.items.iter_mut().enumerate() {
            let was_cut_off = self.cut_off.contains(&(item.copy.branch, item.copy.stat.st_ino));
            let found = if self.stop.is_set() { None } else { self.reader.judge(item, was_cut_off) };
            let Some(found) = found else {
                // Those that have been read count, though nobody compares them.
                unit.items[index..].iter().for_each(|item| self.report.not_begun.add(item.copy.size()));
                unit.items.truncate(index);
                unit.shared.clear();
                break;
            };
            judged.push(found);
        }
        for index in 0..judged.len() {
            self.report.sum(judged[index].verdict).add(unit.items[index].copy.size());
            self.settle(unit, &mut judged, index);
        }
        for (path, together) in &unit.shared {
            self.compare(unit, &judged, path, together);
        }
    }

    /// Says what has been found of a file, and fixes it.
    fn settle(&mut self, unit: &Unit, judged: &mut [Judged], index: usize) {
        let item = &unit.items[index];
        let path = self.pool.mountpoint.join(&item.names[0]);
        let branch = [self.pool.branches[item.copy.branch].path.as_path()];
        let place = (path.as_path(), &branch[..]);
        let found = &judged[index];
        let why = found.why.clone();
        match (found.verdict, &found.stored) {
            (Verdict::Sound, _) => {}
            (Verdict::Missing | Verdict::Stale, Some(Ok(()))) => self.report.stored.add(item.copy.size()),
            // One line for the branch says it of all.
            (Verdict::Missing, _) if self.reader.without_attributes.contains(&item.copy.branch) => {}
            (Verdict::Missing | Verdict::Stale, Some(Err(why))) => {
                let why = why.clone();
                self.tell(What::NotStored, place, &why);
            }
            (Verdict::Missing, None) => self.tell(What::Missing, place, &why),
            (Verdict::Stale, None) => self.tell(What::Stale, place, &why),
            (Verdict::InUse, _) => self.tell(What::InUse, place, &why),
            (Verdict::Unread, _) => self.tell(What::Unread, place, &why),
            (Verdict::Damaged, _) => {
                let (what, why) = self.fix(unit, judged, index);
                if what == What::Fixed {
                    self.report.fixed.add(item.copy.size());
                    judged[index].digest = judged[index].checksum.map(|checksum| checksum.digest);
                    judged[index].verdict = Verdict::Sound;
                }
                self.tell(what, place, &why);
            }
        }
    }

    /// Fixes a file if that is asked and another has the right content. Returns what to say.
    fn fix(&mut self, unit: &Unit, judged: &[Judged], index: usize) -> (What, String) {
        let of = |why: &str| match judged[index].why.as_str() {
            "" => why.to_owned(),
            known => format!("{known}; {why}"),
        };
        let Some(checksum) = judged[index].checksum else { return (What::Damaged, of("it has no checksum")) };
        let is_right = |other: &usize| *other != index && judged[*other].digest == Some(checksum.digest);
        let Some(good) = (0..judged.len()).find(is_right) else {
            return (What::Damaged, of("no copy has the content of its checksum"));
        };
        let good = &unit.items[good];
        let from = crate::output::shown(&self.pool.branches[good.copy.branch].path);
        if !self.reader.writes {
            return (What::Damaged, of(&format!("--yes fixes it from {from}")));
        }
        let damaged = &unit.items[index];
        match fix::fix(self.pool, [damaged, good], &checksum, &mut self.reader.pace, self.stop) {
            Ok(()) => (What::Fixed, format!("from {from}")),
            Err(NotTouched::Stopped) => (What::Damaged, of("stopped before it was fixed")),
            Err(NotTouched::Because(why)) => (What::Damaged, of(&format!("not fixed: {why}"))),
        }
    }

    /// Compares the copies of a path, except those that are known to be damaged.
    fn compare(&mut self, unit: &Unit, judged: &[Judged], path: &Path, together: &[usize]) {
        let known = |index: &&usize| judged[**index].verdict != Verdict::Damaged;
        let known: Vec<(usize, Hash)> = together
            .iter()
            .filter(known)
            .filter_map(|index| Some((unit.items[*index].copy.branch, judged[*index].digest?)))
            .collect();
        if known.iter().any(|(_, digest)| *digest != known[0].1) {
            self.report.differing += 1;
            let branches: Vec<&Path> =
                known.iter().map(|(branch, _)| self.pool.branches[*branch].path.as_path()).collect();
            let newest =
                together.iter().map(|index| unit.items[*index].copy).max_by_key(|copy| copy.modified());
            let newest = newest.map(|copy| crate::output::shown(&self.pool.branches[copy.branch].path));
            let why = newest.map(|branch| format!("the newest is on {branch}")).unwrap_or_default();
            self.tell(What::Differing, (&self.pool.mountpoint.join(path), &branches), &why);
        }
    }

    /// Says what was found. `next` is what is left of the round.
    fn finish(mut self, next: Option<&Unit>) -> Result<()> {
        self.reader.progress.finish();
        self.report.stopped = self.stop.is_set();
        for branch in std::mem::take(&mut self.reader.without_attributes) {
            let path = self.pool.branches[branch].path.as_path();
            self.tell(
                What::Note,
                (path, &[]),
                "its filesystem has no user attributes, so files have no checksums",
            );
        }
        debug_assert!(self.report.adds_up());
        if let Some(rounds) = &self.rounds {
            let round = rounds.now(&self.report, next);
            if let Err(why) = rounds.keep(&round) {
                let pool = self.pool.mountpoint.as_path();
                self.tell(What::Note, (pool, &[]), &why);
            }
            self.report.round = Some(round);
        }
        self.report.finish(&self.teller)
    }
}

impl Report {
    fn adds_up(&self) -> bool {
        let parts =
            [self.sound, self.missing, self.stale, self.damaged, self.in_use, self.unread, self.not_begun];
        let all = Sum {
            files: parts.iter().map(|part| part.files).sum(),
            bytes: parts.iter().map(|part| part.bytes).sum(),
        };
        all == self.files
    }
}
