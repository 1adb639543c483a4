//! Listings that the kernel keeps.

use canopy_fuse::NodeId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

/// Directories that may be kept at a time; beyond that all are read afresh once.
const KEPT: usize = 65_536;

#[derive(Default)]
pub(crate) struct DirListings {
    /// Directories of which the kernel keeps no listing that is older than the last change, and since when.
    kept: Mutex<HashMap<NodeId, Instant>>,
}

impl DirListings {
    /// A directory is being opened: may the kernel go by a listing that it has kept, if it is no older than this?
    pub(crate) fn keeps(&self, dir: NodeId, age: Duration) -> bool {
        let now = Instant::now();
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT {
            kept.clear();
        }
        match kept.entry(dir) {
            Entry::Occupied(since) if now - *since.get() <= age => true,
            entry => {
                entry.insert_entry(now);
                false
            }
        }
    }

    /// The listing of a directory is not what it was.
    pub(crate) fn changed(&self, dir: NodeId) {
        self.kept.lock().remove(&dir);
    }

    /// No listing so far holds any longer.
    pub(crate) fn renew(&self) {
        self.kept.lock().clear();
    }
}
