//! Making the copies that rules want: of all files, and soon of those that were closed a moment ago.

use super::TierMover;
use super::copies::{self, CopyPlan, CopyPlanner};
use super::record::{CopiesReport, now};
use crate::error::{Error, Result};
use crate::pool_link::{PoolLink, closed_since};
use crate::relocate::job::Stays;
use crate::relocate::mover::{Action, Outcome, Task};
use crate::relocate::{Bound, Run, layout};
use crate::survey::{Entry, FileCopy, look, walk_all};
use canopy_base::text::os_error;
use canopy_control::daemon::Daemon;
use canopy_policy::placement::Placement;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the daemon is asked for closed files.
const ASK: Duration = Duration::from_secs(5);
/// How many files are tried again each minute that could not be copied.
const AGAIN: usize = 1000;

/// What the mover knows of copies.
#[derive(Debug, Default)]
pub(super) struct Copying {
    /// The number of the last report of closed files.
    upto: u64,
    /// There were closed files that nothing tells of: all have to be looked at.
    lost: bool,
    /// Files with too few copies.
    short: BTreeSet<PathBuf>,
    looked: u64,
}

impl Copying {
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    fn report(&self) -> CopiesReport {
        let short = self.short.len() as u64;
        CopiesReport { short, looked: self.looked, upto: self.upto, since: 0 }
    }
}

impl TierMover<'_> {
    /// Looks at all files of which rules want copies, and makes those that are missing. Returns what the summary says.
    pub(super) fn copy_all(&self, pool: &PoolLink, placement: &Placement) -> Result<Result<()>> {
        self.tell("looks for files with too few copies");
        // What is closed from here on is asked for later.
        loop {
            let report = closed_since(&pool.daemon, self.copying.borrow().upto);
            self.copying.borrow_mut().upto = report.upto;
            if report.paths.is_empty() {
                break;
            }
        }
        let run = Run::until(self.stop.clone(), Action::Copy, pool, &self.args.run)?;
        let mut layout = layout(pool, Some(placement))?;
        let mut planner = CopyPlanner::new(pool, placement, &mut layout);
        let mut starts = copies::starts(placement);
        starts.retain(|start| !look(pool, start).0.is_empty());
        let failed = walk_all(pool, &starts, &mut |entry| {
            !self.stop.is_set() && planner.consider(entry, &|copy| admits(&run, entry, copy))
        })?;
        self.stop.check()?;
        let mut plan = planner.plan;
        let stays = |(path, errno)| Stays { path, why: os_error(errno) };
        plan.stays.extend(failed.into_iter().map(stays));
        let summary = run.summary_of("tier");
        // Rounds that find nothing are no news.
        let is_news = !plan.tasks.is_empty()
            || !plan.stays.is_empty()
            || self.args.once
            || self.args.run.consent.dry_run;
        if is_news {
            summary.before(&plan.tasks);
        }
        let made = self.make(&run, &plan)?;
        let mut copying = self.copying.borrow_mut();
        (copying.lost, copying.looked) = (false, now());
        copying.short = still_short(&pool.mountpoint, &plan, &made);
        drop(copying);
        self.count_copies(&made);
        if is_news {
            Ok(summary.after(&plan.tasks, &made, (&plan.stays, &Bound::default()), self.stop.is_set()))
        } else {
            Ok(Ok(()))
        }
    }

    /// Makes copies of files that were closed meanwhile, until a time.
    pub(super) fn copy_until(&self, until: Instant, daemon: &Daemon, placement: &Placement) -> Result<()> {
        if !copies::are_wanted(placement) {
            self.stop.sleep_until(until);
            return Ok(());
        }
        let mut again = self.copying.borrow().short.clone();
        if again.len() > AGAIN {
            again.clear();
        }
        while !self.stop.is_set() && Instant::now() < until {
            self.stop.sleep_until(until.min(Instant::now() + ASK));
            let mut paths = std::mem::take(&mut again);
            loop {
                let report = closed_since(daemon, self.copying.borrow().upto);
                let mut copying = self.copying.borrow_mut();
                copying.upto = report.upto;
                copying.lost |= report.lost;
                if report.paths.is_empty() {
                    break;
                }
                paths.extend(report.paths.iter().map(canopy_control::OsText::to_path));
            }
            if !paths.is_empty() && !self.stop.is_set() {
                match self.copy_some(placement, &paths) {
                    Ok(()) | Err(Error::Stopped) => {}
                    Err(error) => return Err(error),
                }
            }
            if self.copying.borrow().lost {
                break;
            }
        }
        Ok(())
    }

    /// Makes the copies that some files lack.
    fn copy_some(&self, placement: &Placement, paths: &BTreeSet<PathBuf>) -> Result<()> {
        let pool = PoolLink::named(&self.args.pool)?;
        let run = Run::until(self.stop.clone(), Action::Copy, &pool, &self.args.run)?;
        let mut layout = layout(&pool, Some(placement))?;
        let mut planner = CopyPlanner::new(&pool, placement, &mut layout);
        for path in paths {
            let (copies, _) = look(&pool, path);
            if !copies.is_empty() {
                let entry = Entry { path: path.clone(), copies };
                planner.consider(&entry, &|copy| admits(&run, &entry, copy));
            }
        }
        let plan = planner.plan;
        let made = self.make(&run, &plan)?;
        let mut copying = self.copying.borrow_mut();
        copying.short.retain(|path| !paths.contains(path));
        copying.short.extend(still_short(&pool.mountpoint, &plan, &made));
        drop(copying);
        self.count_copies(&made);
        self.finish("waits");
        Ok(())
    }

    fn make(&self, run: &Run<'_>, plan: &CopyPlan) -> Result<Outcome> {
        if plan.tasks.is_empty() || !run.agrees(&plan.tasks)? {
            return Ok(Outcome::default());
        }
        self.tell("makes copies");
        run.mover().run(&plan.tasks)
    }

    fn count_copies(&self, made: &Outcome) {
        if let Some(record) = &mut *self.record.borrow_mut() {
            record.report.files += made.moved.files;
            record.report.bytes += made.moved.bytes;
            record.report.copies = Some(self.copying.borrow().report());
        }
    }
}

fn admits(run: &Run<'_>, entry: &Entry, copy: &FileCopy) -> bool {
    run.filter.admits(&run.pool.mountpoint, std::iter::once(entry.path.as_path()), copy)
}

/// Returns the files of a plan that have too few copies after its tasks.
fn still_short(mountpoint: &Path, plan: &CopyPlan, made: &Outcome) -> BTreeSet<PathBuf> {
    let begun = match made.planned.files {
        // A dry run.
        0 => 0,
        _ => plan.tasks.len().saturating_sub(usize::try_from(made.not_begun.files).unwrap_or(usize::MAX)),
    };
    let stays = made.stays.iter().chain(&plan.stays);
    let failed: BTreeSet<&Path> = stays.filter_map(|stay| stay.path.strip_prefix(mountpoint).ok()).collect();
    // A file is named by its first name, and done with all of them.
    let is_done = |task: &&Task| !failed.contains(task.names[0].as_path());
    let mut done: BTreeSet<&PathBuf> =
        plan.tasks[..begun].iter().filter(is_done).flat_map(|task| &task.names).collect();
    for name in plan.tasks[begun..].iter().flat_map(|task| &task.names) {
        done.remove(name);
    }
    plan.short.iter().filter(|path| !done.contains(path)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relocate::mover::Sum;

    #[test]
    fn files_that_were_not_copied_as_often_as_wanted_stay_short() {
        let task = |name: &str| Task::copying(vec![name.into()], 0, 1, 1);
        let stay = |name: &str| Stays { path: Path::new("/p").join(name), why: "why".into() };
        let plan = CopyPlan {
            tasks: ["a", "b", "b", "c", "d"].map(task).into(),
            stays: vec![stay("e")],
            short: ["a", "b", "c", "d", "e"].map(PathBuf::from).into(),
        };
        let mut made = Outcome { planned: Sum { files: 5, bytes: 5 }, ..Outcome::default() };
        (made.not_begun, made.stays) = (Sum { files: 1, bytes: 1 }, vec![stay("b")]);
        let short =
            |made: &Outcome| -> Vec<_> { still_short(Path::new("/p"), &plan, made).into_iter().collect() };
        assert_eq!(short(&made), ["b", "d", "e"].map(PathBuf::from));
        assert_eq!(short(&Outcome::default()).len(), 5);
    }
}
