//! An index of which branches may hold which names of one directory.
//!
//! The index may list too much, but never too little: a name that it does not contain is on no branch, and a branch
//! that it does not list for a name does not hold it. A surplus entry costs one failed lookup, which removes it.
//! Names are identified by a keyed 64-bit hash, so a name costs 17 bytes and its share of the table's empty slots.
//!
//! The index is built by listing the directory, once about as many lookups have failed on branches as a listing
//! costs.

use crate::lock::rank;
use crate::lock::ranked::RwLock;
use rapidhash::fast::RandomState;
use rustix::fd::BorrowedFd;
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// The most branches that an index can tell apart.
const MAX_BRANCHES: usize = u64::BITS as usize;

/// The most names of a directory with an index.
const MAX_NAMES: usize = 1 << 20;

/// The number of entries that can be listed in the time of one lookup on a branch.
const ENTRIES_PER_LOOKUP: u64 = 4;

/// The approximate size of an entry in a directory's `st_size`, in bytes: 20 for tmpfs, somewhat more for ext4 and
/// XFS.
const BYTES_PER_ENTRY: u64 = 24;

pub(crate) struct NameIndex {
    /// The number of lookups that branches have answered with "not here".
    misses: AtomicU64,
    /// The number of those that justifies a listing.
    threshold: u64,
    state: RwLock<State, rank::NameIndex>,
    tally: Arc<CacheCounters>,
}

#[derive(Default)]
struct State {
    stage: Stage,
    /// Incremented with each name that is added.
    changes: u64,
    holders: HashMap<u64, u64, BuildHasherDefault<Hashed>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    Unknown,
    /// New names are added, but lookups do not use the index yet.
    Listing,
    Known,
    /// There are too many names or branches, or the directory cannot be listed.
    GivenUp,
}

/// The branches that may hold a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holders {
    mask: u64,
    /// The index's `changes` at the lookup.
    changes: u64,
}

impl Holders {
    pub(crate) fn has(self, index: usize) -> bool {
        self.mask >> index & 1 != 0
    }
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only whole hashes are hashed")
    }
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

fn hash(name: &[u8]) -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEY.hash_one(name)
}

impl NameIndex {
    /// `bytes` is the size of the directory on all branches.
    pub(crate) fn new(bytes: u64, branches: usize, tally: Arc<CacheCounters>) -> Self {
        let stage = if branches > MAX_BRANCHES { Stage::GivenUp } else { Stage::Unknown };
        NameIndex {
            misses: AtomicU64::new(0),
            threshold: ENTRIES_PER_LOOKUP + bytes / BYTES_PER_ENTRY / ENTRIES_PER_LOOKUP,
            state: RwLock::new(State { stage, ..State::default() }),
            tally,
        }
    }

    /// Returns the branches that may hold a name; `None` if the index is not built.
    pub(crate) fn holders(&self, name: &[u8]) -> Option<Holders> {
        let state = self.state.read();
        if state.stage != Stage::Known {
            return None;
        }
        let mask = state.holders.get(&hash(name)).copied().unwrap_or(0);
        Some(Holders { mask, changes: state.changes })
    }

    /// Records that branch `index` may hold a name. Called after the name was created, and before the kernel learns
    /// of it.
    pub(crate) fn add_holder(&self, name: &[u8], index: usize) {
        if index < MAX_BRANCHES {
            self.add(name, 1 << index);
        }
    }

    /// Records that every branch may hold a name.
    pub(crate) fn any_may_hold(&self, name: &[u8]) {
        self.add(name, u64::MAX);
    }

    fn add(&self, name: &[u8], mask: u64) {
        // The lock is necessary: a listing that has begun by now may have missed the name.
        if matches!(self.state.read().stage, Stage::Unknown | Stage::GivenUp) {
            return;
        }
        let mut state = self.state.write();
        state.changes += 1;
        state.put(&self.tally, hash(name), mask);
    }

    /// Records that branch `index` turned out not to hold the name, in a `lookup` of the index.
    pub(crate) fn remove_holder(&self, name: &[u8], index: usize, lookup: Holders) {
        let mut state = self.state.write();
        if state.changes != lookup.changes || state.stage != Stage::Known {
            return;
        }
        if let Entry::Occupied(mut entry) = state.holders.entry(hash(name)) {
            *entry.get_mut() &= !(1 << index);
            if *entry.get() == 0 {
                entry.remove();
                self.tally.names.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Counts lookups that failed on branches for want of the index. Returns true to one thread, once a listing is
    /// justified.
    pub(crate) fn count_misses(&self, times: usize) -> bool {
        let before = self.misses.fetch_add(times as u64, Ordering::Relaxed);
        before < self.threshold && before + times as u64 >= self.threshold
    }

    /// Builds the index from the directory's descriptors on the branches that hold it.
    pub(crate) fn build_from<'a>(&self, dirs: impl Iterator<Item = (usize, BorrowedFd<'a>)>) {
        {
            let mut state = self.state.write();
            if state.stage != Stage::Unknown {
                return;
            }
            state.stage = Stage::Listing;
        }
        let listed = dirs.into_iter().try_for_each(|(index, dir)| self.list(index, dir));
        let mut state = self.state.write();
        state.stage = match listed {
            Ok(()) => Stage::Known,
            Err(errno) => {
                tracing::debug!("the names of a directory cannot be indexed: {errno}");
                state.clear(&self.tally);
                Stage::GivenUp
            }
        };
    }

    fn list(&self, index: usize, dir: BorrowedFd<'_>) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOATIME;
        let open = |flags| rustix::fs::openat(dir, c".", flags, Mode::empty());
        let dir = match open(flags) {
            Err(Errno::PERM) => open(flags - OFlags::NOATIME),
            other => other,
        }?;
        let mut buffer = [MaybeUninit::uninit(); 32 << 10];
        let mut entries = RawDir::new(&dir, &mut buffer);
        let mut batch: Vec<u64> = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry?;
            match entry.file_name().to_bytes() {
                b"." | b".." => {}
                name => batch.push(hash(name)),
            }
            if entries.is_buffer_empty() {
                let mut state = self.state.write();
                for hash in batch.drain(..) {
                    state.put(&self.tally, hash, 1 << index);
                }
                if state.holders.len() > MAX_NAMES {
                    return Err(Errno::NOMEM);
                }
            }
        }
        let mut state = self.state.write();
        batch.drain(..).for_each(|hash| state.put(&self.tally, hash, 1 << index));
        Ok(())
    }
}

impl State {
    fn put(&mut self, tally: &CacheCounters, hash: u64, mask: u64) {
        match self.holders.entry(hash) {
            Entry::Occupied(mut entry) => *entry.get_mut() |= mask,
            Entry::Vacant(entry) => {
                entry.insert(mask);
                tally.names.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn clear(&mut self, tally: &CacheCounters) {
        tally.names.fetch_sub(self.holders.len(), Ordering::Relaxed);
        self.holders = HashMap::default();
    }
}

impl Drop for NameIndex {
    fn drop(&mut self) {
        self.state.get_mut().clear(&self.tally);
    }
}

#[derive(Default)]
pub(crate) struct CacheCounters {
    /// The number of cached directories.
    pub(crate) dirs: AtomicUsize,
    /// The length of the order in which directories are dropped, including nodes that are no longer cached.
    pub(crate) ordered: AtomicUsize,
    pub(crate) descriptors: AtomicUsize,
    pub(crate) names: AtomicUsize,
}
