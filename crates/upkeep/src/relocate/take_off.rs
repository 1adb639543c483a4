//! One of several copies of a file leaves its branch. What goes, and in favour of which other one, is decided here; the daemon
//! removes a copy that is up to date, with all its names, and its clients go on with the other one.

use crate::held::{HeldCopy, Kept};
use crate::pace::Pace;
use crate::pool_link::PoolLink;
use crate::progress::Progress;
use crate::stop::Stop;
use crate::survey::{FileCopy, current, disks_of, look};
use std::path::{Path, PathBuf};

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

/// What a copy is that may go.
pub(super) enum Goes {
    /// Another branch holds the same.
    Surplus(usize),
    /// It is out of date.
    Old,
    /// There is none any more.
    Gone,
}

/// Looks at copies that are to leave their branches.
pub(super) struct TakeOff<'p> {
    pub(super) pool: &'p PoolLink,
    pub(super) stop: &'p Stop,
    /// Bytes in a second; 0 for no limit.
    pub(super) rate: u64,
    /// Read only while no other program does.
    pub(super) idle: bool,
}

impl TakeOff<'_> {
    /// Fails if there would be too few copies without the one on a branch, also when others have got theirs.
    pub(super) fn must_be_possible(&self, path: &Path, branch: usize, leaving: &Leaving) -> Result<(), Kept> {
        let (copies, _) = look(self.pool, path);
        let root = |to: &usize| self.pool.branches[*to].stat(Path::new("")).ok().map(|root| root.st_dev);
        let mut disks = disks_of(&self.others(path, &copies, branch));
        disks.extend(leaving.copies.iter().filter_map(root));
        if disks.len() < leaving.wanted { Err(Kept::Because(FEWER.into())) } else { Ok(()) }
    }

    /// Returns what the copy on a branch is. One that is up to date is compared with another one.
    ///
    /// # Errors
    /// If others hold fewer than are wanted, or differ.
    pub(super) fn look(&self, path: &Path, branch: usize, wanted: usize) -> Result<Goes, Kept> {
        let (copies, _) = look(self.pool, path);
        let Some(goes) = copies.iter().find(|copy| copy.branch == branch) else { return Ok(Goes::Gone) };
        let others = self.others(path, &copies, branch);
        let Some(first) = others.first().filter(|_| disks_of(&others).len() >= wanted) else {
            return Err(Kept::Because(FEWER.into()));
        };
        if !current(self.pool, path, &copies).contains(&branch) {
            return Ok(Goes::Old);
        }
        let [stays, held] = HeldCopy::pair(self.pool, path, [first, goes], false)?;
        let mut pace = Pace::new(self.rate, self.idle);
        held.require_equal(&stays, (&mut pace, &Progress::new(0, true)), self.stop)?;
        Ok(Goes::Surplus(first.branch))
    }

    /// Removes an old copy from a branch, under each of these names.
    pub(super) fn remove_old(&self, names: &[PathBuf], branch: usize) -> Result<(), Kept> {
        for path in names {
            let (copies, _) = look(self.pool, path);
            let Some(goes) = copies.iter().find(|copy| copy.branch == branch) else { continue };
            let others = self.others(path, &copies, branch);
            let is_old = !current(self.pool, path, &copies).contains(&branch);
            let Some(first) = others.first().filter(|_| is_old) else {
                return Err(Kept::Because("it has changed meanwhile".into()));
            };
            let [stays, held] = HeldCopy::pair(self.pool, path, [first, goes], true)?;
            held.remove_in_favour_of(&stays)?;
        }
        Ok(())
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
