//! Changing the pool itself: its configuration, its branches and its connection to the kernel.

use crate::branch::access_times::AtimePolicy;
use crate::branch::{Branch, Branches};
use crate::config::Config;
use crate::ids::BranchId;
use crate::kernel::Kernel;
use crate::pool::Pool;
use crate::relocate;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Pool {
    /// Finishes what a crash has cut short on the branches: files on their way from one to another. Before anybody
    /// uses the pool; costs a listing of each branch's root.
    pub fn recover(&self) {
        relocate::recover(&self.branches.load());
    }

    /// Connects the pool to the kernel that it will serve. `passthrough` tells what INIT agreed on.
    pub fn connect(&self, kernel: Arc<dyn Kernel>, passthrough: bool) {
        self.kernel.store(Arc::new(kernel));
        self.no_passthrough.store(!passthrough, Ordering::Relaxed);
    }

    /// Changes the configuration, for operations that begin from now on. What was agreed at the mount
    /// (`writeback`, `nullrw`) must not change.
    pub fn reconfigure(&self, config: Config) {
        self.space.set_ttl(config.space_ttl.as_secs());
        self.config.store(Arc::new(config));
        self.dir_cache.clear();
        self.update_lock_timeout();
    }

    /// Changes the branches. Operations under way finish on those they began with, and files open on a
    /// branch that is taken away stay usable until they are closed.
    pub fn set_branches(&self, branches: Branches) {
        self.branches.store(branches);
        self.cursors.clear();
        self.dir_cache.clear();
        self.update_lock_timeout();
        self.space.clear();
    }

    /// Has the branches asked for their space again, whatever is remembered of it.
    pub fn forget_space(&self) {
        self.space.clear();
    }

    /// Has a branch read so from now on.
    pub fn set_atime_policy(&self, branch: &Branch, reads: Option<AtimePolicy>) {
        branch.times.set(reads);
        // What nobody has open was opened as it was before.
        self.dir_cache.idle_files.clear();
    }

    /// The branches as they are now, also those that do not answer.
    pub fn branches(&self) -> Arc<Branches> {
        self.branches.all()
    }

    /// Can data of files on this branch be passed through? False once the kernel has refused it.
    pub fn passes_through(&self, branch: BranchId) -> bool {
        !self.no_passthrough.load(Ordering::Relaxed) && !self.stacked.read().contains(&branch)
    }

    /// How many entries there are in each table that grows with use: for leak tests.
    pub fn sizes(&self) -> Vec<(&'static str, usize)> {
        let (_, files) = self.counts();
        let others = [
            ("open files", files),
            ("remembered directories", self.dir_cache.order_len()),
            ("threads asked to look again", self.pending_cow.len()),
            ("threads sent to another node", self.pending_detach.len()),
        ];
        self.nodes.sizes().into_iter().chain(others).collect()
    }

    /// How many nodes the kernel holds, and how many files are open: for leak tests.
    pub fn counts(&self) -> (usize, usize) {
        (self.nodes.len(), self.files.len())
    }
}
