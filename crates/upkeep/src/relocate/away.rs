//! Taking files off a branch of which a rule wants copies: other branches hold as many as it wants before this one's goes.

use super::job::{SEVERAL, Stays};
use super::mover::{Action, Outcome, Step};
use super::tier::copies::{CopyPlan, CopyPlanner};
use super::{Run, Sum};
use crate::error::Result;
use crate::held::{HeldCopy, Kept};
use crate::output::shown;
use crate::pace::Pace;
use crate::progress::Progress;
use crate::survey::{Entry, FileCopy, current, look};
use canopy_pool::policy::placement::Placement;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The files on a branch that others hold, too.
pub(super) struct Away<'r> {
    run: &'r Run<'r>,
    branch: usize,
    placement: &'r Placement,
    entries: Vec<Entry>,
    /// The copies that are made first.
    copies: Vec<Step>,
    /// What gets too few, and why.
    short: BTreeMap<PathBuf, String>,
    /// What no rule wants copies of.
    stays: Vec<Stays>,
}

impl<'r> Away<'r> {
    pub(super) fn plan(
        run: &'r Run<'r>,
        branch: usize,
        placement: &'r Placement,
        shared: Vec<Entry>,
    ) -> Result<Away<'r>> {
        let wanted = |entry: &Entry| placement.copies(entry.path.as_os_str().as_bytes()) > 1;
        let (entries, others): (Vec<_>, Vec<_>) = shared.into_iter().partition(wanted);
        let stay = |entry: Entry| Stays { path: run.pool.mountpoint.join(entry.path), why: SEVERAL.into() };
        let stays = others.into_iter().map(stay).collect();
        let mut planner = CopyPlanner::new(run.pool, placement)?.without(branch);
        for entry in &entries {
            planner.consider(entry, &|_| true);
        }
        let CopyPlan { steps: copies, stays: lacks, .. } = planner.plan;
        let short = lacks.into_iter().map(|lack| (lack.path, lack.why)).collect();
        Ok(Away { run, branch, placement, entries, copies, short, stays })
    }

    /// Returns where the files go, as steps from the branch. What is there already takes no bytes.
    pub(super) fn steps(&self) -> Vec<Step> {
        let goes = |entry: &&Entry| !self.short.contains_key(&self.run.pool.mountpoint.join(&entry.path));
        let copies: HashMap<&Path, &Step> =
            self.copies.iter().map(|step| (step.names[0].as_path(), step)).collect();
        let step = |entry: &Entry| {
            let made = copies.get(entry.path.as_path());
            let there = entry.copies.iter().find(|copy| copy.branch != self.branch);
            let (to, bytes) = match made {
                Some(step) => (step.to, step.bytes),
                None => (there?.branch, 0),
            };
            Some(Step { names: vec![entry.path.clone()], from: self.branch, to, bytes })
        };
        self.entries.iter().filter(goes).filter_map(step).collect()
    }

    /// Returns what stays by the plan.
    pub(super) fn all_stay(self) -> Vec<Stays> {
        let short = self.short.into_iter().map(|(path, why)| Stays { path, why });
        self.stays.into_iter().chain(short).collect()
    }

    /// Makes the copies, and takes off the branch what others hold then.
    pub(super) fn carry_out(self) -> Result<(Outcome, Vec<Stays>)> {
        let run = Run::until(self.run.stop.clone(), Action::Copy, self.run.pool, self.run.args)?;
        let made = run.mover().run(&self.copies)?;
        let failed: HashMap<_, _> = made.stays.into_iter().map(|stay| (stay.path, stay.why)).collect();
        let manners = &self.run.args.manners;
        let own = |entry: &Entry| entry.copies.iter().find(|copy| copy.branch == self.branch).copied();
        let all = self.entries.iter().filter_map(own).map(|copy| copy.size()).sum();
        let progress = Progress::new(all, manners.quiet || manners.json);
        let mut pace = Pace::of(manners);
        let mut outcome = Outcome::default();
        for entry in &self.entries {
            let path = self.run.pool.mountpoint.join(&entry.path);
            let bytes = own(entry).map_or(0, |copy| copy.used());
            progress.show(&path);
            outcome.planned.add(bytes);
            let removed = match self.short.get(&path).or_else(|| failed.get(&path)) {
                _ if self.run.stop.is_set() => Err(Kept::Stopped),
                Some(why) => Err(Kept::Because(why.clone())),
                None => self.remove(entry, &mut pace, &progress),
            };
            let sum: &mut Sum = match removed {
                Ok(()) => {
                    let branch = shown(&self.run.pool.branches[self.branch].path);
                    progress.tell(&format!("{}: taken off {branch}", shown(&path)));
                    &mut outcome.moved
                }
                Err(Kept::Stopped) => &mut outcome.not_begun,
                Err(Kept::Because(why)) => {
                    outcome.stays.push(Stays { path, why });
                    &mut outcome.stayed
                }
            };
            sum.add(bytes);
        }
        progress.finish();
        Ok((outcome, self.stays))
    }

    /// Removes the copy on the branch, if others hold as many as the rule wants.
    fn remove(&self, entry: &Entry, pace: &mut Pace, progress: &Progress) -> std::result::Result<(), Kept> {
        let (pool, path) = (self.run.pool, &entry.path);
        let (copies, _) = look(pool, path);
        let Some(goes) = copies.iter().find(|copy| copy.branch == self.branch) else { return Ok(()) };
        let up_to_date = current(pool, path, &copies);
        let holds = |copy: &&FileCopy| {
            copy.branch != self.branch
                && up_to_date.contains(&copy.branch)
                && pool.branches[copy.branch].is_well
        };
        let others: Vec<&FileCopy> = copies.iter().filter(holds).collect();
        let disks: BTreeSet<u64> = others.iter().map(|copy| copy.stat.st_dev).collect();
        if disks.len() < self.placement.copies(path.as_os_str().as_bytes()) {
            return Err(Kept::Because("the other branches hold fewer copies than its rule wants".into()));
        }
        let [stays, held] = HeldCopy::pair(pool, path, [others[0], goes], true)?;
        // One that is known to be out of date need not be the same.
        if up_to_date.contains(&self.branch) {
            held.require_equal(&stays, (pace, progress), &self.run.stop)?;
        }
        Ok(held.remove_in_favour_of(&stays)?)
    }
}
