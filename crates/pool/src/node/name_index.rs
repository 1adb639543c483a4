//! An index of which branches may hold which names of one directory.
//!
//! The index may list too much, but never too little: a name that it does not contain is on no branch, and a branch
//! that it does not list for a name does not hold it. A surplus entry costs one failed lookup, which removes it.
//! Names are identified by a keyed 64-bit hash, so a name costs 17 bytes and its share of the table's empty slots. The
//! branches are bits of one word, or up to four positions where there are more branches than bits.
//!
//! The index is built by listing the directory, once about as many lookups have failed on branches as a listing
//! costs.
//!
//! It belongs to one set of opened directories. When the pool creates the directory on a further branch, the names go on
//! to another index ([`NameIndex::succeed`]): an operation that began before does not ask the new directory, so what it
//! finds must not count as absence there.

use canopy_base::hash::{self, Hashed};
use canopy_base::lock::rank;
use canopy_base::lock::ranked::RwLock;
use rustix::fd::BorrowedFd;
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::BuildHasherDefault;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The most branches for which an index has a bit for each. With more, it has the positions of up to [`POSITIONS`].
const BITS: usize = u64::BITS as usize;

/// The most branches of a name that an index tells apart in a pool of more than [`BITS`] branches.
const POSITIONS: usize = 4;

/// The longest name on nearly all filesystems, in bytes (linux/limits.h).
const NAME_MAX: usize = 255;

/// The most names of a directory with an index.
const MAX_NAMES: usize = 1 << 20;

/// The number of entries that can be listed in the time of one lookup on a branch.
const ENTRIES_PER_LOOKUP: u64 = 4;

/// The approximate size of an entry in a directory's `st_size`, in bytes: 20 for tmpfs, somewhat more for ext4 and
/// XFS.
const BYTES_PER_ENTRY: u64 = 24;

pub(crate) struct NameIndex {
    /// There are more branches than bits.
    many: bool,
    /// The number of lookups that branches have answered with "not here".
    misses: AtomicU64,
    /// The number of those that justifies a listing.
    threshold: u64,
    state: RwLock<State, rank::Leaf>,
    tally: Arc<CacheCounters>,
}

#[derive(Default)]
struct State {
    stage: Stage,
    /// Incremented with each name that is added.
    changes: u64,
    holders: HashMap<u64, BranchSet, BuildHasherDefault<Hashed>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    Unknown,
    /// New names are added, but lookups do not use the index yet.
    Listing,
    /// As `Listing`: all names are there but those in a new directory.
    Inherited,
    Known,
    /// There are too many names, or the directory cannot be listed, or the names have gone on to another index.
    GivenUp,
}

/// A set of branches: a bit for each. In a pool of more than [`BITS`] branches, one more than the position of each, in 16
/// bits; zeros fill the rest. A set of more than [`POSITIONS`] of those is [`ALL`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct BranchSet(u64);

const ALL: BranchSet = BranchSet(u64::MAX);

impl BranchSet {
    fn positions(self) -> impl Iterator<Item = u16> {
        (0..POSITIONS).map(move |at| (self.0 >> (16 * at)) as u16)
    }

    fn has(self, index: usize, many: bool) -> bool {
        match many {
            _ if self == ALL => true,
            false => self.0 >> index & 1 != 0,
            true => self.positions().any(|position| usize::from(position) == index + 1),
        }
    }

    fn add(&mut self, index: usize, many: bool) {
        if self.has(index, many) {
            return;
        }
        let free = self.positions().position(|position| position == 0);
        *self = match (many, free, u16::try_from(index + 1)) {
            (false, ..) => BranchSet(self.0 | 1 << index),
            (true, Some(at), Ok(position)) if position != u16::MAX => {
                BranchSet(self.0 | u64::from(position) << (16 * at))
            }
            _ => ALL,
        };
    }

    /// Returns the only branch in the set.
    fn only(self, many: bool) -> Option<usize> {
        if many {
            usize::try_from(self.0).ok().filter(|at| (1..usize::from(u16::MAX)).contains(at)).map(|at| at - 1)
        } else {
            self.0.is_power_of_two().then(|| self.0.trailing_zeros() as usize)
        }
    }
}

/// The branches that may hold a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holders {
    set: BranchSet,
    /// The index has positions.
    many: bool,
    /// The index's `changes` at the lookup.
    changes: u64,
}

impl Holders {
    pub(crate) fn has(self, index: usize) -> bool {
        self.set.has(index, self.many)
    }

    /// Returns the only branch that may hold the name, if there is only one.
    pub(crate) fn only(self) -> Option<usize> {
        self.set.only(self.many)
    }

    /// Returns an empty set, for those that turn out to hold the name.
    pub(crate) fn kept(self) -> HolderSet {
        HolderSet { set: BranchSet::default(), many: self.many }
    }
}

/// The branches that hold a name, or have not been asked, or have not answered.
pub(crate) struct HolderSet {
    set: BranchSet,
    many: bool,
}

impl HolderSet {
    pub(crate) fn add(&mut self, index: usize) {
        self.set.add(index, self.many);
    }
}

impl NameIndex {
    /// `bytes` is the size of the directory on all branches.
    pub(crate) fn new(bytes: u64, branches: usize, tally: Arc<CacheCounters>) -> Self {
        NameIndex {
            many: branches > BITS,
            misses: AtomicU64::new(0),
            threshold: ENTRIES_PER_LOOKUP + bytes / BYTES_PER_ENTRY / ENTRIES_PER_LOOKUP,
            state: RwLock::default(),
            tally,
        }
    }

    /// Returns the index for the same directories and one more, which is new. It has this one's names, and nobody uses
    /// this one any more. It is not used for lookups before it has the names in the new directory ([`NameIndex::add_dir`]).
    pub(crate) fn succeed(&self) -> NameIndex {
        let given_up = State { stage: Stage::GivenUp, ..State::default() };
        let mut state = std::mem::replace(&mut *self.state.write(), given_up);
        match state.stage {
            Stage::Known => state.stage = Stage::Inherited,
            Stage::GivenUp => {}
            // A listing in progress does not list the new directory.
            Stage::Unknown | Stage::Listing | Stage::Inherited => {
                state.clear(&self.tally);
                state.stage = Stage::Unknown;
            }
        }
        NameIndex {
            many: self.many,
            misses: AtomicU64::new(0),
            threshold: self.threshold,
            state: RwLock::new(state),
            tally: Arc::clone(&self.tally),
        }
    }

    /// Adds the names in a new directory, after which lookups use the index if they used the one before.
    pub(crate) fn add_dir(&self, index: usize, dir: BorrowedFd<'_>) {
        if self.state.read().stage == Stage::Inherited {
            self.listed(Stage::Inherited, self.list(index, dir));
        }
    }

    /// Returns the branches that may hold a name; `None` if the index is not built. `None` also for a name that is too long
    /// for most filesystems: a branch answers ENAMETOOLONG then, rather than that it lacks the name.
    pub(crate) fn holders(&self, name: &[u8]) -> Option<Holders> {
        if name.len() > NAME_MAX {
            return None;
        }
        let state = self.state.read();
        if state.stage != Stage::Known {
            return None;
        }
        let set = state.holders.get(&hash::of(name)).copied().unwrap_or_default();
        Some(Holders { set, many: self.many, changes: state.changes })
    }

    /// Records that branch `index` may hold a name. Called after the name was created, and before the kernel learns
    /// of it.
    pub(crate) fn add_holder(&self, name: &[u8], index: usize) {
        self.change(name, |set| set.add(index, self.many));
    }

    /// Records that every branch may hold a name.
    pub(crate) fn any_may_hold(&self, name: &[u8]) {
        self.change(name, |set| *set = ALL);
    }

    fn change(&self, name: &[u8], change: impl FnOnce(&mut BranchSet)) {
        // The lock is necessary: a listing that has begun by now may have missed the name.
        if matches!(self.state.read().stage, Stage::Unknown | Stage::GivenUp) {
            return;
        }
        let mut state = self.state.write();
        state.changes += 1;
        change(state.holders_of(&self.tally, hash::of(name)));
    }

    /// Records which of the branches that might hold a name, according to a `lookup` of the index, still may.
    pub(crate) fn keep_holders(&self, name: &[u8], kept: &HolderSet, lookup: Holders) {
        if kept.set == lookup.set {
            return;
        }
        let mut state = self.state.write();
        if state.changes != lookup.changes || state.stage != Stage::Known {
            return;
        }
        if let Entry::Occupied(mut entry) = state.holders.entry(hash::of(name)) {
            *entry.get_mut() = kept.set;
            if kept.set == BranchSet::default() {
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
        self.listed(Stage::Listing, dirs.into_iter().try_for_each(|(index, dir)| self.list(index, dir)));
    }

    fn listed(&self, stage: Stage, listed: Result<(), Errno>) {
        let mut state = self.state.write();
        if state.stage != stage {
            // Meanwhile the names have gone on to another index.
            state.clear(&self.tally);
            return;
        }
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
                name => batch.push(hash::of(name)),
            }
            if entries.is_buffer_empty() {
                let mut state = self.state.write();
                for hash in batch.drain(..) {
                    state.holders_of(&self.tally, hash).add(index, self.many);
                }
                if state.holders.len() > MAX_NAMES {
                    return Err(Errno::NOMEM);
                }
            }
        }
        let mut state = self.state.write();
        batch.drain(..).for_each(|hash| state.holders_of(&self.tally, hash).add(index, self.many));
        Ok(())
    }
}

impl State {
    /// Returns the branches that may hold the name with this hash.
    fn holders_of(&mut self, tally: &CacheCounters, hash: u64) -> &mut BranchSet {
        self.holders.entry(hash).or_insert_with(|| {
            tally.names.fetch_add(1, Ordering::Relaxed);
            BranchSet::default()
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn an_index_may_list_too_much_but_never_too_little() {
        for branches in [3, 64, 65, 1000] {
            let index = NameIndex::new(0, branches, Arc::default());
            index.build_from(std::iter::empty());
            let holders = |name: &[u8]| index.holders(name).unwrap();
            let last = branches - 1;
            index.add_holder(b"one", last);
            assert_eq!((0..branches).filter(|&at| holders(b"one").has(at)).collect::<Vec<_>>(), [last]);
            assert_eq!((holders(b"one").only(), holders(b"none").only()), (Some(last), None));
            // Each added branch stays, however many there are.
            for at in (0..branches).step_by(branches.div_ceil(9)) {
                index.add_holder(b"many", at);
                assert!((0..=at).step_by(branches.div_ceil(9)).all(|at| holders(b"many").has(at)));
            }
            assert_eq!((holders(b"many").only(), holders(b"many").has(0)), (None, true));
            // A lookup narrows the set to those that hold the name.
            index.any_may_hold(b"many");
            assert!((0..branches).all(|at| holders(b"many").has(at)));
            let lookup = holders(b"many");
            let mut kept = lookup.kept();
            kept.add(1);
            index.keep_holders(b"many", &kept, lookup);
            assert_eq!(holders(b"many").only(), Some(1));
            // Not if a name was added meanwhile.
            index.add_holder(b"many", 2);
            index.keep_holders(b"many", &kept, lookup);
            assert!(holders(b"many").has(2));
            let lookup = holders(b"many");
            index.keep_holders(b"many", &lookup.kept(), lookup);
            assert!(!(0..branches).any(|at| holders(b"many").has(at)));
        }
    }

    #[test]
    fn an_index_is_not_used_before_all_directories_are_listed() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        std::fs::write(dirs[0].path().join("first"), "").unwrap();
        let open = |at: usize| rustix::fs::open(dirs[at].path(), OFlags::PATH, Mode::empty()).unwrap();
        let (first, second) = (open(0), open(1));
        let index = NameIndex::new(0, 2, Arc::default()).succeed();
        let both = [(1, second.as_fd()), (0, first.as_fd())].into_iter().inspect(|_| {
            // The thread that has extended the directory.
            index.add_dir(1, second.as_fd());
            assert!(index.holders(b"first").is_none());
        });
        index.build_from(both);
        assert_eq!(index.holders(b"first").unwrap().only(), Some(0));
        let next = index.succeed();
        assert!(index.holders(b"first").is_none() && next.holders(b"first").is_none());
        next.add_dir(1, second.as_fd());
        assert_eq!(next.holders(b"first").unwrap().only(), Some(0));
    }
}
