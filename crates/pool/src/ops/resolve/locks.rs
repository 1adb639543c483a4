//! Locks whose holders may wait for a branch. Acquiring them has a time limit.

use crate::node::Node;
use crate::paths::clones::CloneGuard;
use crate::pool::Pool;
use canopy_base::error::Result;
use canopy_base::ids::BranchId;
use canopy_base::path::PoolPath;
use rustix::io::Errno;

/// Takes the lock for cloning a directory to a branch.
///
/// Errors: `ETIMEDOUT` if another holder is waiting for a branch.
pub(crate) fn lock_for_clone<'p>(pool: &'p Pool, path: &[u8], to: BranchId) -> Result<CloneGuard<'p>, Errno> {
    pool.clone_locks.begin_clone(path, to, pool.stuck_operations.lock_timeout()).ok_or(Errno::TIMEDOUT)
}

/// Takes the lock that keeps a directory from being cloned to another branch. Errors: as `lock_for_clone`.
pub(crate) fn lock_for_change<'p>(pool: &'p Pool, path: PoolPath) -> Result<CloneGuard<'p>, Errno> {
    pool.clone_locks.begin_change(path, pool.stuck_operations.lock_timeout()).ok_or(Errno::TIMEDOUT)
}

/// Keeps a node from being cloned to another branch, if it is a directory with a name: no other request clones one
/// that has been removed. Errors: as `lock_for_clone`.
pub(crate) fn keep_from_cloning<'p>(pool: &'p Pool, node: &Node) -> Result<Option<CloneGuard<'p>>> {
    let path = if node.is_dir() { pool.nodes.locate(node.id)?.1 } else { None };
    Ok(path.map(|path| lock_for_change(pool, path)).transpose()?)
}
