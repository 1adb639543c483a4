//! Listings that the kernel may still be at work on.
//!
//! Of every other answer that gives names the kernel knows when it asked. The names of a READDIRPLUS it takes for as
//! new as the moment at which it gets round to them (fs/fuse/readdir.c fuse_direntplus_link reads the epoch), however
//! long after the answer that is. It keeps the directory locked until then, so who takes that lock has waited for it.

use canopy_fuse::NodeId;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};

/// Open directories that were listed with nodes, by handle.
#[derive(Default)]
pub(super) struct Listed(Mutex<HashMap<u64, NodeId>>);

impl Listed {
    /// An answer is about to be given.
    pub(super) fn given(&self, handle: u64, dir: NodeId) {
        self.0.lock().insert(handle, dir);
    }

    pub(super) fn closed(&self, handle: u64) {
        self.0.lock().remove(&handle);
    }

    pub(super) fn dirs(&self) -> BTreeSet<NodeId> {
        self.0.lock().values().copied().collect()
    }
}
