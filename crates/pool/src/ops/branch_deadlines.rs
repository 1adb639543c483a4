//! Branches that do not answer.
//!
//! A thread in a system call on a hung disk cannot be called back. So where a branch has a deadline (`branch-timeout`),
//! operations are left to threads that may be lost for a while (`canopy/src/serve/deputies.rs`), and who waits for them goes
//! on without. Here is what the pool has to know of it: how long to wait, whose branch does not answer, and whether
//! somebody is stuck who holds locks.
//!
//! A branch that does not answer is left out of the snapshot that operations take ([`Branches`]), so that nothing asks
//! it; only what cannot be found on the others is answered with `ETIMEDOUT` rather than `ENOENT`. Files that are
//! open on it are told by [`Pool::is_silent`].
//!
//! [`Branches`]: crate::branch::Branches

use crate::branch::Branch;
use crate::ids::{BranchId, HandleId, NodeId};
use crate::node::Node;
use crate::pool::Pool;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Pool {
    /// The configuration or the branches have changed.
    pub(crate) fn update_lock_timeout(&self) {
        let longest = self.deadlines().into_iter().map(|(_, deadline)| deadline).max().unwrap_or_default();
        let millis = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        self.stuck_operations.patience.store(millis, Ordering::Relaxed);
    }

    /// How long an operation may wait for branches; None where no branch has a deadline. One load.
    pub fn patience(&self) -> Option<Duration> {
        let patience = self.stuck_operations.patience.load(Ordering::Relaxed);
        (patience > 0).then(|| Duration::from_millis(patience))
    }

    /// The branches that have a deadline, and it.
    pub fn deadlines(&self) -> Vec<(Arc<Branch>, Duration)> {
        let timeout = self.config().branch_timeout;
        let all = self.branches.all();
        all.iter().filter_map(|branch| Some((branch.clone(), branch.deadline(timeout)?))).collect()
    }

    /// A branch does not answer, or does again. True when that is news.
    pub fn set_silent(&self, branch: BranchId, silent: bool) -> bool {
        let news = self.branches.set_silent(branch, silent);
        if news {
            self.dir_cache.clear();
            self.space.clear();
        }
        news
    }

    /// The branch of an open file, if it has a deadline.
    pub fn deadline_of(&self, handle: HandleId) -> Option<Arc<Branch>> {
        let branch = self.files.get(handle).ok()?.open.location().branch.clone();
        branch.deadline(self.config().branch_timeout).map(|_| branch)
    }

    /// Is this open, or pinned, on a branch that does not answer?
    pub fn is_silent(&self, node: NodeId, handle: Option<HandleId>) -> bool {
        let silent = |node: &Node| {
            let orphan = || node.orphan.lock().as_ref().is_some_and(|orphan| orphan.branch.is_silent());
            node.opened().map_or_else(orphan, |open| open.location().branch.is_silent())
        };
        match handle.map(|handle| self.files.get(handle)) {
            Some(Ok(handle)) => handle.open.location().branch.is_silent(),
            _ => self.nodes.get(node).is_ok_and(|node| silent(&node)),
        }
    }

    /// Nobody waits for an operation any more that may hold locks over names; or it has come to its end after all.
    pub fn count_stuck(&self, stuck: bool) {
        match stuck {
            true => self.stuck_operations.stuck.fetch_add(1, Ordering::Relaxed),
            false => self.stuck_operations.stuck.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Is a file being copied, so that it may take its time to do something with it?
    pub fn is_moving(&self) -> bool {
        self.stuck_operations.moving.load(Ordering::Relaxed) > 0
    }

    /// How many such operations there are.
    pub fn stuck(&self) -> usize {
        self.stuck_operations.stuck.load(Ordering::Relaxed)
    }
}
