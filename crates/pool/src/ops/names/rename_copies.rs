//! Renaming files of which rules want several copies.

use super::rename::Side;
use crate::ops::resolve;
use crate::pool::Op;
use canopy_base::error::{Error, Result};
use canopy_base::path::join;
use canopy_branch::fs::generation::{self, Generation};
use canopy_branch::fs::stat::Attr;
use canopy_policy::Choice;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use smallvec::SmallVec;

impl Side<'_, '_> {
    fn pin(&self, index: usize) -> Result<OwnedFd, Errno> {
        self.dirs.follow.pin(self.dirs.get(index).ok_or(Errno::NOENT)?, self.name)
    }

    /// Returns the largest number that a copy has; `None` if no copy has any.
    fn newest(&self) -> Option<u64> {
        let files = self.copies.iter().filter(|(_, attr)| attr.is_regular());
        let read = |(index, _): (usize, _)| {
            let dir = self.dirs.get(index)?;
            self.dirs.branches[index].reads(|| generation::read_at(dir, self.name)).ok().flatten()
        };
        files.filter_map(read).map(|generation| generation.number).max()
    }

    /// Gives copies that are the same a new number, which is larger than `before`.
    fn renew(&self, copies: &[usize], before: u64) -> Result<()> {
        let number = generation::next(before);
        for &index in copies {
            let put = || -> Result<(), Errno> {
                let file = self.pin(index)?;
                // One alone may be the same as copies on branches that are away. Under the new number, it is not.
                generation::write(file.as_fd(), Generation { number, shared: copies.len() > 1 })
            };
            match self.dirs.branches[index].changes(put) {
                // Such a filesystem gets no copies.
                Err(Errno::OPNOTSUPP) => {}
                other => other?,
            }
        }
        Ok(())
    }
}

/// Prepares the copies of a file for a new name. Those that are out of date go, all others are renamed, and they become
/// newer than whatever has the new name on any branch.
pub(super) fn prepare_copies(
    op: &Op<'_>,
    old: &mut Side<'_, '_>,
    new: &Side<'_, '_>,
    chosen: &mut Choice,
) -> Result<()> {
    let (before, replaced) = (old.newest(), new.newest());
    let wants = || op.config.placement.copies(&join(&new.path, new.name)) > 1;
    if before.is_none() && replaced.is_none() && !wants() {
        return Ok(());
    }
    // Since they were looked at, one may have been opened for writing: it alone is the newest then.
    let files = old.copies.iter().filter(|(_, attr)| attr.is_regular()).map(|(_, attr)| attr.key());
    let _right = op.rights.to_copy(files);
    old.copies.current = None;
    let (dirs, name) = (&old.dirs, old.name);
    resolve::generations::compare_generations(op, &mut old.copies, |_, index| {
        generation::read_at(dirs.get(index).ok_or(Errno::NOENT)?, name)
    });
    if old.copies.current.as_ref().is_some_and(SmallVec::is_empty) {
        return Err(old.copies.missing());
    }
    spare_apart(op, old)?;
    if let Some(current) = old.copies.current.take() {
        let is_old = |(index, _): &(usize, &Attr)| !current.contains(index);
        let stale: SmallVec<[usize; 2]> = old.copies.iter().filter(is_old).map(|(index, _)| index).collect();
        for index in stale {
            old.dirs.unlink(index, old.name, AtFlags::empty())?;
        }
        old.copies = old.copies.only(|index| current.contains(&index));
        *chosen = current.iter().copied().collect();
    }
    old.renew(chosen, before.max(replaced).unwrap_or(0))
}

/// Sets aside what the rename would take away on this side, and what only a disk has that was used alone.
pub(super) fn spare_apart(op: &Op<'_>, side: &mut Side<'_, '_>) -> Result<()> {
    let Side { dirs, copies, path, name, .. } = side;
    Ok(resolve::generations::spare_apart(op, dirs, (path, name), copies)?)
}

/// Leaves copies of the target alone that cannot be removed because their branches fail. The file that gets the name is
/// newer than they are, so they stay hidden when the branches are well again.
pub(super) fn leave_failing_copies(op: &Op<'_>, new: &mut Side<'_, '_>) {
    let fails = |index: usize| !op.branches.as_slice()[index].health.is_well();
    if resolve::generations::knows_copies(op)
        && new.copies.iter().any(|(index, attr)| fails(index) && attr.is_regular())
        && !new.copies.any_dir()
        && op.config.placement.copies(&join(&new.path, new.name)) > 1
    {
        let current = new.copies.current.take();
        new.copies = new.copies.only(|index| !fails(index));
        new.copies.current = current;
    }
}

/// Prepares an exchange of names where a rule knows copies. An exchange on two branches that ends in between would show
/// one of the files under both names, and take the other one for an old copy of it.
///
/// Errors: `EINVAL`, as of a filesystem that cannot exchange names, unless one branch holds both and no other any.
pub(super) fn prepare_exchange(op: &Op<'_>, old: &Side<'_, '_>, new: &Side<'_, '_>) -> Result<()> {
    let sole = |side: &Side<'_, '_>| match side.copies.found.as_slice() {
        [(index, attr)] => Some((*index, attr.is_regular())),
        _ => None,
    };
    let both = sole(old).zip(sole(new)).filter(|((one, _), (other, _))| one == other);
    let Some(((index, old_is_file), (_, new_is_file))) = both else { return Err(Error::Invalid) };
    let before = old.newest().max(new.newest());
    for (side, other, is_file) in [(old, new, old_is_file), (new, old, new_is_file)] {
        let wants = || op.config.placement.copies(&join(&other.path, other.name)) > 1;
        if is_file && (before.is_some() || wants()) {
            side.renew(&[index], before.unwrap_or(0))?;
        }
    }
    Ok(())
}
