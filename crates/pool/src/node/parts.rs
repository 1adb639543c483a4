//! What a node has only once it was used. Most nodes are files that were only looked up.

use super::Orphan;
use super::dir_state::CacheSlot;
use super::handles::mirrors::Mirrors;
use super::open_file::OpenFile;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::{Mutex, RwLock};
use canopy_branch::fs::stat::FileKey;
use once_cell::race::OnceBox;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// What a file has once it was opened. A directory has [`DirParts`] here.
#[derive(Default)]
pub(crate) struct Parts {
    pub(super) open: Mutex<Weak<OpenFile>, rank::NodeOpen>,
    pub(super) moving: RwLock<(), rank::FileMove>,
    /// The [fingerprint](super::open_file::fingerprint) of the file at its last open without passthrough; 0 if there was
    /// none.
    pub(super) seen: AtomicU64,
    pub(super) dir: OnceBox<DirParts>,
    pub(super) rare: OnceBox<RareParts>,
}

/// What a directory has once it was used.
#[derive(Default)]
pub(crate) struct DirParts {
    /// Where it is on the branches, and which of them hold its names.
    pub(crate) cached: CacheSlot,
    /// The node is in the order of cached directories.
    pub(crate) in_cache_order: AtomicBool,
    /// Until when the kernel uses attributes of some of its entries (in ticks of `readdirplus::current_tick`).
    pub(crate) relied_below: AtomicU32,
    /// How many names the pool has created in it.
    pub(crate) made: AtomicU32,
}

/// What few nodes ever have.
#[derive(Default)]
pub(crate) struct RareParts {
    pub(super) orphan: Mutex<Option<Arc<Orphan>>, rank::Leaf>,
    /// Where the file is, if it has moved to another branch, or if the node has no room for it.
    pub(super) key: Mutex<Option<FileKey>, rank::Leaf>,
    /// How often the file has moved.
    pub(crate) moves: AtomicU32,
    /// The inode number that clients know of a file that has moved; 0 for others. A file whose number changed while
    /// it is open would look like a replaced one.
    pub(crate) number: AtomicU64,
    /// The copies that are written with the file.
    pub(super) mirrors: Mutex<Mirrors, rank::Mirrors>,
    /// There are some.
    pub(super) has_mirrors: AtomicBool,
    /// How often the own copy has failed beside them.
    pub(super) failovers: AtomicU32,
    /// Until then no move of the file is tried: its names were not found, or it cannot be leased.
    pub(crate) stays_until: Mutex<Option<Instant>, rank::Leaf>,
    /// The names of the file lead to another node now.
    pub(super) superseded: AtomicBool,
    /// Some thread moves the file, or is about to.
    pub(super) taken: AtomicBool,
    /// A request that writes the file has come upon the move of it.
    pub(super) awaited: AtomicBool,
    /// The file has replaced files of other branches, which may still be there on disk.
    pub(crate) replaces: AtomicBool,
}
