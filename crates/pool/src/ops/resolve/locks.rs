//! Locks whose holders may wait for a branch, with the limit that this gives to the wait.

use crate::ids::BranchId;
use crate::lock::clones::UnderWay;
use crate::lock::tree::Held;
use crate::path::PoolPath;
use crate::pool::Pool;
use rustix::io::Errno;

impl Pool {
    /// A directory is brought onto a branch by the one who holds it.
    ///
    /// Errors: `ETIMEDOUT` when somebody who holds it waits for a branch.
    pub(crate) fn clone_alone(&self, path: &[u8], to: BranchId) -> Result<UnderWay<'_>, Errno> {
        self.cloning.clones(path, to, self.silence.while_waiting()).ok_or(Errno::TIMEDOUT)
    }

    /// A directory is not brought onto another branch meanwhile. Errors: as [`Pool::clone_alone`].
    pub(crate) fn not_cloning(&self, path: PoolPath) -> Result<UnderWay<'_>, Errno> {
        self.cloning.changes(path, self.silence.while_waiting()).ok_or(Errno::TIMEDOUT)
    }

    /// Directories are renamed by the one who holds it. Errors: as [`Pool::clone_alone`].
    pub(crate) fn tree_alone(&self) -> Result<Held<'_>, Errno> {
        let limit = self.silence.while_waiting();
        if limit.is_some() && self.silence.is_stuck() {
            return Err(Errno::TIMEDOUT);
        }
        self.tree.exclusive(limit).ok_or(Errno::TIMEDOUT)
    }
}
