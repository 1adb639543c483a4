//! Branches that do not answer.
//!
//! A thread in a system call on a hung disk cannot be interrupted. So if a branch has a deadline (`branch-timeout`),
//! the daemon answers requests in the place of such a thread after the deadline, and goes on without it. This module holds
//! the pool's share of that: how long to wait, which branches do not answer, and how many stuck operations may hold locks.
//!
//! A branch that does not answer is left out of the snapshot that operations take ([`Branches`]), so no operation uses
//! it. A name that is not found on the other branches gives `ETIMEDOUT` rather than `ENOENT`, except in a directory that the
//! branch is known to lack. `is_silent` tells
//! whether an open file is on such a branch.
//!
//! [`Branches`]: canopy_branch::branch::Branches

use crate::node::Node;
use crate::ops::owed;
use crate::pool::{Op, Pool};
use canopy_base::ids::{BranchId, HandleId, NodeId};
use canopy_branch::branch::Branch;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Returns how long an operation may wait for branches; `None` if no branch has a deadline. Costs one atomic load.
pub fn longest_deadline(pool: &Pool) -> Option<Duration> {
    let patience = pool.stuck_operations.patience.load(Ordering::Relaxed);
    (patience > 0).then(|| Duration::from_millis(patience))
}

/// Records that a branch does not answer, or answers again. Returns true if this is a change. One that may have missed changes
/// is to be [taken back](owed::take_back) instead.
pub fn set_silent(pool: &Pool, branch: BranchId, silent: bool) -> bool {
    if silent {
        owed::leave_out(pool, branch);
    }
    let Some([before, now]) = pool.set_silent(branch, silent) else { return false };
    pool.dir_cache.leave_out(&before, &now);
    pool.space.clear();
    true
}

/// Returns whether every branch answers. Costs one load.
pub fn all_answer(pool: &Pool) -> bool {
    !pool.any_silent()
}

/// Returns the id of the branch of an open file. Does not wait for a disk.
pub fn branch_id_of(pool: &Pool, handle: HandleId) -> Option<BranchId> {
    pool.files.look_at(handle, |handle| handle.open.location.read().branch.id)
}

/// Returns the branch of an open file, if that branch has a deadline. Does not wait for a disk.
pub fn deadline_of(pool: &Pool, handle: HandleId) -> Option<Arc<Branch>> {
    let branch = pool.files.look_at(handle, |handle| handle.open.location.read().branch.clone())?;
    branch.deadline(pool.config().branch_timeout).map(|_| branch)
}

/// Returns the branch that the node has a file open on, or the only one that has the directory, as far as is known.
/// Does not wait for a disk.
pub fn only_branch_of(pool: &Pool, node: NodeId) -> Option<BranchId> {
    let node = pool.nodes.get(node).ok()?;
    if let Some(open) = node.opened() {
        return Some(open.location().branch.id);
    }
    let op = Op::begin(pool);
    let opened = Arc::clone(&op.dir_cache.get(&node, &op.branches)?.opened);
    let mut holding = op.branches.iter().zip(&opened.list).filter(|(_, dir)| dir.is_some());
    let (first, _) = holding.next()?;
    (holding.next().is_none() && opened.error.is_none()).then_some(first.id)
}

/// Returns whether the handle or node has a file open on a branch that does not answer.
pub fn is_silent(pool: &Pool, node: NodeId, handle: Option<HandleId>) -> bool {
    let silent = |node: &Node| {
        let orphan = || node.orphan().is_some_and(|orphan| orphan.branch.is_silent());
        node.opened().map_or_else(orphan, |open| open.location().branch.is_silent())
    };
    match handle.map(|handle| pool.files.get(handle)) {
        Some(Ok(handle)) => handle.open.location().branch.is_silent(),
        _ => pool.nodes.get(node).is_ok_and(|node| silent(&node)),
    }
}

/// Counts an operation that may hold locks on paths and whose request no longer waits for it (`stuck`), or the end
/// of such an operation.
pub fn count_stuck(pool: &Pool, stuck: bool) {
    if stuck {
        pool.stuck_operations.stuck.fetch_add(1, Ordering::Relaxed)
    } else {
        pool.stuck_operations.stuck.fetch_sub(1, Ordering::Relaxed)
    };
}

/// Returns whether a file is being moved, so that an operation may legitimately take long.
pub fn is_moving(pool: &Pool) -> bool {
    pool.stuck_operations.moving.load(Ordering::Relaxed) > 0
}

/// Returns how many operations are stuck.
pub fn stuck(pool: &Pool) -> usize {
    pool.stuck_operations.stuck.load(Ordering::Relaxed)
}
