//! The cache of the pool's directories: their open copies on the branches, and which branches may hold which of their
//! names ([`NameIndex`]).
//!
//! An operation trusts the cache only if every change that others made on the branches before the operation began has
//! been processed ([`Kernel::caught_up`](crate::kernel::Kernel::caught_up)). So the cache is as exact as asking the
//! branches. The server's watch reports what others change (`ops/external_changes.rs`), and operations report what they
//! change themselves. Where not every branch is watched, nothing is cached.
//!
//! A file found through the cache is checked by its identity anyway, so such a lookup may use the cache without
//! asking whether it is up to date ([`DirCache::unverified`]).

use crate::coherence::changes::{Changes, Item, Ticket};
use crate::node::Node;
use crate::node::copy_attrs::FEW_COPIES;
use crate::node::dir_state::{BranchDir, BranchDirs, CacheVersion, CachedDir, PerBranch};
use crate::node::idle_files::IdleFiles;
use crate::node::name_index::{CacheCounters, NameIndex};
use canopy_base::ids::NodeId;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::{Branch, Branches};
use canopy_branch::fs::stat::{self, Attr};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::process::Resource;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The most names that are cached in all; beyond, directories that were not used recently are dropped.
const MAX_NAMES: usize = 2 << 20;
/// What a cached name costs on average, in bytes.
const NAME_BYTES: u64 = 32;

/// The share of the process's descriptors for cached directories: one in so many.
const CACHE_SHARE: u64 = 2;
/// The most descriptors for cached directories.
const CACHE_AT_MOST: u64 = 32 << 10;

/// The share of the process's descriptors that is a reserve for operations that close theirs again: one in so many. A
/// client that has opened as many files as it can may still list, remove and truncate.
const RESERVE_SHARE: u64 = 4;
/// The most descriptors in the reserve.
const RESERVE_AT_MOST: u64 = 1 << 10;

/// Two searches within so long are by one program that goes through a directory.
const IN_TURN: Duration = Duration::from_secs(1);
/// A player opens a film a few times before it plays it. Who does so more often in turn does not play it.
const AGAIN: u32 = 8;

/// A file that was searched for.
struct Searched {
    dir: NodeId,
    file: NodeId,
    at: Instant,
    /// How often files of its directory were searched for in turn.
    times: u32,
}

pub(crate) struct DirCache {
    changes: Arc<Changes>,
    /// Incremented when a directory has appeared at or disappeared from a place on a branch.
    places: AtomicU64,
    /// Incremented when changes may have been missed.
    epoch: AtomicU64,
    /// The most names, at most [`MAX_NAMES`].
    names: AtomicUsize,
    tally: Arc<CacheCounters>,
    /// Cached directories, in the order in which they are dropped.
    order: Mutex<VecDeque<Weak<Node>>, rank::DirCacheOrder>,
    /// The number of descriptors for cached directories.
    descriptors: usize,
    /// Descriptors from this number on are the reserve. The kernel gives a new descriptor the lowest free number, so
    /// the number shows how many are in use without counting.
    reserve: RawFd,
    /// The number of descriptors that the process may have.
    limit: RawFd,
    /// The file that was searched for last.
    searched: Mutex<Option<Searched>, rank::Leaf>,
    /// The directory of which several files were searched for; a [`NodeId`], or 0.
    wanted: AtomicU64,
    pub(crate) idle_files: IdleFiles,
}

impl DirCache {
    pub(crate) fn new(changes: Arc<Changes>) -> Self {
        let number = |limit: u64| RawFd::try_from(limit).unwrap_or(RawFd::MAX);
        let limit =
            rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(CACHE_AT_MOST * CACHE_SHARE);
        DirCache {
            changes,
            places: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            names: AtomicUsize::new(MAX_NAMES),
            tally: Arc::default(),
            order: Mutex::default(),
            descriptors: (limit / CACHE_SHARE).min(CACHE_AT_MOST) as usize,
            reserve: number(limit - (limit / RESERVE_SHARE).min(RESERVE_AT_MOST)),
            limit: number(limit),
            searched: Mutex::default(),
            wanted: AtomicU64::new(0),
            idle_files: IdleFiles::new(limit),
        }
    }

    /// Sets how many bytes cached names may take.
    pub(crate) fn set_bound(&self, bytes: u64) {
        let names = usize::try_from(bytes / NAME_BYTES).unwrap_or(MAX_NAMES);
        self.names.store(names.min(MAX_NAMES), Ordering::Relaxed);
    }

    /// Returns how many directories and names are cached.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.tally.dirs.load(Ordering::Relaxed), self.tally.names.load(Ordering::Relaxed))
    }

    pub(crate) fn version(&self) -> CacheVersion {
        CacheVersion {
            places: self.places.load(Ordering::Acquire),
            epoch: self.epoch.load(Ordering::Acquire),
        }
    }

    /// Returns the cached directory if it is still valid, for operations that may trust the cache.
    pub(crate) fn get(&self, node: &Node, branches: &Branches) -> Option<Arc<CachedDir>> {
        let slot = node.dir_if_any()?.cached.lock();
        let cached =
            slot.as_ref().filter(|cached| cached.stamp == self.version() && cached.branches.are(branches))?;
        cached.used.store(true, Ordering::Relaxed);
        Some(Arc::clone(cached))
    }

    /// Returns the current version if the directory is cached and valid as far as changes have been processed.
    pub(crate) fn valid_version(&self, node: &Node) -> Option<CacheVersion> {
        let now = self.version();
        node.dir_if_any()?.cached.lock().as_ref().is_some_and(|cached| cached.stamp == now).then_some(now)
    }

    /// Returns whether the directory is cached with so many copies that it is cheaper to check that no events are waiting
    /// than to ask each copy.
    pub(crate) fn has_many_copies(&self, node: &Node) -> bool {
        let Some(dir) = node.dir_if_any() else { return false };
        dir.cached.lock().as_ref().is_some_and(|cached| cached.copies() > FEW_COPIES)
    }

    /// Returns the cached directory, valid as far as changes have been processed; for callers that verify what they find
    /// there, and that it is still [in its place](DirCache::in_place).
    pub(crate) fn unverified(&self, node: &Node, branches: &Branches) -> Option<Arc<CachedDir>> {
        let epoch = self.version().epoch;
        let cached = node.dir_if_any()?.cached.lock().clone();
        let cached = cached.filter(|cached| cached.stamp.epoch == epoch && cached.branches.are(branches))?;
        cached.used.store(true, Ordering::Relaxed);
        Some(cached)
    }

    /// Records that a file is searched for, because its directory is not cached. With the second one in turn, and soon after
    /// that, it is worth caching: who reads two files there reads others. So is that of one which is searched for again and
    /// again. Who reads one after the other, as films are, need not wake the disks that have the directory as well.
    pub(crate) fn searched(&self, dir: NodeId, file: NodeId) {
        let at = Instant::now();
        let mut last = self.searched.lock();
        let again = last.take().filter(|last| last.dir == dir && at.duration_since(last.at) < IN_TURN);
        let times = again.as_ref().map_or(1, |last| last.times.saturating_add(1));
        let is_worth_it = again.is_some_and(|last| last.file != file || times >= AGAIN);
        *last = Some(Searched { dir, file, at, times });
        drop(last);
        if is_worth_it {
            self.wanted.store(dir.0, Ordering::Relaxed);
        }
    }

    /// Returns the directory that is worth caching, once.
    pub(crate) fn take_wanted(&self) -> Option<NodeId> {
        if self.wanted.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(NodeId(self.wanted.swap(0, Ordering::Relaxed))).filter(|dir| dir.0 != 0)
    }

    /// Returns whether a cached directory is still in its place on a branch, as far as changes have been processed. If
    /// directories have come or gone since it was cached, `open` returns the device and inode number of the directory
    /// that is there now.
    pub(crate) fn in_place(
        &self,
        cached: &CachedDir,
        index: usize,
        open: impl FnOnce() -> Option<(u64, u64)>,
    ) -> bool {
        let now = self.version().places;
        let seen = &cached.seen[index];
        if seen.load(Ordering::Acquire) != now {
            if cached.ids[index].is_none_or(|id| open() != Some(id)) {
                return false;
            }
            seen.store(now, Ordering::Release);
        }
        true
    }

    /// Checks that a descriptor, just opened for a file, may stay open for as long as a client likes. Cached
    /// descriptors are closed to make room.
    pub(crate) fn admit(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        self.admit_under(self.reserve, fd)
    }

    /// As `admit`, for a directory that is being listed. Half of the reserve is for these.
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

    /// Caches a directory that was opened after `stamp` was read and the ticket was taken. Keeps what is cached of its
    /// names if these are the same directories. Returns `None` for a directory that cannot be cached: the pool has created
    /// it on a further branch meanwhile, or a part of it is on a separate mount or subvolume, whose changes may be reported
    /// with other paths, or not at all.
    pub(crate) fn insert(
        &self,
        node: &Arc<Node>,
        branches: &Branches,
        opened: &Arc<BranchDirs>,
        (stamp, begun): (CacheVersion, Ticket),
    ) -> Option<Arc<NameIndex>> {
        let (mut ids, mut bytes) = (PerBranch::with_capacity(branches.len()), 0);
        for (index, branch) in branches.iter().enumerate() {
            let attr = match opened.get(branches, index) {
                Some(dir) => Some(cacheable(branch, dir)?),
                None => None,
            };
            bytes += attr.map_or(0, |attr| attr.size);
            ids.push(attr.map(|attr| (attr.dev, attr.ino)));
        }
        let mut used = (0..branches.len()).filter_map(|index| opened.get(branches, index));
        if !used.all(|fd| fd.as_raw_fd() < self.reserve) {
            return None;
        }
        let names = {
            let mut slot = node.dir().cached.lock();
            // Under the lock: if the directory is extended later, this entry is.
            if !self.changes.unchanged(begun, Item::places(node.id)) {
                return None;
            }
            let before = slot.take();
            let same = |before: &&Arc<CachedDir>| {
                before.stamp.epoch == stamp.epoch && before.branches.are(branches) && before.ids == ids
            };
            let names = match before.as_ref().filter(same) {
                Some(before) => Arc::clone(&before.names),
                None => Arc::new(NameIndex::new(bytes, branches.len(), Arc::clone(&self.tally))),
            };
            let (opened, kept_names) = (Arc::clone(opened), Arc::clone(&names));
            let attrs = Arc::default();
            let cached = CachedDir::new(branches.clone(), stamp, opened, ids, kept_names, attrs, &self.tally);
            *slot = Some(cached);
            names
        };
        if !node.dir().in_cache_order.swap(true, Ordering::Relaxed) {
            self.order.lock().push_back(Arc::downgrade(node));
            self.tally.ordered.fetch_add(1, Ordering::Relaxed);
        }
        if self.version() != stamp {
            // Clearing the cache in the meantime may have missed this entry.
            let freed = node.dir().cached.lock().take();
            drop(freed);
        }
        self.evict();
        Some(names)
    }

    /// Records that the pool has created a directory on a further branch. Operations that have begun without that branch go
    /// on so, but what they find is not cached ([`NameIndex::succeed`]). `made` is that very directory, not what has its
    /// path now. What is above the directory must be recorded before: from there it is opened again.
    pub(crate) fn extend(&self, node: &Node, branches: &Branches, index: usize, made: OwnedFd) {
        let attr =
            cacheable(&branches.as_slice()[index], made.as_fd()).filter(|_| made.as_raw_fd() < self.reserve);
        let made = Arc::new(made);
        let (freed, names) = {
            let mut slot = node.dir().cached.lock();
            // From now on, no directory is cached that was opened without the branch.
            self.changes.record(Item::places(node.id));
            let Some(before) = slot.take() else { return };
            match attr.filter(|_| before.branches.are(branches) && before.ids[index].is_none()) {
                None => (before, None),
                Some(attr) => {
                    let (mut opened, mut ids) = ((*before.opened).clone(), before.ids.clone());
                    opened.list[index] = Some(BranchDir::Dir(Arc::clone(&made)));
                    ids[index] = Some((attr.dev, attr.ino));
                    let names = Arc::new(before.names.succeed());
                    let attrs = Arc::clone(&before.attrs);
                    // Of a directory that was there before.
                    attrs.changed(index);
                    *slot = Some(before.with(before.stamp, opened.into(), ids, Arc::clone(&names), attrs));
                    (before, Some(names))
                }
            }
        };
        drop(freed);
        if let Some(names) = names {
            // Another process may have made names in it already.
            names.add_dir(index, made.as_fd());
        }
    }

    /// Records that a directory has come to another place in the tree. Before its next use, it is opened again or, by
    /// callers that verify what they find there, looked for in its place.
    pub(crate) fn moved(&self, node: &Node) {
        let mut slot = node.dir().cached.lock();
        let moved = slot.as_ref().map(|cached| {
            let nowhere = CacheVersion { places: u64::MAX, ..cached.stamp };
            // A branch that does not answer may have the new place.
            let opened = Arc::new(BranchDirs { lacked_by: SmallVec::new(), ..(*cached.opened).clone() });
            let names = Arc::clone(&cached.names);
            cached.with(nowhere, opened, cached.ids.clone(), names, Arc::default())
        });
        let before = std::mem::replace(&mut *slot, moved);
        drop(slot);
        drop(before);
    }

    /// Drops directories that were not used recently, while too much is cached.
    pub(crate) fn evict(&self) {
        let mut chances = None;
        while self.tally.descriptors.load(Ordering::Relaxed) > self.descriptors
            || self.tally.names.load(Ordering::Relaxed) > self.names.load(Ordering::Relaxed)
        {
            let mut order = self.order.lock();
            // Each directory gets a second chance once.
            let chances = chances.get_or_insert(2 * order.len());
            let Some(chances_left) = chances.checked_sub(1) else { return };
            *chances = chances_left;
            let Some(oldest) = order.pop_front() else { return };
            self.tally.ordered.fetch_sub(1, Ordering::Relaxed);
            let Some(node) = oldest.upgrade() else { continue };
            // A thread that caches the directory from now on appends it to the order, or finds that it is there.
            node.dir().in_cache_order.store(false, Ordering::Relaxed);
            let freed = {
                let mut slot = node.dir().cached.lock();
                match slot.as_ref() {
                    Some(cached) if cached.used.swap(false, Ordering::Relaxed) => {
                        if !node.dir().in_cache_order.swap(true, Ordering::Relaxed) {
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

    /// Removes directories that are no longer cached from the order, once they are most of it: an entry keeps a
    /// node's memory allocated long after the node is gone.
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
            let slot = node.dir().cached.lock();
            if slot.is_none() {
                // Under the lock: the thread that caches it next appends it again.
                node.dir().in_cache_order.store(false, Ordering::Relaxed);
            }
            slot.is_some()
        });
        if order.capacity() > 4 * order.len() + FEW {
            order.shrink_to_fit();
        }
        ordered.fetch_sub(before - order.len(), Ordering::Relaxed);
    }

    /// Returns the length of the order, for leak tests.
    pub(crate) fn order_len(&self) -> usize {
        self.order.lock().len()
    }

    /// Records that directories have come to or gone from places on a branch. They are opened again on their next
    /// use.
    pub(crate) fn places_changed(&self) {
        self.places.fetch_add(1, Ordering::Release);
    }

    /// Invalidates everything. What was kept open is closed later.
    pub(crate) fn invalidate(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Invalidates everything and closes what was kept open.
    pub(crate) fn clear(&self) {
        self.clear_but(|_, _| None);
    }

    /// Invalidates everything, and closes what was kept open, except the directories that a branch lacks which is left out
    /// because it does not answer. `before` and `now` are the branches before and after that. Of such a directory every name
    /// can still be known.
    pub(crate) fn leave_out(&self, before: &Branches, now: &Branches) {
        let is_left_out = |branch: &Arc<Branch>| now.index_of(branch.id).is_none();
        let stays = || before.iter().filter(|branch| !is_left_out(branch)).map(|branch| branch.id);
        let (Some(index), true) = (
            before.iter().position(is_left_out),
            stays().eq(now.iter().map(|branch| branch.id)) && before.len() == now.len() + 1,
        ) else {
            return self.clear();
        };
        let then = self.version();
        self.clear_but(|cached, stamp| {
            let is_known = cached.stamp == then && cached.branches.are(before) && cached.ids[index].is_none();
            let is_known =
                is_known && (before.timeout_error().is_none() || !cached.opened.lacked_by.is_empty());
            if !is_known || stamp != (CacheVersion { epoch: then.epoch + 1, ..then }) {
                return None;
            }
            let opened = Arc::new(cached.opened.without(index, &before[index]));
            let mut ids = cached.ids.clone();
            ids.remove(index);
            let names = NameIndex::new(0, now.len(), Arc::clone(&self.tally));
            let attrs = Arc::default();
            Some(CachedDir::new(now.clone(), stamp, opened, ids, Arc::new(names), attrs, &self.tally))
        });
    }

    /// Invalidates everything, and closes what was kept open, except what `keep` turns into something valid as of the
    /// version that follows.
    fn clear_but(&self, keep: impl Fn(&CachedDir, CacheVersion) -> Option<Arc<CachedDir>>) {
        self.invalidate();
        let stamp = self.version();
        self.idle_files.clear();
        let nodes = std::mem::take(&mut *self.order.lock());
        self.tally.ordered.fetch_sub(nodes.len(), Ordering::Relaxed);
        for node in nodes {
            let Some(dir) = node.upgrade() else { continue };
            dir.dir().in_cache_order.store(false, Ordering::Relaxed);
            let (freed, is_kept) = {
                let mut slot = dir.dir().cached.lock();
                let kept = slot.as_ref().and_then(|cached| keep(cached, stamp));
                let is_kept = kept.is_some();
                (std::mem::replace(&mut *slot, kept), is_kept)
            };
            drop(freed);
            if is_kept && !dir.dir().in_cache_order.swap(true, Ordering::Relaxed) {
                self.order.lock().push_back(node);
                self.tally.ordered.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Returns the attributes of a directory on a branch; `None` if it must not be cached. A bind mount of the branch's own
/// filesystem has the branch's device, but its changes are reported with another path.
pub(crate) fn cacheable(branch: &Branch, dir: BorrowedFd<'_>) -> Option<Attr> {
    let (attr, mount) = stat::with_mount(dir).ok()?;
    (attr.dev == branch.dev && mount.is_some() && mount == branch.mount).then_some(attr)
}

#[cfg(test)]
mod tests;
