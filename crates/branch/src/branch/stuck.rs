//! Whether operations wait for branches that do not answer, and for how long.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

#[derive(Default)]
pub struct StuckOperations {
    /// The longest deadline of any branch, in milliseconds; 0 if none has a deadline.
    pub patience: AtomicU64,
    /// Operations that still wait for a branch although their requests have been answered; they may hold locks on
    /// paths.
    pub stuck: AtomicUsize,
    /// Files that are being moved or copied to another branch.
    pub moving: AtomicUsize,
}

/// Counts a file as being copied until dropped: a copy takes long without being stuck.
pub struct CopyInProgress<'a>(&'a StuckOperations);

impl Drop for CopyInProgress<'_> {
    fn drop(&mut self) {
        self.0.moving.fetch_sub(1, Ordering::Relaxed);
    }
}

impl StuckOperations {
    /// Returns how long to wait for a lock whose holder may be waiting for a branch; `None` if no branch has a
    /// deadline. Shorter than the deadline, so that a thread that waits for the lock is not mistaken for one that
    /// waits for a branch.
    pub fn lock_timeout(&self) -> Option<Duration> {
        let patience = self.patience.load(Ordering::Relaxed);
        (patience > 0).then(|| Duration::from_millis(patience / 2))
    }

    pub fn moving(&self) -> CopyInProgress<'_> {
        self.moving.fetch_add(1, Ordering::Relaxed);
        CopyInProgress(self)
    }
}
