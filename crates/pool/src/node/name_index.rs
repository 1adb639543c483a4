//! Which branches may hold which names of one directory.
//!
//! The table says at least what is true: a name that it does not hold is on no branch, and a branch that it does not
//! give for a name does not hold it. It may say too much; who asks a branch in vain takes that back. Names are told
//! apart by a keyed hash of 64 bits, so that a name costs 17 bytes and what the table leaves empty.
//!
//! It is made by listing the directory, once the branches have been asked in vain about as often as listing costs.

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

/// Branches that can be told apart.
const BRANCHES: usize = u64::BITS as usize;

/// Names that one directory may have to be remembered.
const MOST: usize = 1 << 20;

/// Entries that can be listed in the time of asking one branch for one name.
const LISTED: u64 = 4;

/// Bytes of a directory (`st_size`) an entry, about: tmpfs has 20, ext4 and XFS some more.
const ENTRY: u64 = 24;

pub(crate) struct NameIndex {
    /// Questions that a branch has answered with "not here".
    in_vain: AtomicU64,
    /// So many are worth a listing.
    worth: u64,
    state: RwLock<State, rank::NameIndex>,
    tally: Arc<CacheCounters>,
}

#[derive(Default)]
struct State {
    stage: Stage,
    /// Rises with each name that comes.
    changes: u64,
    holders: HashMap<u64, u64, BuildHasherDefault<Hashed>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    Unknown,
    /// Names that come meanwhile are taken in, but nobody is told of any.
    Listing,
    Known,
    /// There are too many names or branches, or they cannot be listed.
    GivenUp,
}

/// Who may hold a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holders {
    mask: u64,
    /// As of when.
    changes: u64,
}

impl Holders {
    pub(crate) fn has(self, index: usize) -> bool {
        self.mask >> index & 1 != 0
    }
}

/// The keys are hashes already.
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
    /// `bytes`: the size of the directory on all branches.
    pub(crate) fn new(bytes: u64, branches: usize, tally: Arc<CacheCounters>) -> Self {
        let stage = if branches > BRANCHES { Stage::GivenUp } else { Stage::Unknown };
        NameIndex {
            in_vain: AtomicU64::new(0),
            worth: LISTED + bytes / ENTRY / LISTED,
            state: RwLock::new(State { stage, ..State::default() }),
            tally,
        }
    }

    /// Who may hold a name; `None` when that is not known.
    pub(crate) fn holders(&self, name: &[u8]) -> Option<Holders> {
        let state = self.state.read();
        if state.stage != Stage::Known {
            return None;
        }
        let mask = state.holders.get(&hash(name)).copied().unwrap_or(0);
        Some(Holders { mask, changes: state.changes })
    }

    /// Branch `index` may hold a name from now on. Told after it was made, and before anybody hears that it was.
    pub(crate) fn add_holder(&self, name: &[u8], index: usize) {
        if index < BRANCHES {
            self.add(name, 1 << index);
        }
    }

    /// Any branch may hold a name, or not.
    pub(crate) fn any_may_hold(&self, name: &[u8]) {
        self.add(name, u64::MAX);
    }

    fn add(&self, name: &[u8], mask: u64) {
        // Not without the lock: a listing that has begun by now may have missed the name.
        if matches!(self.state.read().stage, Stage::Unknown | Stage::GivenUp) {
            return;
        }
        let mut state = self.state.write();
        state.changes += 1;
        state.put(&self.tally, hash(name), mask);
    }

    /// Branch `index` did not hold the name after all when it was asked.
    pub(crate) fn remove_holder(&self, name: &[u8], index: usize, asked: Holders) {
        let mut state = self.state.write();
        if state.changes != asked.changes || state.stage != Stage::Known {
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

    /// So many branches were asked in vain, for want of this table. True once it is worth a listing, to one thread.
    pub(crate) fn count_misses(&self, times: usize) -> bool {
        let before = self.in_vain.fetch_add(times as u64, Ordering::Relaxed);
        before < self.worth && before + times as u64 >= self.worth
    }

    /// Lists the directory, open on each branch that has it.
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
                tracing::debug!("the names of a directory are not remembered: {errno}");
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
                if state.holders.len() > MOST {
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
    /// Directories of which something is remembered.
    pub(crate) dirs: AtomicUsize,
    /// Places in the order that they are to be forgotten in, also of those of which nothing is remembered any more.
    pub(crate) ordered: AtomicUsize,
    pub(crate) descriptors: AtomicUsize,
    pub(crate) names: AtomicUsize,
}
