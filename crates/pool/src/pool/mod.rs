//! The pool, and what its operations act with.
//!
//! The settings and the branches may be replaced at any moment. Only [`Op`] reads them for an operation, once, so whatever an
//! operation calls decides by the same ones: it gets the `Op`, from which it can reach no others.

mod op;
mod state;

pub(crate) use op::Op;
pub(crate) use state::State;

use crate::config::Config;
use arc_swap::{ArcSwap, Guard};
use canopy_base::ids::BranchId;
use canopy_branch::branch::{Branch, Branches, LiveBranches};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Many directories as one tree. All operations take `&self` and may run in parallel.
pub struct Pool {
    config: ArcSwap<Config>,
    branches: LiveBranches,
    state: State,
}

impl std::ops::Deref for Pool {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl Pool {
    pub fn new(config: Config, branches: Branches) -> Self {
        let state = State::new(&config);
        let memory = config.memory;
        let branches = LiveBranches::new(branches);
        let pool = Pool { config: ArcSwap::from_pointee(config), branches, state };
        pool.bound_memory(memory);
        pool.update_lock_timeout();
        pool
    }

    /// Returns the current configuration. An operation has its own.
    pub fn config(&self) -> Guard<Arc<Config>> {
        self.config.load()
    }

    /// Replaces the configuration for operations that begin from now on.
    pub(crate) fn set_config(&self, config: Config) {
        self.config.store(Arc::new(config));
    }

    /// Returns all branches, including those that do not answer.
    pub(crate) fn all_branches(&self) -> Arc<Branches> {
        self.branches.all()
    }

    /// Replaces the branches for operations that begin, or take their place in the tree, from now on.
    pub(crate) fn put_branches(&self, branches: Branches) {
        self.branches.store(branches);
    }

    /// Leaves a branch out of what operations use, or takes it back. Returns what they used before and what they use now
    /// if that is a change.
    pub(crate) fn set_silent(&self, id: BranchId, silent: bool) -> Option<[Arc<Branches>; 2]> {
        let before = self.branches.load();
        self.branches.set_silent(id, silent).then(|| [before, self.branches.load()])
    }

    /// Returns whether a branch is missing whose names stay. Costs one load.
    pub fn any_missing(&self) -> bool {
        self.branches.any_missing()
    }

    pub(crate) fn any_silent(&self) -> bool {
        self.branches.any_silent()
    }

    /// Recomputes the lock timeout after a change of the configuration or the branches.
    pub(crate) fn update_lock_timeout(&self) {
        let longest = self.deadlines().into_iter().map(|(_, deadline)| deadline).max().unwrap_or_default();
        let millis = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        self.stuck_operations.patience.store(millis, Ordering::Relaxed);
    }

    /// Returns the branches that have a deadline, with their deadlines.
    pub fn deadlines(&self) -> Vec<(Arc<Branch>, Duration)> {
        let timeout = self.config().branch_timeout;
        let all = self.branches.all();
        all.iter().filter_map(|branch| Some((branch.clone(), branch.deadline(timeout)?))).collect()
    }
}
