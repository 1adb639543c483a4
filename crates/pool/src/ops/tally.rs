//! What the pool counts, for reports.

use crate::pool::Pool;
use std::sync::atomic::Ordering;

/// What is known and open now, and what has moved since the start.
#[derive(Clone, Copy, Debug)]
pub struct PoolTally {
    /// Files and directories that the kernel knows.
    pub known_nodes: usize,
    /// The kernel is asked to forget what exceeds this number (`cache.memory`).
    pub known_nodes_limit: usize,
    /// The kernel's handles.
    pub open_files: usize,
    /// Directories whose names are known by branch, and their names.
    pub cached_dirs: usize,
    pub cached_names: usize,
    /// Files that have moved to another branch, and the space that they take.
    pub moved_files: u64,
    pub moved_bytes: u64,
    /// Files that are being moved or copied to another branch.
    pub moves_under_way: usize,
}

/// Returns what the pool has counted. Touches no branch and waits for none.
pub fn tally(pool: &Pool) -> PoolTally {
    let (cached_dirs, cached_names) = pool.dir_cache.sizes();
    PoolTally {
        known_nodes: pool.nodes.tally.known.load(Ordering::Relaxed),
        known_nodes_limit: pool.nodes.bound(),
        open_files: pool.files.len(),
        cached_dirs,
        cached_names,
        moved_files: pool.moved.files(),
        moved_bytes: pool.moved.bytes(),
        moves_under_way: pool.stuck_operations.moving.load(Ordering::Relaxed),
    }
}
