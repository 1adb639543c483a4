//! Nodes: the objects that the kernel holds references to.
//!
//! A directory's identity is its place in the tree, merged over the branches. The identity of anything else is its
//! file ([`FileKey`]), so that all names of a hard-linked file are one node, which agree on link count, times, size
//! and locks. The one exception is a file that is shown as a symlink (`symlinkify`): that is a node of its own,
//! because the kernel gives up an inode whose type changes.
//!
//! A node lives while its lookup count is above zero, or while a known name below it lives. It may outlive its last
//! name; then an open file or a pinned descriptor stands in. Its id says where the file is, so that it can be found
//! again after the kernel has forgotten the node (`export`).

pub(crate) mod children;
pub(crate) mod detached;
pub(crate) mod dir_state;
pub(crate) mod direct_writes;
pub(crate) mod handles;
pub(crate) mod idle_files;
pub(crate) mod known_tree;
pub(crate) mod name_index;
pub(crate) mod nodes;
pub(crate) mod open_file;
pub(crate) mod passthrough;
pub(crate) mod pending_cow;
mod readdirplus;
pub(crate) mod table;

use crate::branch::Branch;
use crate::fs::stat::FileKey;
use crate::ids::{BranchId, NodeId};
use crate::lock::rank;
use crate::lock::ranked::{Mutex, RwLock};
use dir_state::CacheSlot;
use name_index::NameIndex;
use open_file::{Fingerprint, OpenFile};
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;
use table::ShownFile;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Identity {
    /// A place in the tree. Has the inode number that clients see, which stays the same as long as the node lives,
    /// through renames.
    Directory {
        ino: u64,
    },
    File(FileKey),
}

/// A file that has lost its last known name, pinned so that its attributes can still be read.
pub(crate) struct Orphan {
    pub(crate) branch: Arc<Branch>,
    pub(crate) fd: OwnedFd,
}

pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// Tells its file from another one for which a handle with this id may have been made.
    pub(crate) generation: u32,
    /// Changes only when the file moves to another branch.
    pub(crate) identity: Mutex<Identity, rank::NodeIdentity>,
    /// The node is shown as a symlink to its file on the branch, however the file has changed since.
    pub(crate) symlinkified: bool,
    /// The lookup count: how often the kernel was given this node, less what it has forgotten.
    pub(crate) lookups: AtomicU64,
    /// What all handles of this node share. Without users the file is idle (`idle_files`) and counts as closed.
    /// Locked during an open, so that two first opens cannot register two backing files.
    pub(crate) open: Mutex<Weak<OpenFile>, rank::NodeOpen>,
    pub(crate) orphan: Mutex<Option<Arc<Orphan>>, rank::NodeOrphan>,
    /// It was once open in a way that allows writing through a mapping of the branch's own file; the mapping may
    /// outlive the handles.
    pub(crate) mapped: AtomicBool,
    /// The state of the file at its last open, for `cache.files=auto-full`.
    pub(crate) seen: Mutex<Option<Fingerprint>, rank::NodeSeen>,
    /// Held shared by operations that write the file, exclusive while it moves to another branch.
    pub(crate) moving: RwLock<(), rank::FileMove>,
    /// How often the file has moved.
    pub(crate) moves: AtomicU32,
    /// The inode number that clients know of a file that has moved; 0 for others. A file whose number changed while
    /// it is open would look like a replaced one.
    pub(crate) number: AtomicU64,
    /// It has so many names that some may be out of date: those removed directly on the branch.
    pub(crate) has_doubtful_names: AtomicBool,
    /// Until then no move of the file is tried: its names were not found, or it cannot be leased.
    pub(crate) stays_until: Mutex<Option<Instant>, rank::NodeStays>,
    /// Until when the kernel uses attributes from a listing (in ticks of `readdirplus::current_tick`).
    pub(crate) relied: AtomicU32,
    /// For a directory: until when the kernel uses attributes of some of its entries.
    pub(crate) relied_below: AtomicU32,
    /// For a directory: how many names the pool has created in it.
    pub(crate) made: AtomicU32,
    /// For a directory: how often changes of its names were reported.
    pub(crate) names_changed: AtomicU32,
    /// For a directory: where it is on the branches, and which of them hold its names.
    pub(crate) cached_dir: CacheSlot,
    /// The node is in the order of cached directories.
    pub(crate) in_cache_order: AtomicBool,
}

impl Node {
    pub(crate) fn identity(&self) -> Identity {
        *self.identity.lock()
    }

    pub(crate) fn is_dir(&self) -> bool {
        matches!(self.identity(), Identity::Directory { .. })
    }

    pub(crate) fn key(&self) -> Option<FileKey> {
        match self.identity() {
            Identity::File(key) => Some(key),
            Identity::Directory { .. } => None,
        }
    }

    fn shown(&self) -> Option<ShownFile> {
        self.key().map(|key| (key, self.symlinkified))
    }

    pub(crate) fn opened(&self) -> Option<Arc<OpenFile>> {
        self.open.lock().upgrade().filter(|open| open.users() > 0)
    }
}

impl Node {
    /// Returns the cached names of the directory, whether they may be trusted or not.
    pub(crate) fn names(&self) -> Option<Arc<NameIndex>> {
        self.cached_dir.lock().as_ref().map(|cached| Arc::clone(&cached.names))
    }

    /// Records that a name in this directory was created on a branch. Must be called before the kernel learns of it.
    pub(crate) fn name_created(&self, name: &[u8], branch: BranchId) {
        self.made.fetch_add(1, Ordering::Relaxed);
        // The creating operation may have begun with other branches than the cache has now.
        let cached = {
            let slot = self.cached_dir.lock();
            slot.as_ref()
                .and_then(|cached| Some((Arc::clone(&cached.names), cached.branches.index_of(branch)?)))
        };
        if let Some((names, index)) = cached {
            names.add_holder(name, index);
        }
    }
}
