//! What becomes of what is removed or replaced: it goes to the trash, if a rule of the pool says so.
//!
//! One copy of a file is kept, the one that the pool shows, and others only if they differ from it. A directory leaves another that
//! stands for it. Nothing is looked at in a pool without such a rule.

use super::rename::{RenameKind, Side};
use crate::config::Func;
use crate::dir::merged::{Copies, MergedDir};
use crate::door::program_of;
use crate::export;
use crate::node::Node;
use crate::ops::resolve::{self, Place};
use crate::pool::Op;
use canopy_base::error::Result;
use canopy_base::path::{join, split};
use canopy_branch::branch::Branch;
use canopy_branch::fs::stat::Attr;
use canopy_branch::trash::{Copied, Gone, Linked, RemovedDir, Who};
use rustix::fd::AsFd;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::sync::Arc;

/// Returns who removes something, if that is to be kept. `overwritten` is whether a rename replaces it.
pub(crate) fn keeper(op: &Op<'_>, path: &[u8], name: &[u8], overwritten: bool) -> Option<Who> {
    let rules = &op.config.trash;
    if rules.is_empty() {
        return None;
    }
    rules.rule(&join(path, name)).filter(|rule| rule.overwritten || !overwritten)?;
    Some(remover(op))
}

/// Returns who makes the request that the calling thread serves.
pub(crate) fn remover(op: &Op<'_>) -> Who {
    let kernel = op.kernel.load();
    let (pid, uid) = (kernel.caller_thread(), kernel.caller_uid());
    op.removers.find(pid, uid, program_of)
}

/// Removes one copy of a file. Returns whether it is kept. `who` removes it, if it is to be kept.
pub(crate) fn unlink(
    op: &Op<'_>,
    dirs: &MergedDir<'_>,
    (path, name): (&[u8], &[u8]),
    (copies, shown): (&Copies, usize),
    index: usize,
    who: Option<&Who>,
) -> Result<bool, Errno> {
    let differs = |attr: &Attr| copies.get(shown).is_none_or(|shown| differ(copies, shown, attr));
    let attr = copies.get(index).filter(|attr| index == shown || differs(attr));
    let (Some(who), Some(attr), Some(dir)) = (who, attr, dirs.get(index)) else {
        return dirs.unlink(index, name, AtFlags::empty()).map(|()| false);
    };
    let branch = &dirs.branches[index];
    let removed = branch.changes(|| op.trash.remove(branch, (dir, path, name), attr, who));
    dirs.copy_changed(index);
    Ok(removed? == Gone::Kept)
}

/// Returns whether two copies of a name are different files. Where rules keep copies, the pool knows which are out of date.
fn differ(copies: &Copies, one: &Attr, other: &Attr) -> bool {
    copies.current.is_none() && (one.size, one.mtime) != (other.size, other.mtime)
}

/// A directory that is about to be removed, and is to be kept.
pub(crate) struct Going<'o> {
    branch: &'o Branch,
    dir: RemovedDir<'o>,
    who: Who,
}

/// Opens a directory of a branch that is about to be removed, if it is to be kept.
pub(crate) fn going<'o>(
    op: &Op<'_>,
    dirs: &'o MergedDir<'_>,
    index: usize,
    (path, name): (&[u8], &[u8]),
) -> Option<Going<'o>> {
    let who = keeper(op, path, name, false)?;
    let branch = &dirs.branches.as_slice()[index];
    Some(Going { branch, dir: RemovedDir::of(branch, dirs.get(index)?, name)?, who })
}

impl Going<'_> {
    /// Leaves a directory in the trash that stands for it. Comes when it is removed.
    pub(crate) fn gone(&self, op: &Op<'_>, path: &[u8], name: &[u8]) {
        op.trash.keep_dir(self.branch, (path, name), &self.dir, &self.who);
    }
}

/// What a file held that is about to be emptied, and that is in the trash already.
pub(crate) struct Emptied {
    branch: Arc<Branch>,
    copied: Copied,
}

impl Emptied {
    /// Comes if the file was not emptied.
    pub(crate) fn take_back(self, op: &Op<'_>) {
        op.trash.take_back(&self.branch, &self.copied);
    }
}

/// Keeps what a file holds that is about to be emptied, if a rule says so. `own` finds it on its branch.
///
/// Errors: `EROFS` for a program that is to be stopped.
pub(crate) fn keep_emptied(
    op: &Op<'_>,
    node: &Node,
    own: impl FnOnce() -> Result<Place>,
) -> Result<Option<Emptied>> {
    let rules = &op.config.trash;
    if !(rules.keep_overwritten() || rules.has_alarms()) {
        return Ok(None);
    }
    // Where it cannot be found, it cannot be emptied either.
    let Some(own) = own().ok().filter(|own| own.attr.is_regular() && own.attr.size > 0) else {
        return Ok(None);
    };
    // The process before this one may have opened it. One that has no name any more is nobody's.
    let by_branch = || export::known_path(&own.branch, own.fd.as_fd(), &own.attr);
    let Some(path) = resolve::a_path(op, node).or_else(by_branch) else { return Ok(None) };
    let (dir, name) = split(&path);
    super::brake::check(op, dir, name)?;
    let Some(who) = keeper(op, dir, name, true) else { return Ok(None) };
    let copied = op.trash.copy(&own.branch, own.fd.as_fd(), (dir, name), &own.attr, &who);
    Ok(copied.map(|copied| Emptied { branch: own.branch, copied }))
}

/// A file that a rename is about to replace, and that is in the trash already.
pub(crate) struct Replaced {
    branch: Arc<Branch>,
    linked: Linked,
    /// It is the one that the pool shows, and has no other name.
    pub(crate) sole: bool,
}

impl Replaced {
    /// Comes after the rename, whether it has replaced the file or not.
    pub(crate) fn settle(self, op: &Op<'_>) {
        op.trash.settle_link(&self.branch, &self.linked);
    }
}

/// Keeps what a rename is about to replace: the copy that is shown, and others that differ from it. So at any time, the new name leads
/// to the old file or to the new one.
pub(crate) fn keep_replaced(
    op: &Op<'_>,
    old: &Side<'_, '_>,
    new: &Side<'_, '_>,
    kind: RenameKind,
) -> Vec<Replaced> {
    if !(op.config.trash.keep_overwritten() && old.copies.any() && new.copies.any()) {
        return Vec::new();
    }
    let Ok(shown) = resolve::choose::shown(op, Func::Getattr, &new.copies) else { return Vec::new() };
    let others = new.copies.iter().map(|(index, _)| index).filter(|index| *index != shown);
    keep_each(op, new, kind, std::iter::once(shown).chain(others).map(|index| (index, new)))
}

/// Keeps the first of these copies of the target of a rename, and others that differ from it. Each is on the branch of this index, in
/// the directory and under the name of its side.
pub(crate) fn keep_each<'s>(
    op: &Op<'_>,
    new: &Side<'_, '_>,
    kind: RenameKind,
    copies: impl Iterator<Item = (usize, &'s Side<'s, 's>)>,
) -> Vec<Replaced> {
    if !(matches!(kind, RenameKind::Replace | RenameKind::Whiteout) && op.config.trash.keep_overwritten()) {
        return Vec::new();
    }
    let Some(who) = keeper(op, &new.path, new.name, true) else { return Vec::new() };
    let (mut kept, mut first) = (Vec::new(), None);
    for (index, side) in copies {
        let (Some(attr), Some(dir)) = (side.copies.get(index), side.dirs.get(index)) else { continue };
        if first.is_some_and(|first| !differ(&new.copies, first, attr)) {
            continue;
        }
        let sole = first.is_none() && attr.nlink == 1;
        first = first.or(Some(attr));
        let branch = &op.branches.as_slice()[index];
        let (place, named) = ((dir, side.name), (new.path.as_slice(), new.name));
        let linked = branch.tries(|| op.trash.link(branch, place, named, attr, &who));
        kept.extend(linked.map(|linked| Replaced { branch: Arc::clone(branch), linked, sole }));
    }
    kept
}
