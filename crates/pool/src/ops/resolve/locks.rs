//! Locks whose holders may wait for a branch. Acquiring them has a time limit.

use crate::node::Node;
use crate::paths::clones::CloneGuard;
use crate::pool::Op;
use canopy_base::error::Result;
use canopy_base::ids::BranchId;
use canopy_base::path::PoolPath;
use rustix::io::Errno;

/// Takes the lock for cloning a directory to a branch.
///
/// Errors: `ETIMEDOUT` if another holder is waiting for a branch.
pub(crate) fn lock_for_clone<'p>(op: &'p Op<'_>, path: &[u8], to: BranchId) -> Result<CloneGuard<'p>, Errno> {
    op.clone_locks.begin_clone(path, to, op.stuck_operations.lock_timeout()).ok_or(Errno::TIMEDOUT)
}

/// Takes the lock that keeps a directory from being cloned to another branch. Errors: as `lock_for_clone`.
pub(crate) fn lock_for_change<'p>(op: &'p Op<'_>, path: PoolPath) -> Result<CloneGuard<'p>, Errno> {
    op.clone_locks.begin_change(path, op.stuck_operations.lock_timeout()).ok_or(Errno::TIMEDOUT)
}

/// Keeps a node from being cloned to another branch, if it is a directory with a name: no other request clones one
/// that has been removed. Errors: as `lock_for_clone`.
pub(crate) fn keep_from_cloning<'p>(op: &'p Op<'_>, node: &Node) -> Result<Option<CloneGuard<'p>>> {
    let path = if node.is_dir() { op.nodes.locate(node.id)?.1 } else { None };
    Ok(path.map(|path| lock_for_change(op, path)).transpose()?)
}
