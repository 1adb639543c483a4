//! How many files have moved to another branch.

use std::sync::atomic::{AtomicU64, Ordering};

/// Files that have moved to another branch.
#[derive(Default)]
pub struct Moved {
    files: AtomicU64,
    bytes: AtomicU64,
}

impl Moved {
    /// Counts a file that takes this much space.
    pub fn count(&self, bytes: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
