//! Changing the pool itself: its configuration, its branches and its connection to the kernel.

use crate::config::Config;
use crate::kernel::Kernel;
use crate::ops::owed;
use crate::ops::resolve;
use crate::pool::{Op, Pool};
use canopy_base::ids::BranchId;
use canopy_branch::branch::access_times::AtimePolicy;
use canopy_branch::branch::{Branch, Branches};
use canopy_branch::relocate::{self, Reach, Unfinished};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Completes or undoes the moves of files between branches that a crash has interrupted. Called before the first
/// request; costs a listing of each branch's root. Brings those up to date that were away.
pub fn recover(pool: &Pool) {
    set_unfinished(pool, relocate::recover_all(&Op::begin(pool).branches));
    owed::follow_rules(pool);
}

/// Sets what [`recover_all`](canopy_branch::relocate::recover_all) has left to do.
pub fn set_unfinished(pool: &Pool, left: Vec<Unfinished>) {
    *pool.unfinished.write() = left;
}

/// The same for branches that are about to be in force, before their files are shown: for those that were not, and for
/// moves that were waiting for them.
fn recover_arriving(pool: &Pool, branches: &Branches) {
    let before = pool.all_branches();
    let is_new = |branch: &Branch| before.by_id(branch.id).is_none();
    if !branches.iter().any(|branch| is_new(branch)) {
        return;
    }
    let waiting: SmallVec<[BranchId; 4]> = pool.unfinished.read().iter().map(|left| left.branch).collect();
    let reach = Reach { branches, in_force: &|branch| !is_new(branch) };
    let examined = |branch: &Branch| !branch.is_silent() && (is_new(branch) || waiting.contains(&branch.id));
    let left = relocate::recover(&reach, examined);
    let mut unfinished = pool.unfinished.write();
    unfinished.retain(|old| branches.by_id(old.branch).is_some_and(|branch| !examined(branch)));
    unfinished.extend(left);
}

/// Returns what is the matter with moves to this branch that a crash has cut off and nothing has finished.
pub fn unfinished_moves(pool: &Pool, branch: BranchId) -> Vec<String> {
    let unfinished = pool.unfinished.read();
    unfinished.iter().filter(|left| left.branch == branch).map(|left| left.why.clone()).collect()
}

/// Returns how many copies on a branch could not be read and are still to be made again.
pub fn unreadable_copies(pool: &Pool, branch: BranchId) -> usize {
    pool.unreadable.count(branch)
}

/// Connects the pool to the kernel that it serves. `passthrough` is whether INIT has agreed on passthrough.
pub fn connect(pool: &Pool, kernel: Arc<dyn Kernel>, passthrough: bool) {
    pool.kernel.store(Arc::new(kernel));
    pool.no_passthrough.store(!passthrough, Ordering::Relaxed);
}

/// Changes the configuration for operations that begin from now on. Settings fixed at the mount (`writeback`,
/// `nullrw`) must not change.
pub fn reconfigure(pool: &Pool, config: Config) {
    pool.space.set_ttl(config.space_ttl.as_secs());
    pool.bound_memory(config.memory);
    let renumbers = pool.config().inode != config.inode;
    let knew_copies = pool.config().placement.knows_copies();
    pool.set_config(config);
    if knew_copies != pool.config().placement.knows_copies() {
        owed::follow_rules(pool);
    }
    if renumbers {
        resolve::dir_number::renumber(&Op::begin(pool));
    }
    drop(pool.figures.changes());
    pool.dir_cache.clear();
    pool.catalogue.clear();
    pool.update_lock_timeout();
}

/// Changes the branches. Operations in flight finish with the old branches, and files open on a removed branch stay
/// usable until they are closed. Moves that were cut off are finished on branches that come, and where rules want copies, they
/// are brought up to date before their files are shown. One that cannot be stays out.
pub fn set_branches(pool: &Pool, branches: Branches) {
    recover_arriving(pool, &branches);
    owed::put_in_force(pool, branches);
    pool.cursors.clear();
    pool.replaced.clear();
    pool.dir_cache.clear();
    pool.read_cache.give_up_originals();
    pool.catalogue.clear();
    pool.update_lock_timeout();
    pool.space.clear();
    pool.figures.forget();
}

/// Discards the cached free space of all branches.
pub fn forget_space(pool: &Pool) {
    pool.space.clear();
    drop(pool.figures.changes());
}

/// Sets how reads update access times on a branch.
pub fn set_atime_policy(pool: &Pool, branch: &Branch, reads: Option<AtimePolicy>) {
    branch.times.set(reads);
    // Idle files were opened under the old policy.
    pool.dir_cache.idle_files.clear();
}

/// Returns the current branches, including those that do not answer.
pub fn branches(pool: &Pool) -> Arc<Branches> {
    pool.all_branches()
}

/// Returns whether files on this branch can use passthrough. False once the kernel has refused it.
pub fn passes_through(pool: &Pool, branch: BranchId) -> bool {
    !pool.no_passthrough.load(Ordering::Relaxed) && !pool.stacked.read().contains(&branch)
}

/// Returns the number of entries in each table that grows with use, for leak tests.
pub fn sizes(pool: &Pool) -> Vec<(&'static str, usize)> {
    let (_, files) = counts(pool);
    let others = [
        ("open files", files),
        ("remembered directories", pool.dir_cache.order_len()),
        ("threads asked to look again", pool.pending_cow.len()),
        ("threads sent to another node", pool.pending_detach.len()),
    ];
    pool.nodes.sizes().into_iter().chain(others).collect()
}

/// Returns how many nodes the kernel holds and how many files are open, for leak tests.
pub fn counts(pool: &Pool) -> (usize, usize) {
    (pool.nodes.len(), pool.files.len())
}
