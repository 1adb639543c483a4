//! Changing the pool itself: its configuration, its branches and its connection to the kernel.

use crate::config::Config;
use crate::kernel::Kernel;
use crate::pool::Pool;
use canopy_base::ids::BranchId;
use canopy_branch::branch::access_times::AtimePolicy;
use canopy_branch::branch::{Branch, Branches};
use canopy_branch::relocate::{self, Reach, Unfinished};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Pool {
    /// Completes or undoes the moves of files between branches that a crash has interrupted. Called before the first
    /// request; costs a listing of each branch's root.
    pub fn recover(&self) {
        self.set_unfinished(relocate::recover_all(&self.branches.load()));
    }

    /// Sets what [`recover_all`](canopy_branch::relocate::recover_all) has left to do.
    pub fn set_unfinished(&self, left: Vec<Unfinished>) {
        *self.unfinished.write() = left;
    }

    /// The same for branches that are about to be in force, before their files are shown: for those that were not, and for
    /// moves that were waiting for them.
    fn recover_arriving(&self, branches: &Branches) {
        let before = self.branches.all();
        let is_new = |branch: &Branch| before.by_id(branch.id).is_none();
        if !branches.iter().any(|branch| is_new(branch)) {
            return;
        }
        let waiting: SmallVec<[BranchId; 4]> =
            self.unfinished.read().iter().map(|left| left.branch).collect();
        let reach = Reach { branches, in_force: &|branch| !is_new(branch) };
        let examined =
            |branch: &Branch| !branch.is_silent() && (is_new(branch) || waiting.contains(&branch.id));
        let left = relocate::recover(&reach, examined);
        let mut unfinished = self.unfinished.write();
        unfinished.retain(|old| branches.by_id(old.branch).is_some_and(|branch| !examined(branch)));
        unfinished.extend(left);
    }

    /// Returns what is the matter with moves to this branch that a crash has cut off and nothing has finished.
    pub fn unfinished_moves(&self, branch: BranchId) -> Vec<String> {
        let unfinished = self.unfinished.read();
        unfinished.iter().filter(|left| left.branch == branch).map(|left| left.why.clone()).collect()
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
    /// usable until they are closed. Moves that were cut off are finished on branches that come.
    pub fn set_branches(&self, branches: Branches) {
        self.recover_arriving(&branches);
        self.branches.store(branches);
        self.cursors.clear();
        self.replaced.clear();
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
