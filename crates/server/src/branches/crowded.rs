//! Branches that so many requests are stuck in that further ones wait in line, without a worker.
//!
//! Each stuck request occupies a worker, and the number of workers is limited. So that the clients of one branch cannot
//! take all of them, each branch that requests wait for gets a share. Only requests that certainly need a branch wait in
//! its line: those on files that are open there, and on directories that no other branch has.

use crate::lock_rank as rank;
use crate::translate::operation::{Changes, Operation, Waits};
use canopy_base::ids::{HandleId, NodeId};
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::BranchId;
use canopy_branch::branch::health::contact::Waiting;
use canopy_fuse::Request;
use canopy_fuse::transport::Limits;
use canopy_pool::Pool;
use canopy_pool::ops;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub(crate) struct Crowded {
    /// Whether any branch is crowded.
    any: AtomicBool,
    branches: Mutex<HashSet<BranchId>, rank::Leaf>,
}

/// Returns the number of a branch's line.
pub(crate) fn line_of(branch: BranchId) -> u64 {
    branch.0.into()
}

/// Returns how many requests may be stuck in a branch if requests wait for this many branches, and `bound` can be stuck at
/// once. The shares of all of them leave room for another one.
fn share(bound: usize, branches: usize) -> usize {
    (bound / (branches + 1)).max(1)
}

impl Crowded {
    /// Returns whether any branch is crowded.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Updates which branches are crowded, and returns the limits of all lines. One stays crowded until half of its share is
    /// free, so that its line empties. `bound`: how many requests can be stuck at once while others are served. The line of a
    /// branch that `is_silent` has no limit, because its requests are refused at once.
    pub(super) fn update(
        &self,
        waiting: &HashMap<BranchId, Waiting>,
        bound: usize,
        is_silent: impl Fn(BranchId) -> bool,
    ) -> Limits {
        let share = share(bound, waiting.len().max(1));
        // Those that are under way may be counted twice. So a line keeps between half of the share and all of it busy.
        let limit = |(id, waiting): (&BranchId, &Waiting)| {
            let limit = if is_silent(*id) { usize::MAX } else { share.saturating_sub(waiting.requests) };
            (line_of(*id), limit)
        };
        let lines = waiting.iter().map(limit).collect();
        let mut branches = self.branches.lock();
        branches.retain(|id| waiting.get(id).is_some_and(|waiting| waiting.requests > share / 2));
        branches.extend(waiting.iter().filter(|(_, waiting)| waiting.requests >= share).map(|(id, _)| *id));
        let any = !branches.is_empty();
        self.any.store(any, Ordering::Relaxed);
        Limits { any, usual: share, lines }
    }

    /// Returns the crowded branch that a request certainly needs. Costs one atomic load while there is none.
    pub(crate) fn needed(&self, pool: &Pool, request: &Request<'_>) -> Option<BranchId> {
        if !self.any() {
            return None;
        }
        let operation = Operation::of(request);
        let branch = match (operation.waits, operation.changes) {
            (Waits::Names { other: Some(_), .. } | Waits::File { other: Some(_), .. }, _)
            // What is new may go to another branch.
            | (_, Changes::Makes(_) | Changes::Renames { .. })
            | (Waits::Nothing | Waits::AllBranches, _) => None,
            (Waits::Names { handle: Some(handle), .. } | Waits::File { handle, .. } | Waits::Close { handle }, _) => {
                ops::branch_deadlines::branch_id_of(pool, HandleId(handle))
            }
            (Waits::Names { handle: None, .. }, _) => ops::branch_deadlines::only_branch_of(pool, NodeId(request.header.node.0)),
        }?;
        self.branches.lock().contains(&branch).then_some(branch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Returns which branches are crowded, and the limits of these lines, when so many requests are stuck in each.
    fn update(crowded: &Crowded, bound: usize, requests: &[(u32, usize)]) -> (Vec<u32>, Vec<(u64, usize)>) {
        let waiting = |(id, requests): &(u32, usize)| {
            (BranchId(*id), Waiting { requests: *requests, since: Instant::now() })
        };
        let limits = crowded.update(&requests.iter().map(waiting).collect(), bound, |branch| branch.0 == 9);
        let mut ids: Vec<u32> = crowded.branches.lock().iter().map(|id| id.0).collect();
        ids.sort_unstable();
        assert_eq!((crowded.any(), limits.any), (!ids.is_empty(), !ids.is_empty()));
        assert_eq!(limits.usual, share(bound, requests.len().max(1)));
        let mut lines: Vec<(u64, usize)> = limits.lines.into_iter().collect();
        lines.sort_unstable();
        (ids, lines)
    }

    #[test]
    fn a_branch_is_crowded_until_half_of_its_share_is_free() {
        let state = Crowded::default();
        let crowded = |bound, requests: &[_]| update(&state, bound, requests).0;
        assert_eq!(crowded(usize::MAX, &[(1, 100_000)]), [0; 0]);
        for (requests, expected) in [(127, false), (128, true), (65, true), (64, false), (127, false)] {
            assert_eq!(crowded(256, &[(1, requests)]), [1; 1][..usize::from(expected)], "{requests}");
        }
        // Two branches that hang leave workers for others, too.
        assert_eq!(crowded(256, &[(1, 85), (2, 84)]), [1]);
        assert_eq!(crowded(256, &[(1, 43), (2, 85), (3, 1)]), [1, 2]);
        assert_eq!(crowded(256, &[]), [0; 0]);
        assert_eq!(crowded(1, &[(1, 1)]), [1]);
    }

    #[test]
    fn a_line_may_have_what_is_left_of_its_branchs_share() {
        let state = Crowded::default();
        assert_eq!(update(&state, 256, &[]).1, []);
        assert_eq!(update(&state, 256, &[(1, 28)]).1, [(1, 100)]);
        assert_eq!(update(&state, 256, &[(1, 128)]).1, [(1, 0)]);
        assert_eq!(update(&state, 256, &[(1, 200), (9, 200)]).1, [(1, 0), (9, usize::MAX)]);
    }
}
