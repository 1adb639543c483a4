//! Listings that the kernel may still be at work on.
//!
//! Of every other answer that gives names the kernel knows when it asked. The names of a READDIRPLUS it takes for as
//! new as the moment at which it gets round to them (fs/fuse/readdir.c fuse_direntplus_link reads the epoch), however
//! long after the answer that is. It keeps the directory locked until then, so who takes that lock has waited for it.

use canopy_fuse::NodeId;
use canopy_fuse::notify::Notifier;
use canopy_pool::shrink::shrink;
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// A name that no directory has: the pool keeps it for itself.
pub(super) const NOBODYS: &std::ffi::CStr = c".canopy-clone.";

/// Directories that may be kept at a time; beyond that all are read afresh once.
const KEPT: usize = 65_536;

#[derive(Default)]
pub(super) struct Listed {
    /// Open directories that were listed with nodes, by handle.
    open: Mutex<HashMap<u64, NodeId>>,
    /// Directories of which the kernel keeps no listing that is older than the last change, and since when.
    kept: Mutex<HashMap<NodeId, Instant>>,
}

impl Listed {
    /// An answer is about to be given.
    pub(super) fn given(&self, handle: u64, dir: NodeId) {
        self.open.lock().insert(handle, dir);
    }

    pub(super) fn closed(&self, handle: u64) {
        let mut open = self.open.lock();
        open.remove(&handle);
        shrink(&mut open);
    }

    /// A directory is being opened: may the kernel go by a listing that it has kept, if it is no older than this?
    pub(super) fn keeps(&self, dir: NodeId, age: Duration) -> bool {
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
    pub(super) fn changed(&self, dir: NodeId) {
        self.kept.lock().remove(&dir);
    }

    /// No listing so far holds any longer.
    pub(super) fn renew(&self) {
        self.kept.lock().clear();
    }

    /// Has what is sent to the kernel from now on wait until it is done with all answers that were given. To be called
    /// when no request holds a directory locked for long: the kernel waits for that, too.
    pub(super) fn settle(&self, notifier: &Notifier) {
        let dirs: BTreeSet<NodeId> = self.open.lock().values().copied().collect();
        for dir in dirs {
            // The lock is all that is wanted of it.
            let _ = notifier.inval_entry(dir, NOBODYS);
        }
    }
}
