//! Nodes: what the kernel holds references to.
//!
//! A directory's identity is its place in the tree, merged over the branches. The identity of anything
//! else is its file ([`FileKey`]), so that all names of a hard-linked file are one node, and agree about
//! link count, times, size and locks at once. The one exception is a file that is shown as a symlink
//! (`symlinkify`): the kernel gives up an inode whose type changes, so that is a node of its own.
//!
//! A node lives while the kernel has looked it up more often than it has forgotten it, or while a known
//! name lies below it. It may outlive its last name: then an open file or a pinned descriptor stands in. Its id says
//! where its file lies, so that it can be found again when it has been forgotten (`export`).

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
    /// Its place in the tree. Carries the inode number that callers see, which stays the same for as
    /// long as the node lives, renames included.
    Directory {
        ino: u64,
    },
    File(FileKey),
}

/// A file that has lost its last known name: pinned, so that its attributes can still be told.
pub(crate) struct Orphan {
    pub(crate) branch: Arc<Branch>,
    pub(crate) fd: OwnedFd,
}

pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// Tells its file from another one that a handle with this id may have been made of.
    pub(crate) generation: u32,
    /// Changes only when the file moves to another branch.
    pub(crate) identity: Mutex<Identity, rank::NodeIdentity>,
    /// Shown as a symlink to the file on its branch, whatever the file is like by now.
    pub(crate) symlinkified: bool,
    /// How often the kernel was given this node, less what it has forgotten.
    pub(crate) lookups: AtomicU64,
    /// What all handles of this node share. Without users it is only kept open (`memory::kept`), and counts as closed.
    /// Held over an open, so that two first opens cannot register two backing files.
    pub(crate) open: Mutex<Weak<OpenFile>, rank::NodeOpen>,
    pub(crate) orphan: Mutex<Option<Arc<Orphan>>, rank::NodeOrphan>,
    /// Somebody has had it open such that he could write it by a mapping of the branch's own file, which may outlive what
    /// is open here.
    pub(crate) mapped: AtomicBool,
    /// What the file looked like at its last open, for `cache.files=auto-full`.
    pub(crate) seen: Mutex<Option<Fingerprint>, rank::NodeSeen>,
    /// Shared by whoever writes the file, exclusively by who moves it to another branch.
    pub(crate) moving: RwLock<(), rank::FileMove>,
    /// How often the file has moved.
    pub(crate) moves: AtomicU32,
    /// The inode number that callers know of a file that has moved; else 0. A file that changes its number while
    /// it is open looks like another one put in its place.
    pub(crate) number: AtomicU64,
    /// It has got so many names that some may not be its names any more: those that went on the branch itself.
    pub(crate) has_doubtful_names: AtomicBool,
    /// Until then nobody tries to move the file: its names were not found, or it cannot be leased.
    pub(crate) stays_until: Mutex<Option<Instant>, rank::NodeStays>,
    /// The kernel was given attributes in a listing, and goes by them until then (in ticks of `readdirplus::now`).
    pub(crate) relied: AtomicU32,
    /// Of a directory: the same of names in it.
    pub(crate) relied_below: AtomicU32,
    /// Of a directory: how many names the pool has made in it.
    pub(crate) made: AtomicU32,
    /// Of a directory: where it lies, and who holds its names.
    pub(crate) cached_dir: CacheSlot,
    /// It has a place among those of which something is remembered.
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
    /// What is known of the directory's names, whether it may be believed or not.
    pub(crate) fn names(&self) -> Option<Arc<NameIndex>> {
        self.cached_dir.lock().as_ref().map(|known| Arc::clone(&known.names))
    }

    /// A name of this directory was made on a branch. To be called before anybody hears of it.
    pub(crate) fn name_created(&self, name: &[u8], branch: BranchId) {
        self.made.fetch_add(1, Ordering::Relaxed);
        // Whoever made it may have begun when there were other branches than those by which names are known by now.
        let known = {
            let slot = self.cached_dir.lock();
            slot.as_ref().and_then(|known| Some((Arc::clone(&known.names), known.branches.index_of(branch)?)))
        };
        if let Some((names, index)) = known {
            names.add_holder(name, index);
        }
    }
}
