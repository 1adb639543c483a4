//! Whether operations wait for branches that do not answer.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct StuckOperations {
    /// The longest deadline of any branch, in milliseconds; 0 without any.
    pub(crate) patience: AtomicU64,
    /// Operations whose callers have gone on without, and which may hold locks over names.
    pub(crate) stuck: AtomicUsize,
    /// Files on their way to another branch, or being copied.
    pub(crate) moving: AtomicUsize,
}

/// A file is being copied, which takes its time.
pub(crate) struct CopyInProgress<'a>(&'a StuckOperations);

impl Drop for CopyInProgress<'_> {
    fn drop(&mut self) {
        self.0.moving.fetch_sub(1, Ordering::Relaxed);
    }
}

impl StuckOperations {
    /// For how long to wait for a lock whose holder may wait for a branch; None where nobody does without end. Shorter
    /// than the deadline: who waits must not be taken for one that waits for a branch himself.
    pub(crate) fn lock_timeout(&self) -> Option<Duration> {
        let patience = self.patience.load(Ordering::Relaxed);
        (patience > 0).then(|| Duration::from_millis(patience / 2))
    }

    pub(crate) fn moving(&self) -> CopyInProgress<'_> {
        self.moving.fetch_add(1, Ordering::Relaxed);
        CopyInProgress(self)
    }

    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed) > 0
    }
}
