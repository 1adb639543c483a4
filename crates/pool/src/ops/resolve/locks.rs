//! Locks whose holders may wait for a branch. Acquiring them has a time limit.

use crate::node::Node;
use crate::paths::clones::CloneGuard;
use crate::pool::Pool;
use canopy_base::error::Result;
use canopy_base::ids::BranchId;
use canopy_base::path::PoolPath;
use rustix::io::Errno;

impl Pool {
    /// Takes the lock for cloning a directory to a branch.
    ///
    /// Errors: `ETIMEDOUT` if another holder is waiting for a branch.
    pub(crate) fn lock_for_clone(&self, path: &[u8], to: BranchId) -> Result<CloneGuard<'_>, Errno> {
        self.clone_locks.begin_clone(path, to, self.stuck_operations.lock_timeout()).ok_or(Errno::TIMEDOUT)
    }

    /// Takes the lock that keeps a directory from being cloned to another branch. Errors: as [`Pool::lock_for_clone`].
    pub(crate) fn lock_for_change(&self, path: PoolPath) -> Result<CloneGuard<'_>, Errno> {
        self.clone_locks.begin_change(path, self.stuck_operations.lock_timeout()).ok_or(Errno::TIMEDOUT)
    }

    /// Keeps a node from being cloned to another branch, if it is a directory with a name: no other request clones one
    /// that has been removed. Errors: as [`Pool::lock_for_clone`].
    pub(crate) fn keep_from_cloning(&self, node: &Node) -> Result<Option<CloneGuard<'_>>> {
        let path = if node.is_dir() { self.nodes.locate(node.id)?.1 } else { None };
        Ok(path.map(|path| self.lock_for_change(path)).transpose()?)
    }
}
