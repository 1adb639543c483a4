//! Directory listings that the kernel caches.

use crate::lock_rank as rank;
use canopy_base::lock::ranked::Mutex;
use canopy_fuse::NodeId;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

/// The most directories that are remembered; beyond that, all are forgotten and their listings are read again once.
const MAX_DIRS: usize = 65_536;

#[derive(Default)]
pub(crate) struct DirListings {
    /// The directories whose cached listing, if any, is no older than the last change, and when it was read.
    valid: Mutex<HashMap<NodeId, Instant>, rank::Leaf>,
}

impl DirListings {
    /// Returns whether the kernel may use its cached listing when it opens a directory: it may if the listing is
    /// valid and no older than `max_age`. If it may not, the listing that it reads now becomes valid.
    pub(crate) fn may_reuse(&self, dir: NodeId, max_age: Duration) -> bool {
        let now = Instant::now();
        let mut valid = self.valid.lock();
        if valid.len() >= MAX_DIRS {
            valid.clear();
        }
        match valid.entry(dir) {
            Entry::Occupied(since) if now - *since.get() <= max_age => true,
            entry => {
                entry.insert_entry(now);
                false
            }
        }
    }

    /// Records that the entries of a directory have changed.
    pub(crate) fn changed(&self, dir: NodeId) {
        self.valid.lock().remove(&dir);
    }

    /// Invalidates every cached listing.
    pub(crate) fn clear(&self) {
        self.valid.lock().clear();
    }
}
