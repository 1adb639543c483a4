//! Taking one of several equal copies of a file off its branch: the end of a move to a branch that has the file already.

use super::make_room::{Movable, Reason};
use crate::config::Func;
use crate::dir::merged::MergedDir;
use crate::dir::symlinks::Symlinks;
use crate::node::Node;
use crate::ops::resolve;
use crate::paths::Uses;
use crate::pool::Op;
use canopy_base::error::Error;
use canopy_base::ids::NodeId;
use canopy_base::path::join;
use canopy_branch::branch::Branch;
use canopy_branch::fs::{beneath, stat};
use canopy_branch::relocate::Losses;
use canopy_branch::relocate::file::{can_leave, is_same};
use canopy_branch::relocate::journal::Original;
use canopy_branch::relocate::lease::{LeasedFile, leased_by_another, readable};
use canopy_branch::relocate::links;
use canopy_policy::Mode;
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Returns the file that a branch holds under a name, as one that goes, and the branch of the copy that the pool shows then.
/// Nobody has compared them yet.
///
/// Errors: `ESTALE` unless another branch that the pool relies on holds it, up to date as far as is known; `EEXIST` if the
/// other copy has not all of its names, or looks different; `ENOTUNIQ` if a rule wants as many copies for one of its names;
/// `EMLINK` when not all of its names can be found; `ENOLCK` when a process holds a lease on the other copy.
pub(super) fn one_of_several(
    op: &mut Op<'_>,
    node: &Node,
    (dir, name): (NodeId, &[u8]),
    source: &Arc<Branch>,
) -> Result<(Movable, Arc<Branch>), Errno> {
    let from = op.branches.index_of(source.id).ok_or(Errno::ROFS)?;
    let path = op.nodes.dir_path(dir).map_err(Error::errno)?;
    let (attr, to, other, disks) = {
        let _held = op.using(Uses::node(node.id).and(Uses::name(dir, name)));
        let dirs = MergedDir::open(Symlinks::NEVER, &op.branches, &path);
        let copies = resolve::generations::copies(op, &dirs, name);
        let well = |index: usize| op.branches.as_slice()[index].health.is_well();
        let mut rest = copies.only(|index| index != from && copies.is_current(index) && well(index));
        // So the same is chosen as in lookups.
        rest.current.clone_from(&copies.current);
        if !copies.is_current(from) || !rest.any() {
            return Err(Errno::STALE);
        }
        let to = resolve::choose::shown(op, Func::Getattr, &rest).map_err(Error::errno)?;
        let (own, other) = copies.get(from).zip(copies.get(to)).ok_or(Errno::STALE)?;
        let disks: BTreeSet<u64> = rest.iter().map(|(_, copy)| copy.dev).collect();
        (*own, op.branches.as_slice()[to].clone(), *other, disks.len())
    };
    if !can_leave(&attr) {
        return Err(Errno::PERM);
    }
    if to.mode == Mode::Ro {
        // The journal is on the branch that keeps the file.
        return Err(Errno::ROFS);
    }
    let full = join(&path, name);
    let known = op.nodes.names(node.id).map(|(dir, name)| join(&dir, &name)).chain([full.clone()]);
    let names = source.reads(|| links::all_names(source.root(), &attr, known))?;
    let config = &op.config;
    if names.iter().any(|name| config.placement.copies(name) > disks) {
        return Err(Errno::NOTUNIQ);
    }
    let pinned = to.reads(|| beneath::open(to.root(), &full, OFlags::PATH | OFlags::NOFOLLOW))?;
    let copy = to.reads(|| readable(pinned));
    let copy = copy.map_err(leased_by_another)?;
    let is_there = to.reads(|| stat::of(copy.as_fd()))?.key() == other.key()
        && is_same(&attr, &other)
        && attr.nlink == other.nlink
        && names.iter().all(|name| links::holds(to.root(), name, &other));
    if !is_there {
        return Err(Errno::EXIST);
    }
    let (source, old_on, there) = (source.clone(), SmallVec::new(), Some(LeasedFile::hold(copy)?));
    Ok((
        Movable {
            source,
            attr,
            names,
            original: Original::Goes,
            old_on,
            there,
            reason: Reason::Asked,
            losses: Losses::Refused,
        },
        to,
    ))
}
