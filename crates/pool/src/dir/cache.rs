//! What is remembered of the pool's directories: where each lies on the branches, opened, and which branches may hold
//! which of its names (`names`).
//!
//! An operation believes it only if all that others had changed on the branches before it began has been worked on
//! ([`Kernel::caught_up`](crate::kernel::Kernel::caught_up)): so it is as true as asking the branches. Whoever watches
//! them tells what others change (`told`), and operations tell what they change themselves. Where not all branches are
//! watched, nothing is remembered.
//!
//! A file found with its help is looked at once more, by its key; for such a look nobody asks what has happened this moment.

use crate::branch::Branches;
use crate::fs::stat;
use crate::lock::rank;
use crate::lock::ranked::Mutex;
use crate::node::Node;
use crate::node::dir_state::{BranchDirs, CacheVersion, CachedDir, PerBranch};
use crate::node::idle_files::IdleFiles;
use crate::node::name_index::{CacheCounters, NameIndex};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::io::Errno;
use rustix::process::Resource;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Names that are remembered in all, at 20 to 40 bytes each; beyond, directories not used of late are forgotten.
const NAMES: usize = 2 << 20;

/// Of the descriptors that the process may have, one in so many is for remembered directories.
const SHARE: u64 = 4;
/// And no more than this.
const DESCRIPTORS: u64 = 32 << 10;

/// Of the descriptors that the process may have, one in so many is for operations that keep none: who has opened all that
/// can be opened still lists, removes and truncates.
const RESERVE: u64 = 4;
/// And no more than this.
const RESERVED: u64 = 1 << 10;

pub(crate) struct DirCache {
    /// Rises when a directory has come to a place on a branch, or gone from it.
    places: AtomicU64,
    /// Rises when changes may have been missed.
    epoch: AtomicU64,
    tally: Arc<CacheCounters>,
    /// Directories of which something is remembered, in the order in which they are to be forgotten.
    order: Mutex<VecDeque<Weak<Node>>, rank::DirCacheOrder>,
    /// Descriptors that may be kept.
    descriptors: usize,
    /// From this number on descriptors are the reserve. A new one has the lowest number that is free, so it tells how many
    /// there are, and nobody needs to count.
    reserve: RawFd,
    /// As many as there may be.
    limit: RawFd,
    pub(crate) idle_files: IdleFiles,
}

impl Default for DirCache {
    fn default() -> Self {
        let number = |limit: u64| RawFd::try_from(limit).unwrap_or(RawFd::MAX);
        let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS * SHARE);
        DirCache {
            places: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            tally: Arc::default(),
            order: Mutex::default(),
            descriptors: (limit / SHARE).min(DESCRIPTORS) as usize,
            reserve: number(limit - (limit / RESERVE).min(RESERVED)),
            limit: number(limit),
            idle_files: IdleFiles::new(limit),
        }
    }
}

impl DirCache {
    pub(crate) fn version(&self) -> CacheVersion {
        CacheVersion {
            places: self.places.load(Ordering::Acquire),
            epoch: self.epoch.load(Ordering::Acquire),
        }
    }

    /// The directory as it is remembered, if that is still so; for operations that may believe it.
    pub(crate) fn get(&self, node: &Node, branches: &Branches) -> Option<(Arc<BranchDirs>, Arc<NameIndex>)> {
        let slot = node.cached_dir.lock();
        let known =
            slot.as_ref().filter(|known| known.stamp == self.version() && known.branches.are(branches))?;
        known.used.store(true, Ordering::Relaxed);
        Some((Arc::clone(&known.opened), Arc::clone(&known.names)))
    }

    /// Since when it is remembered where a directory lies, if it is still so as far as changes were worked on.
    pub(crate) fn valid_version(&self, node: &Node) -> Option<CacheVersion> {
        let now = self.version();
        node.cached_dir.lock().as_ref().is_some_and(|known| known.stamp == now).then_some(now)
    }

    /// The directory as it lies on one branch, as far as changes were worked on: for who proves what he finds there. Where
    /// directories have come or gone since it was remembered, `open` tells whether it is still in its place.
    pub(crate) fn unverified(
        &self,
        node: &Node,
        branches: &Branches,
        index: usize,
        open: impl FnOnce() -> Option<(u64, u64)>,
    ) -> Option<Arc<CachedDir>> {
        let now = self.version();
        let known = node.cached_dir.lock().clone();
        let known = known.filter(|known| known.stamp.epoch == now.epoch && known.branches.are(branches))?;
        let seen = &known.seen[index];
        if seen.load(Ordering::Acquire) != now.places {
            if known.ids[index].is_none_or(|id| open() != Some(id)) {
                return None;
            }
            seen.store(now.places, Ordering::Release);
        }
        known.used.store(true, Ordering::Relaxed);
        Some(known)
    }

    /// May this descriptor, just opened for a file, stay open for as long as a client likes? What is kept without need makes
    /// room for it.
    pub(crate) fn admit(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        self.admit_under(self.reserve, fd)
    }

    /// As `admit`, for a directory that is listed. Half of the reserve is for those.
    pub(crate) fn admit_listing(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        self.admit_under(self.reserve.midpoint(self.limit), fd)
    }

    fn admit_under(&self, bound: RawFd, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        if fd.as_raw_fd() < bound {
            return Ok(());
        }
        self.clear();
        let lowest = rustix::io::fcntl_dupfd_cloexec(fd, 0)?;
        if lowest.as_raw_fd() < bound { Ok(()) } else { Err(Errno::MFILE) }
    }

    /// Remembers a directory that was opened after `stamp`. What is known of its names is known still if these are the
    /// same directories. `None` for one that cannot be remembered: a part of it lies on a mount or a subvolume of its own,
    /// whose changes may be told by other paths, or by none.
    pub(crate) fn insert(
        &self,
        node: &Arc<Node>,
        branches: &Branches,
        opened: &Arc<BranchDirs>,
        stamp: CacheVersion,
    ) -> Option<Arc<NameIndex>> {
        let (mut ids, mut bytes) = (PerBranch::with_capacity(branches.len()), 0);
        for (index, branch) in branches.iter().enumerate() {
            let found = opened.get(branches, index).map(stat::with_mount).transpose().ok()?;
            // A bind mount of the branch's own filesystem has the branch's device; its changes are told by another path.
            if found.is_some_and(|(attr, mount)| {
                attr.dev != branch.dev || mount.is_none() || mount != branch.mount
            }) {
                return None;
            }
            let attr = found.map(|(attr, _)| attr);
            bytes += attr.map_or(0, |attr| attr.size);
            ids.push(attr.map(|attr| (attr.dev, attr.ino)));
        }
        let mut used = (0..branches.len()).filter_map(|index| opened.get(branches, index));
        if !used.all(|fd| fd.as_raw_fd() < self.reserve) {
            return None;
        }
        let descriptors = opened.descriptors();
        self.tally.dirs.fetch_add(1, Ordering::Relaxed);
        self.tally.descriptors.fetch_add(descriptors, Ordering::Relaxed);
        let names = {
            let mut slot = node.cached_dir.lock();
            let before = slot.take();
            let same = |before: &&Arc<CachedDir>| {
                before.stamp.epoch == stamp.epoch && before.branches.are(branches) && before.ids == ids
            };
            let names = match before.as_ref().filter(same) {
                Some(before) => Arc::clone(&before.names),
                None => Arc::new(NameIndex::new(bytes, branches.len(), Arc::clone(&self.tally))),
            };
            *slot = Some(Arc::new(CachedDir {
                branches: branches.clone(),
                stamp,
                opened: Arc::clone(opened),
                seen: ids.iter().map(|_| AtomicU64::new(stamp.places)).collect(),
                ids,
                names: Arc::clone(&names),
                used: AtomicBool::new(true),
                tally: Arc::clone(&self.tally),
            }));
            names
        };
        if !node.in_cache_order.swap(true, Ordering::Relaxed) {
            self.order.lock().push_back(Arc::downgrade(node));
            self.tally.ordered.fetch_add(1, Ordering::Relaxed);
        }
        if self.version() != stamp {
            // Who has cleared everything meanwhile may have come too early for this one.
            let freed = node.cached_dir.lock().take();
            drop(freed);
        }
        self.evict();
        Some(names)
    }

    /// Forgets directories that were not used of late, while too much is remembered.
    pub(crate) fn evict(&self) {
        let mut turns = None;
        while self.tally.descriptors.load(Ordering::Relaxed) > self.descriptors
            || self.tally.names.load(Ordering::Relaxed) > NAMES
        {
            let mut order = self.order.lock();
            // Each gets a second chance once.
            let turns = turns.get_or_insert(2 * order.len());
            let Some(turns_left) = turns.checked_sub(1) else { return };
            *turns = turns_left;
            let Some(oldest) = order.pop_front() else { return };
            self.tally.ordered.fetch_sub(1, Ordering::Relaxed);
            let Some(node) = oldest.upgrade() else { continue };
            // Who remembers it from now on gives it a place, or finds that it has one.
            node.in_cache_order.store(false, Ordering::Relaxed);
            let freed = {
                let mut slot = node.cached_dir.lock();
                match slot.as_ref() {
                    Some(known) if known.used.swap(false, Ordering::Relaxed) => {
                        if !node.in_cache_order.swap(true, Ordering::Relaxed) {
                            order.push_back(oldest);
                            self.tally.ordered.fetch_add(1, Ordering::Relaxed);
                        }
                        None
                    }
                    _ => slot.take(),
                }
            };
            drop(order);
            drop(freed);
        }
    }

    /// Takes directories out of the order of which nothing is remembered any more, once they are most of it: a place there
    /// keeps the room that a node took up, long after the node has gone.
    pub(crate) fn compact_order(&self) {
        const FEW: usize = 64;
        let (dirs, ordered) = (&self.tally.dirs, &self.tally.ordered);
        if ordered.load(Ordering::Relaxed) <= 2 * dirs.load(Ordering::Relaxed) + FEW {
            return;
        }
        let mut order = self.order.lock();
        let before = order.len();
        order.retain(|node| {
            let Some(node) = node.upgrade() else { return false };
            let slot = node.cached_dir.lock();
            if slot.is_none() {
                // Under the lock: who remembers it next gives it a place.
                node.in_cache_order.store(false, Ordering::Relaxed);
            }
            slot.is_some()
        });
        if order.capacity() > 4 * order.len() + FEW {
            order.shrink_to_fit();
        }
        ordered.fetch_sub(before - order.len(), Ordering::Relaxed);
    }

    /// How many places there are in the order: for leak tests.
    pub(crate) fn order_len(&self) -> usize {
        self.order.lock().len()
    }

    /// Directories have come to, or gone from, places on a branch: they are opened anew.
    pub(crate) fn places_changed(&self) {
        self.places.fetch_add(1, Ordering::Release);
    }

    /// Nothing is known any more. What was kept open is closed as its turn comes.
    pub(crate) fn invalidate(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// As `lost`, and nothing is kept open when this returns.
    pub(crate) fn clear(&self) {
        self.invalidate();
        self.idle_files.clear();
        let nodes = std::mem::take(&mut *self.order.lock());
        self.tally.ordered.fetch_sub(nodes.len(), Ordering::Relaxed);
        for node in nodes.iter().filter_map(Weak::upgrade) {
            node.in_cache_order.store(false, Ordering::Relaxed);
            let freed = node.cached_dir.lock().take();
            drop(freed);
        }
    }
}
