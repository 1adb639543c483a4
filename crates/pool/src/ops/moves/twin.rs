//! Copies from before a rule, by whatever made them: what two branches hold under all names of a file becomes copies of one another
//! once their contents have been compared.

use super::make_room::{Movable, Reason};
use crate::node::Node;
use crate::ops::resolve;
use crate::paths::Uses;
use crate::pool::Op;
use canopy_base::error::Error;
use canopy_base::path::join;
use canopy_branch::branch::Branch;
use canopy_branch::fs::{beneath, generation, stat};
use canopy_branch::relocate::file::{can_leave, is_same};
use canopy_branch::relocate::journal::Original;
use canopy_branch::relocate::lease::{LeasedFile, leased_by_another, readable};
use canopy_branch::relocate::{Losses, links};
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::Arc;

/// Returns the node's file with what `target` holds in its place and no number tells the age of. Nobody has compared them yet.
/// `None` if there is nothing like it.
///
/// Errors: `EEXIST` if that has not all of the file's names, or looks different; `EPERM` for a file that may not be changed; `EMLINK`
/// when not all of its names can be found; `ENOLCK` when a process holds a lease on the other one.
pub(super) fn twin(op: &mut Op<'_>, node: &Arc<Node>, target: &Branch) -> Result<Option<Movable>, Errno> {
    if !resolve::generations::knows_copies(op) {
        return Ok(None);
    }
    let own = {
        let _held = op.using(Uses::node(node.id));
        resolve::places::primary(op, node).map_err(Error::errno)?
    };
    let known = op.nodes.names(node.id).map(|(dir, name)| join(&dir, &name));
    let names = own.branch.reads(|| links::all_names(own.branch.root(), &own.attr, known))?;
    let Some(first) = names.first().filter(|_| own.branch.id != target.id) else { return Ok(None) };
    let open = || beneath::open(target.root(), first, OFlags::PATH | OFlags::NOFOLLOW);
    let other = match target.reads(open) {
        Err(errno) if beneath::is_absent(errno) => return Ok(None),
        other => other?,
    };
    let there = target.reads(|| stat::of(other.as_fd()))?;
    if !there.is_regular() || target.reads(|| generation::read(other.as_fd()))?.is_some() {
        return Ok(None);
    }
    let is_there = is_same(&own.attr, &there)
        && own.attr.nlink == there.nlink
        && names.iter().all(|name| links::holds(target.root(), name, &there));
    if !is_there {
        return Err(Errno::EXIST);
    }
    if !can_leave(&own.attr) || !can_leave(&there) {
        return Err(Errno::PERM);
    }
    let other = LeasedFile::hold(readable(other).map_err(leased_by_another)?).map_err(leased_by_another)?;
    Ok(Some(Movable {
        source: own.branch,
        attr: own.attr,
        names,
        original: Original::Stays,
        old_on: SmallVec::new(),
        there: Some(other),
        reason: Reason::Asked,
        losses: Losses::Refused,
    }))
}

/// Says of two files that hold the same that they are copies of one another. The caller holds leases on both, and nobody writes
/// them through the pool.
///
/// The one that is shown is first. If it ends in between, the other counts as an unknown file, as before, and can be compared again.
pub(super) fn join_copies(op: &Op<'_>, shown: &LeasedFile, twin: &LeasedFile) -> Result<(), Errno> {
    shown.check().and_then(|()| twin.check())?;
    resolve::generations::share_generation(op, shown.as_fd())?;
    let Some(number) = generation::read(shown.as_fd())? else { return Ok(()) };
    let _right = op.rights.to_copy([stat::of(twin.as_fd())?.key()]);
    generation::put(twin.as_fd(), number)
}
