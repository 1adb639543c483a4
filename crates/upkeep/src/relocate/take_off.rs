//! Taking one of several copies of a file off its branch.

use crate::held::{HeldCopy, Kept};
use crate::output::{complain, shown};
use crate::pace::Pace;
use crate::pool_link::PoolLink;
use crate::progress::Progress;
use crate::stop::Stop;
use crate::survey::{FileCopy, current, disks_of, look};
use rustix::io::Errno;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the daemon keeps a file open after its last reader has closed it.
const CLOSED: Duration = Duration::from_millis(1100);
/// Why a copy stays.
const FEWER: &str = "the other branches hold fewer copies than its rule wants";

/// How one of several copies leaves its branch.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    /// The branches that get a copy before.
    pub(crate) copies: Vec<usize>,
    /// How many there must be without it.
    pub(crate) wanted: usize,
}

/// Takes copies off branches.
pub(super) struct TakeOff<'p> {
    pub(super) pool: &'p PoolLink,
    pub(super) stop: &'p Stop,
    /// Bytes in a second; 0 for no limit.
    pub(super) rate: u64,
    /// Read only while no other program does.
    pub(super) idle: bool,
}

impl TakeOff<'_> {
    /// Fails if the copy on a branch could not go although others got copies first: then these would be too many.
    pub(super) fn must_be_possible(&self, path: &Path, branch: usize, leaving: &Leaving) -> Result<(), Kept> {
        let (copies, _) = look(self.pool, path);
        let Some(goes) = copies.iter().find(|copy| copy.branch == branch) else { return Ok(()) };
        let root = |to: &usize| self.pool.branches[*to].stat(Path::new("")).ok().map(|root| root.st_dev);
        let mut disks = disks_of(&self.others(path, &copies, branch));
        disks.extend(leaving.copies.iter().filter_map(root));
        if disks.len() < leaving.wanted {
            return Err(Kept::Because(FEWER.into()));
        }
        let Some(stays) = copies.iter().find(|copy| copy.branch != branch) else { return Ok(()) };
        let try_it = || HeldCopy::pair(self.pool, path, [stays, goes], true).map(drop);
        match try_it() {
            Err(kept) if kept == Kept::from(Errno::BUSY) => {
                self.stop.sleep_until(Instant::now() + CLOSED);
                try_it()
            }
            other => other,
        }
    }

    /// Removes the copy on a branch, if others hold as many as are wanted and one of them is the same.
    pub(super) fn remove(&self, path: &Path, branch: usize, wanted: usize) -> Result<(), Kept> {
        self.remove_in_favour(path, branch, wanted, |goes, stays| {
            let mut pace = Pace::new(self.rate, self.idle);
            goes.require_equal(stays, (&mut pace, &Progress::new(0, true)), self.stop)
        })
    }

    /// Removes the copy that a branch got a moment ago, also after a signal.
    pub(super) fn undo(&self, path: &Path, branch: usize, wanted: usize) {
        if let Err(Kept::Because(why)) = self.remove_in_favour(path, branch, wanted, |_, _| Ok(())) {
            let (path, branch) = (self.pool.mountpoint.join(path), &self.pool.branches[branch].path);
            complain(&format!(
                "{} has one copy more than its rule wants, on {} ({why}; canopy dedup removes it)",
                shown(&path),
                shown(branch)
            ));
        }
    }

    fn remove_in_favour(
        &self,
        path: &Path,
        branch: usize,
        wanted: usize,
        compare: impl Fn(&HeldCopy<'_>, &HeldCopy<'_>) -> Result<(), Kept>,
    ) -> Result<(), Kept> {
        let (copies, _) = look(self.pool, path);
        let Some(goes) = copies.iter().find(|copy| copy.branch == branch) else { return Ok(()) };
        let others = self.others(path, &copies, branch);
        let Some(first) = others.first().filter(|_| disks_of(&others).len() >= wanted) else {
            return Err(Kept::Because(FEWER.into()));
        };
        let [stays, held] = HeldCopy::pair(self.pool, path, [first, goes], true)?;
        // One that is known to be out of date need not be the same.
        if current(self.pool, path, &copies).contains(&branch) {
            compare(&held, &stays)?;
        }
        Ok(held.remove_in_favour_of(&stays)?)
    }

    /// Returns the copies on other branches that are up to date.
    fn others(&self, path: &Path, copies: &[FileCopy], branch: usize) -> Vec<FileCopy> {
        let up_to_date = current(self.pool, path, copies);
        let counts = |copy: &&FileCopy| {
            copy.branch != branch
                && up_to_date.contains(&copy.branch)
                && self.pool.branches[copy.branch].is_well
        };
        copies.iter().filter(counts).copied().collect()
    }
}
