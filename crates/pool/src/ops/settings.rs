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
    /// Completes or undoes the moves of files between branches that a crash has interrupted. Called before the first
    /// request; costs a listing of each branch's root.
    pub fn recover(&self) {
        relocate::recover(&self.branches.load());
    }

    /// Connects the pool to the kernel that it serves. `passthrough` is whether INIT has agreed on passthrough.
    pub fn connect(&self, kernel: Arc<dyn Kernel>, passthrough: bool) {
        self.kernel.store(Arc::new(kernel));
        self.no_passthrough.store(!passthrough, Ordering::Relaxed);
    }

    /// Changes the configuration for operations that begin from now on. Settings fixed at the mount (`writeback`,
    /// `nullrw`) must not change.
    pub fn reconfigure(&self, config: Config) {
        self.space.set_ttl(config.space_ttl.as_secs());
        self.bound_memory(config.memory);
        let renumbers = self.config().inode != config.inode;
        self.config.store(Arc::new(config));
        if renumbers {
            self.renumber();
        }
        drop(self.figures.changes());
        self.dir_cache.clear();
        self.update_lock_timeout();
    }

    /// Changes the branches. Operations in flight finish with the old branches, and files open on a removed branch stay
    /// usable until they are closed.
    pub fn set_branches(&self, branches: Branches) {
        self.branches.store(branches);
        self.cursors.clear();
        self.dir_cache.clear();
        self.update_lock_timeout();
        self.space.clear();
        self.figures.forget();
    }

    /// Discards the cached free space of all branches.
    pub fn forget_space(&self) {
        self.space.clear();
        drop(self.figures.changes());
    }

    /// Sets how reads update access times on a branch.
    pub fn set_atime_policy(&self, branch: &Branch, reads: Option<AtimePolicy>) {
        branch.times.set(reads);
        // Idle files were opened under the old policy.
        self.dir_cache.idle_files.clear();
    }

    /// Returns the current branches, including those that do not answer.
    pub fn branches(&self) -> Arc<Branches> {
        self.branches.all()
    }

    /// Returns whether files on this branch can use passthrough. False once the kernel has refused it.
    pub fn passes_through(&self, branch: BranchId) -> bool {
        !self.no_passthrough.load(Ordering::Relaxed) && !self.stacked.read().contains(&branch)
    }

    /// Returns the number of entries in each table that grows with use, for leak tests.
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

    /// Returns how many nodes the kernel holds and how many files are open, for leak tests.
    pub fn counts(&self) -> (usize, usize) {
        (self.nodes.len(), self.files.len())
    }
}
