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

pub(crate) mod copy_attrs;
pub(crate) mod detached;
pub(crate) mod dir_state;
pub(crate) mod direct_writes;
pub(crate) mod handles;
pub(crate) mod idle_files;
pub(crate) mod known_tree;
pub(crate) mod name_index;
pub(crate) mod nodes;
pub(crate) mod open_file;
pub(crate) mod parts;
pub(crate) mod passthrough;
pub(crate) mod read_cache;
mod readdirplus;
pub(crate) mod recent;
pub(crate) mod rights;
pub(crate) mod surplus;
pub(crate) mod table;

use crate::export::StableId;
use canopy_base::error::{Cause, Error, Result};
use canopy_base::ids::{BranchId, NodeId};
use canopy_base::lock::rank;
use canopy_base::lock::ranked::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use canopy_branch::branch::Branch;
use canopy_branch::fs::stat::{self, Attr, FileKey};
use dir_state::CachedDir;
use handles::mirrors::{Locked, Mirrors};
use once_cell::race::OnceBox;
use open_file::OpenFile;
use parts::{DirParts, Parts, RareParts};
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Identity {
    /// A place in the tree. Has the inode number that clients see, which stays the same as long as the node lives,
    /// through renames.
    Directory {
        ino: u64,
    },
    File(FileKey),
}

/// A file's identity, and whether it is shown as a symlink.
pub(crate) type ShownFile = (FileKey, bool);

/// A file that has lost its last known name, pinned so that its attributes can still be read.
pub(crate) struct Orphan {
    pub(crate) branch: Arc<Branch>,
    pub(crate) fd: OwnedFd,
    /// It is in the trash, and so has a link that clients do not see.
    pub(crate) kept: bool,
}

impl Orphan {
    /// Returns the attributes that it has now.
    pub(crate) fn stat(&self) -> Result<Attr, Errno> {
        self.branch.reads(|| stat::of(self.fd.as_fd()))
    }
}

/// One for each file and directory that the kernel knows, so its size counts: 56 bytes. What only nodes in use need is
/// in [`Parts`].
pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// The lookup count: how often the kernel was given this node, less what it has forgotten.
    pub(crate) lookups: AtomicU64,
    /// The inode number: of a directory that which clients see, 0 where it must be computed again; of a file that on its branch.
    ino: AtomicU64,
    /// Of a file, when it was born: seconds, and nanoseconds in the lowest [`NSEC_BITS`].
    birth: i64,
    /// Of a file, where it is; of a directory, the owner that the kernel knows, [`UNTOLD`] at first.
    dev: AtomicU32,
    /// Tells its file from another one for which a handle with this id may have been made.
    pub(crate) generation: u32,
    /// Until when the kernel uses attributes from a listing (in ticks of `readdirplus::current_tick`).
    pub(crate) relied: AtomicU32,
    kind: Kind,
    /// Where the file is must be looked up in [`RareParts`].
    elsewhere: AtomicBool,
    /// It was open in a way that allows writing through a mapping of the branch's own file; the mapping may outlive the
    /// handles.
    pub(crate) mapped: AtomicBool,
    /// It has so many names that some may be out of date: those removed directly on the branch.
    pub(crate) has_doubtful_names: AtomicBool,
    parts: OnceBox<Parts>,
}

const _: () = assert!(size_of::<Node>() == 56);

/// No owner: chown(2) takes it for "as before".
const UNTOLD: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
    /// A file that is shown as a symlink to it on the branch, however the file has changed since.
    Symlinkified,
}

/// Bits for less than a second of nanoseconds.
const NSEC_BITS: u32 = 30;

impl Node {
    /// Makes a node to which the kernel has one reference.
    pub(crate) fn new(stable: StableId, identity: Identity, symlinkified: bool) -> Node {
        let (kind, (ino, birth, dev), too_large) = match identity {
            Identity::Directory { ino } => (Kind::Directory, (ino, 0, UNTOLD), None),
            Identity::File(key) => {
                let kind = if symlinkified { Kind::Symlinkified } else { Kind::File };
                let packed = packed(key);
                (kind, packed.unwrap_or_default(), packed.is_none().then_some(key))
            }
        };
        let node = Node {
            id: stable.id,
            lookups: AtomicU64::new(1),
            ino: AtomicU64::new(ino),
            birth,
            dev: AtomicU32::new(dev),
            generation: stable.generation,
            relied: AtomicU32::new(0),
            kind,
            elsewhere: AtomicBool::new(false),
            mapped: AtomicBool::new(false),
            has_doubtful_names: AtomicBool::new(false),
            parts: OnceBox::new(),
        };
        if let Some(key) = too_large {
            node.set_key(key);
        }
        node
    }

    pub(crate) fn identity(&self) -> Identity {
        match self.key() {
            Some(key) => Identity::File(key),
            None => Identity::Directory { ino: self.ino.load(Ordering::Relaxed) },
        }
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Returns true if the node is shown as a symlink to its file on the branch.
    pub(crate) fn is_symlinkified(&self) -> bool {
        self.kind == Kind::Symlinkified
    }

    /// Returns which file it is. Changes only when the file moves to another branch.
    pub(crate) fn key(&self) -> Option<FileKey> {
        if self.is_dir() {
            return None;
        }
        if self.elsewhere.load(Ordering::Acquire)
            && let Some(key) = self.rare_if_any().and_then(|rare| *rare.key.lock())
        {
            return Some(key);
        }
        let birth = (self.birth >> NSEC_BITS, (self.birth & ((1 << NSEC_BITS) - 1)) as u32);
        Some(FileKey {
            dev: self.dev.load(Ordering::Relaxed).into(),
            ino: self.ino.load(Ordering::Relaxed),
            birth,
        })
    }

    /// Changes the number of a directory.
    pub(crate) fn set_number(&self, ino: u64) {
        debug_assert!(self.is_dir());
        self.ino.store(ino, Ordering::Relaxed);
    }

    /// Records the owner of a directory that an answer to the kernel has.
    pub(crate) fn tell_owner(&self, uid: u32) {
        if self.is_dir() && self.dev.load(Ordering::Relaxed) != uid {
            self.dev.store(uid, Ordering::Relaxed);
        }
    }

    /// Returns whether the kernel was last told that this directory belongs to the user.
    pub(crate) fn is_told(&self, uid: u32) -> bool {
        self.is_dir() && self.dev.load(Ordering::Relaxed) == uid
    }

    fn set_key(&self, key: FileKey) {
        *self.rare().key.lock() = Some(key);
        self.elsewhere.store(true, Ordering::Release);
    }

    fn shown(&self) -> Option<ShownFile> {
        self.key().map(|key| (key, self.is_symlinkified()))
    }
}

/// A file that one thread has for itself, as [`Node::take`] says.
pub(crate) struct TakenFile<'n> {
    // Dropped first: who takes it next waits for the lock, and for nothing else.
    _taken: Taken<'n>,
    _alone: RwLockWriteGuard<'n, (), rank::FileMove>,
}

struct Taken<'n>(&'n AtomicBool);

impl Taken<'_> {
    fn of(node: &Node) -> Option<Taken<'_>> {
        let taken = &node.rare().taken;
        // Not made, and so not dropped, if another thread has it.
        (!taken.swap(true, Ordering::AcqRel)).then(|| Taken(taken))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Returns number, birth and device of a file in the form in which a node has room for them.
fn packed(key: FileKey) -> Option<(u64, i64, u32)> {
    let (sec, nsec) = key.birth;
    let fits = sec >> (63 - NSEC_BITS) == sec >> 63 && nsec >> NSEC_BITS == 0;
    fits.then_some((key.ino, sec << NSEC_BITS | i64::from(nsec), u32::try_from(key.dev).ok()?))
}

impl Node {
    fn parts(&self) -> &Parts {
        self.parts.get_or_init(Box::default)
    }

    /// Returns what all handles of this node share. Without users the file is idle (`idle_files`) and counts as closed.
    /// Locked during an open, so that two first opens cannot register two backing files.
    pub(crate) fn open(&self) -> &Mutex<Weak<OpenFile>, rank::NodeOpen> {
        &self.parts().open
    }

    /// As [`Node::open`]; `None` if the node was never opened.
    pub(crate) fn open_if_any(&self) -> Option<&Mutex<Weak<OpenFile>, rank::NodeOpen>> {
        self.parts.get().map(|parts| &parts.open)
    }

    pub(crate) fn opened(&self) -> Option<Arc<OpenFile>> {
        self.open_if_any()?.lock().upgrade().filter(|open| open.users() > 0)
    }

    /// Returns true if the file is open, or being opened. Does not wait.
    pub(crate) fn is_open(&self) -> bool {
        let open = self.open_if_any().map(|slot| slot.try_lock().map(|slot| slot.strong_count() > 0));
        open.is_some_and(|open| open.unwrap_or(true))
    }

    /// Returns the lock that is held shared by operations that write the file, exclusive while it moves to another
    /// branch.
    pub(crate) fn location_lock(&self) -> &RwLock<(), rank::FileMove> {
        &self.parts().moving
    }

    /// Keeps the file from moving to another branch. A move on request gives up once somebody has asked in vain.
    ///
    /// Errors: [`Error::Wait`] while it moves.
    pub(crate) fn pin_location(&self) -> Result<RwLockReadGuard<'_, (), rank::FileMove>> {
        self.location_lock().try_read().ok_or_else(|| self.waits_for_move())
    }

    fn waits_for_move(&self) -> Error {
        self.rare().awaited.store(true, Ordering::Relaxed);
        Error::Wait(Cause::Move(self.id))
    }

    /// Takes the file for a move, or for another change that no operation may see halfway, once all operations that write it
    /// have ended. Of several threads, one waits for these, which wait for nothing but a disk. No worker waits for the move.
    ///
    /// Errors: [`Error::Wait`] while another thread has taken it. If that moves it on request, it gives up.
    pub(crate) fn take(&self) -> Result<TakenFile<'_>> {
        let taken = Taken::of(self).ok_or_else(|| self.waits_for_move())?;
        Ok(TakenFile { _taken: taken, _alone: self.location_lock().write() })
    }

    /// As [`Node::take`]; `None` if any operation would have to be waited for.
    pub(crate) fn take_now(&self) -> Option<TakenFile<'_>> {
        let taken = Taken::of(self)?;
        Some(TakenFile { _taken: taken, _alone: self.location_lock().try_write()? })
    }

    /// Returns whether another node stands for the file now. An answer that was given before may still bring the kernel
    /// here. Once the file is closed, it must look the name up again: two open nodes of a file do not see each other's
    /// writes.
    pub(crate) fn is_superseded(&self) -> bool {
        self.rare_if_any().is_some_and(|rare| rare.superseded.load(Ordering::Relaxed))
    }

    /// Returns the error for a file that cannot be opened: where a lease is the reason, its end is waited for.
    /// [`beneath::reopen`](canopy_branch::fs::beneath::reopen) never waits for it by itself.
    pub(crate) fn waits_for_lease(&self, errno: Errno, write: bool) -> Error {
        match (errno, self.key()) {
            (Errno::AGAIN, Some(FileKey { dev, ino, .. })) => Error::Wait(Cause::Lease { dev, ino, write }),
            _ => errno.into(),
        }
    }

    /// Returns whether a request has come upon the move since it began.
    pub(crate) fn is_awaited(&self) -> bool {
        self.rare_if_any().is_some_and(|rare| rare.awaited.load(Ordering::Relaxed))
    }

    /// Records that a move begins, which nobody waits for yet. Who waits for an earlier one asks again.
    pub(crate) fn begin_move(&self) {
        if let Some(rare) = self.rare_if_any() {
            rare.awaited.store(false, Ordering::Relaxed);
        }
    }

    /// Records the [fingerprint](open_file::fingerprint) of the file at an open. Returns that of the open before.
    pub(crate) fn swap_fingerprint(&self, fingerprint: u64) -> Option<u64> {
        Some(self.parts().seen.swap(fingerprint, Ordering::Relaxed)).filter(|before| *before != 0)
    }

    pub(crate) fn dir(&self) -> &DirParts {
        self.parts().dir.get_or_init(Box::default)
    }

    pub(crate) fn dir_if_any(&self) -> Option<&DirParts> {
        self.parts.get()?.dir.get()
    }

    pub(crate) fn rare(&self) -> &RareParts {
        self.parts().rare.get_or_init(Box::default)
    }

    pub(crate) fn rare_if_any(&self) -> Option<&RareParts> {
        self.parts.get()?.rare.get()
    }

    /// Returns how often the file has moved.
    pub(crate) fn moves(&self) -> u32 {
        self.rare_if_any().map_or(0, |rare| rare.moves.load(Ordering::Relaxed))
    }

    /// Returns the inode number that clients know of a file that has moved; 0 for others.
    pub(crate) fn kept_number(&self) -> u64 {
        self.rare_if_any().map_or(0, |rare| rare.number.load(Ordering::Relaxed))
    }

    pub(crate) fn orphan(&self) -> Option<Arc<Orphan>> {
        self.rare_if_any()?.orphan.lock().clone()
    }

    pub(crate) fn set_orphan(&self, orphan: Arc<Orphan>) {
        *self.rare().orphan.lock() = Some(orphan);
    }

    /// Takes the pinned file away if it is one that `unneeded` tells. Called by whoever has found a name for it.
    pub(crate) fn take_orphan_if(&self, unneeded: impl FnOnce(&Orphan) -> bool) -> Option<Arc<Orphan>> {
        let mut slot = self.rare_if_any()?.orphan.lock();
        let goes = slot.as_deref().is_some_and(unneeded);
        if goes { slot.take() } else { None }
    }
}

impl Node {
    /// Locks the node's mirrors, whether it has any or not.
    pub(crate) fn lock_mirrors(&self) -> Locked<'_> {
        self.rare().mirrors.lock()
    }

    pub(crate) fn try_lock_mirrors(&self) -> Option<Locked<'_>> {
        self.rare().mirrors.try_lock()
    }

    /// Returns whether the node may have mirrors.
    pub(crate) fn has_mirrors(&self) -> bool {
        self.rare_if_any().is_some_and(|rare| rare.has_mirrors.load(Ordering::Acquire))
    }

    /// Returns how often the own copy has failed beside mirrors. Whoever has come upon that asks before it begins, and begins again when
    /// the number is another one.
    pub(crate) fn failovers(&self) -> u32 {
        self.rare_if_any().map_or(0, |rare| rare.failovers.load(Ordering::Acquire))
    }

    /// Takes the error of the own copy, which is dealt with now. The caller has locked the mirrors.
    pub(crate) fn take_failure(&self, mirrors: &mut Mirrors) -> Option<Errno> {
        let errno = mirrors.failed.take()?;
        self.rare().failovers.fetch_add(1, Ordering::AcqRel);
        Some(errno)
    }

    /// Gives the node mirrors.
    pub(crate) fn put_mirrors(&self, slot: &mut Mirrors, mut mirrors: Mirrors) {
        mirrors.moves = self.moves();
        *slot = mirrors;
        self.rare().has_mirrors.store(true, Ordering::Release);
    }

    /// Takes all mirrors from the node.
    pub(crate) fn take_mirrors(&self, slot: &mut Mirrors) {
        *slot = Mirrors::default();
        self.rare().has_mirrors.store(false, Ordering::Release);
    }
}

impl Node {
    /// Passes on what is cached of the directory, whether it may be trusted or not. Under the lock: the names must not go
    /// on to another index before `act` has changed them.
    pub(crate) fn with_cached(&self, act: impl FnOnce(&CachedDir)) {
        let Some(dir) = self.dir_if_any() else { return };
        if let Some(cached) = &*dir.cached.lock() {
            act(cached);
        }
    }

    /// Records that a name in this directory was created on a branch. Must be called before the kernel learns of it.
    pub(crate) fn name_created(&self, name: &[u8], branch: BranchId) {
        self.dir().made.fetch_add(1, Ordering::Relaxed);
        self.with_cached(|cached| {
            // The creating operation may have begun with other branches than the cache has now.
            if let Some(index) = cached.branches.index_of(branch) {
                cached.names.add_holder(name, index);
                cached.attrs.changed(index);
            }
        });
    }

    /// Records that the copy of this directory on a branch has changed. Must be called before the kernel learns of it.
    pub(crate) fn copy_changed(&self, branch: BranchId) {
        self.with_cached(|cached| {
            if let Some(index) = cached.branches.index_of(branch) {
                cached.attrs.changed(index);
            }
        });
    }

    /// Records that any copy of this directory may have changed.
    pub(crate) fn copies_changed(&self) {
        self.with_cached(|cached| cached.attrs.all_changed());
    }
}
