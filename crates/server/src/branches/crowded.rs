//! Branches that so many requests are stuck in that further ones wait in line, without a worker.
//!
//! Each stuck request occupies a worker, and the number of workers is limited. So that the clients of one branch cannot
//! take all of them, each branch that requests wait for gets a share. Only requests that certainly need a branch wait in
//! its line: those on files that are open there, and on directories that no other branch has.

use super::stalls::{Stalls, Waiting};
use crate::lock_rank as rank;
use crate::translate::operation::{Changes, Operation, Waits};
use canopy_base::ids::{HandleId, NodeId};
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::BranchId;
use canopy_fuse::Request;
use canopy_pool::Pool;
use canopy_pool::ops;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) struct Crowded {
    /// How many requests can be stuck at once.
    bound: AtomicUsize,
    /// Whether any branch is crowded.
    any: AtomicBool,
    state: Mutex<State, rank::Crowded>,
}

#[derive(Default)]
struct State {
    branches: HashSet<BranchId>,
    /// How many requests were in the lines of branches, and when that was.
    in_line: HashMap<BranchId, (usize, Instant)>,
}

/// The number of requests in a line is reported this often at least.
const REPORTED_WITHIN: Duration = Duration::from_millis(500);

impl Default for Crowded {
    fn default() -> Crowded {
        Crowded { bound: AtomicUsize::new(usize::MAX), any: AtomicBool::new(false), state: Mutex::default() }
    }
}

impl Crowded {
    /// Returns whether any branch is crowded. `bound`: how many requests can be stuck at once while others are served.
    pub(crate) fn any(&self, bound: usize) -> bool {
        self.bound.store(bound, Ordering::Relaxed);
        self.any.load(Ordering::Relaxed)
    }

    /// Returns how many requests may be stuck in a branch if requests wait for this many branches. The shares of all of
    /// them leave room for another one.
    fn share(&self, branches: usize) -> usize {
        (self.bound.load(Ordering::Relaxed) / (branches + 1)).max(1)
    }

    /// Updates which branches are crowded. One stays crowded until half of its share is free, so that its line empties.
    pub(super) fn update(&self, waiting: &HashMap<BranchId, Waiting>) {
        let share = self.share(waiting.len());
        let State { branches, in_line } = &mut *self.state.lock();
        branches.retain(|id| waiting.get(id).is_some_and(|waiting| waiting.requests > share / 2));
        branches.extend(waiting.iter().filter(|(_, waiting)| waiting.requests >= share).map(|(id, _)| *id));
        in_line.retain(|_, (_, reported)| reported.elapsed() < REPORTED_WITHIN);
        self.any.store(!branches.is_empty(), Ordering::Relaxed);
    }

    /// Records how many requests are in the line of a branch.
    pub(crate) fn in_line(&self, branch: BranchId, requests: usize) {
        self.state.lock().in_line.insert(branch, (requests, Instant::now()));
    }

    /// Returns how many requests are in the line of a branch.
    pub(super) fn count_in_line(&self, branch: BranchId) -> usize {
        self.state.lock().in_line.get(&branch).map_or(0, |(requests, _)| *requests)
    }

    /// Returns the crowded branch that a request certainly needs. Costs one atomic load while there is none.
    pub(crate) fn needed(&self, pool: &Pool, request: &Request<'_>) -> Option<BranchId> {
        if !self.any.load(Ordering::Relaxed) {
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
        self.state.lock().branches.contains(&branch).then_some(branch)
    }

    /// Returns whether another request of a branch's line may go on while so many of that line are under way.
    pub(crate) fn admits(&self, stalls: &Stalls, branch: BranchId, under_way: usize) -> bool {
        let waiting = stalls.waiting();
        let stuck = waiting.get(&branch).map_or(0, |waiting| waiting.requests);
        // Those that are under way may be counted twice. So a line keeps between half of the share and all of it busy.
        stuck + under_way < self.share(waiting.len().max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowded(crowded: &Crowded, requests: &[(u32, usize)]) -> Vec<u32> {
        let waiting = |(id, requests): &(u32, usize)| {
            (BranchId(*id), Waiting { requests: *requests, since: Instant::now() })
        };
        crowded.update(&requests.iter().map(waiting).collect());
        let mut ids: Vec<u32> = crowded.state.lock().branches.iter().map(|id| id.0).collect();
        ids.sort_unstable();
        assert_eq!(crowded.any.load(Ordering::Relaxed), !ids.is_empty());
        ids
    }

    #[test]
    fn a_branch_is_crowded_until_half_of_its_share_is_free() {
        let state = Crowded::default();
        assert_eq!(crowded(&state, &[(1, 100_000)]), [0; 0]);
        assert!(!state.any(256));
        for (requests, expected) in [(127, false), (128, true), (65, true), (64, false), (127, false)] {
            assert_eq!(crowded(&state, &[(1, requests)]), [1; 1][..usize::from(expected)], "{requests}");
        }
        // Two branches that hang leave workers for others, too.
        assert_eq!(crowded(&state, &[(1, 85), (2, 84)]), [1]);
        assert_eq!(crowded(&state, &[(1, 43), (2, 85), (3, 1)]), [1, 2]);
        assert_eq!(crowded(&state, &[]), [0; 0]);
        assert!(!state.any(1));
        assert_eq!(crowded(&state, &[(1, 1)]), [1]);
    }
}
