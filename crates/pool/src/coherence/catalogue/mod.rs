//! What the branches hold, as far as it is known: directories with their names, attributes, link targets, and that there are
//! no extended attributes. It makes no system call on a branch: it answers, or the branches must be asked.
//!
//! It knows only by what it has been told: by operations, what they have seen on the branches (`learn`), and by
//! the watch, what has changed there ([`Catalogue::changed`]), whoever did it. Whoever relies on it has processed all events
//! so far ([`Kernel::caught_up`](crate::kernel::Kernel::caught_up)).
//!
//! Changes are numbered. What is learnt comes with the number of the latest change before it was looked at, and is dropped
//! if it has changed since. An event that comes later than what it tells of makes something known needlessly unknown, and
//! no more. Files and directories are identified by the hashes of their file handles, which events carry; they share slots
//! with the number of the latest change. So something may seem to have changed when something else has: too much, never too
//! little.
//!
//! A directory is known by its path, so all directories above it are known, too, with the file handles of all their
//! copies: whatever makes another directory appear at the path, or this one vanish, is an event in one of those.
//!
//! Here is how it is told and asked, by any thread. `dirs` has what is known, `room` bounds it, `log` has what has changed; `rows`
//! and `store` are how it is laid out, and `kept` packs it for the next process.

mod dirs;
mod kept;
mod log;
mod room;
mod rows;
mod store;

pub use kept::{Home, Packed, pack_unknown, packed};
pub(crate) use rows::{Copy, Facts, Row};

use canopy_base::hash;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::fs::magic;
use dirs::State;
use rustix::time::{ClockId, clock_gettime};
use smallvec::SmallVec;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The most names of a directory.
pub(crate) const MAX_ROWS: usize = 1 << 18;
/// How long the attributes of a file are known at least, if nothing is told of it. Those of one that has rested for longer, as
/// long again.
const LEAST: i64 = 86_400;

/// The handles of a directory's copies, as hashes.
pub(crate) type Handles = SmallVec<[u64; 2]>;

/// Returns the hash by which a file is identified here. It is the same in the next process.
pub(crate) fn handle_hash(handle: &[u8]) -> u64 {
    hash::keyed(0, handle)
}

/// A change on a branch, as it is reported.
#[derive(Clone, Copy, Debug)]
pub struct Reported<'a> {
    /// The handle of the directory, and a name in it; `.` if it is about the directory itself.
    pub entry: Option<(&'a [u8], &'a [u8])>,
    /// The handle of what the name leads, or led, to.
    pub target: Option<&'a [u8]>,
    /// A name has come or gone.
    pub names: bool,
    /// It leads, or led, to a directory.
    pub on_dir: bool,
}

/// What is known of a name.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// The branches must be asked.
    Unknown,
    Absent,
    There(Box<Facts>),
}

/// A part of a listing.
#[derive(Debug)]
pub(crate) struct Page {
    /// Facts are there if they may be relied on.
    pub(crate) rows: Vec<Row>,
}

/// What has been seen of a directory by listing it.
pub(crate) struct Listed {
    pub(crate) path: Arc<[u8]>,
    pub(crate) handles: Handles,
    pub(crate) rows: Vec<Row>,
    /// The directories above it that were not known, with the handles of their copies.
    pub(crate) above: Vec<(Arc<[u8]>, Handles)>,
    /// The number of the latest change before the listing began.
    pub(crate) since: u64,
}

/// How much is known.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Extents {
    pub directories: u64,
    /// In the store, without what is unpacked.
    pub bytes: u64,
    /// Of questions, so many were answered, and so many were not.
    pub answered: u64,
    pub asked: u64,
}

/// How old what is learnt must be.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The attributes of a file are not learnt before it has rested for so long: what changes it unseen is likely to do so again.
    pub rested: Duration,
    /// Of one with data: until these are written back, which may take more blocks, or fewer, and is no event.
    pub written_back: Duration,
    /// As that, on XFS, which trims twice in ten minutes what it has allocated beyond the ends of files
    /// (fs.xfs.speculative_prealloc_lifetime).
    pub trimmed: Duration,
}

impl Default for Rules {
    fn default() -> Rules {
        let [rested, written_back, trimmed] = [10, 60, 660].map(Duration::from_secs);
        Rules { rested, written_back, trimmed }
    }
}

#[derive(Default)]
pub struct Catalogue {
    on: AtomicBool,
    /// The number of changes so far.
    told: AtomicU64,
    answered: AtomicU64,
    asked: AtomicU64,
    /// How often something was learnt.
    learnt: AtomicU64,
    state: Mutex<Option<Box<State>>, rank::Catalogue>,
}

impl Catalogue {
    /// Prepares to keep what is known, in a file that nothing else uses. Nothing is known before that is allowed.
    pub fn open(&self, file: File, bound: u64, rules: Rules) {
        let state = State::new(file, bound, rules);
        *self.state.lock() = Some(Box::new(state));
    }

    /// Sets whether all changes are reported, so that anything may be known.
    pub fn allow(&self, allowed: bool) {
        let mut state = self.state.lock();
        let Some(state) = state.as_deref_mut() else { return };
        if self.on.swap(allowed, Ordering::AcqRel) != allowed {
            let now = self.told.load(Ordering::Relaxed) + 1;
            state.clear(now);
            self.told.store(now, Ordering::Release);
        }
    }

    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> Option<R> {
        if !self.is_on() {
            return None;
        }
        self.state.lock().as_deref_mut().map(act)
    }

    /// Returns how much is known; `None` if nothing is kept.
    pub fn extents(&self) -> Option<Extents> {
        self.state.lock().as_deref().map(|state| Extents {
            directories: state.dirs.len() as u64,
            bytes: state.store.bytes(),
            answered: self.answered.load(Ordering::Relaxed),
            asked: self.asked.load(Ordering::Relaxed),
        })
    }

    /// Returns how many questions were not answered.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Returns the number of the latest change that was told. Taken before anything is looked at.
    pub fn now(&self) -> u64 {
        self.told.load(Ordering::Acquire)
    }

    /// Records a change.
    pub fn changed(&self, change: Reported<'_>) {
        self.with(|state| {
            let now = self.told.load(Ordering::Relaxed) + 1;
            state.changed(change, now);
            self.told.store(now, Ordering::Release);
        });
    }

    /// Records that a file changes without being reported from now on, or no longer does. Called before that begins, and
    /// after it has ended.
    pub fn unreported(&self, handle: &[u8], begins: bool) {
        self.with(|state| {
            let (handle, now) = (handle_hash(handle), self.told.load(Ordering::Relaxed) + 1);
            if begins {
                state.log.writing.insert(handle);
            } else {
                state.log.writing.remove(&handle);
            }
            state.log.touch(handle, now);
            self.told.store(now, Ordering::Release);
        });
    }

    /// Records that all changes of files are reported from now on.
    pub fn all_reported(&self) {
        self.with(|state| {
            let now = self.told.load(Ordering::Relaxed) + 1;
            for handle in std::mem::take(&mut state.log.writing) {
                state.log.touch(handle, now);
            }
            self.told.store(now, Ordering::Release);
        });
    }

    /// Forgets everything, and whatever is being looked at.
    pub fn clear(&self) {
        self.with(|state| {
            let now = self.told.load(Ordering::Relaxed) + 1;
            state.clear(now);
            self.told.store(now, Ordering::Release);
        });
    }

    /// Returns what is known of a name in a directory.
    pub(crate) fn find(&self, dir: &[u8], name: &[u8]) -> Found {
        let found = self.with(|state| state.find(dir, name)).unwrap_or(Found::Unknown);
        self.count(!matches!(found, Found::Unknown));
        found
    }

    /// Returns the part of a listing that begins at a position, as long as there is `room`. `None` if the branches must be
    /// asked.
    pub(crate) fn page(&self, dir: &[u8], position: u64, room: impl FnMut(&[u8]) -> bool) -> Option<Page> {
        let page = self.with(|state| state.page(dir, position, room)).flatten();
        self.count(page.is_some());
        page
    }

    fn count(&self, answered: bool) {
        if self.is_on() {
            let counter = if answered { &self.answered } else { &self.asked };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the directories from the root to the one above a path that are not known.
    pub(crate) fn unknown_above(&self, path: &[u8]) -> Vec<Arc<[u8]>> {
        let unknown = |state: &mut State| {
            above(path).filter(|above| !state.dirs.contains_key(*above)).map(Arc::from).collect()
        };
        self.with(unknown).unwrap_or_default()
    }

    /// Records the names of a directory.
    pub(crate) fn learn_names(&self, listed: Listed) {
        self.with(|state| state.learn_names(listed, self.told.load(Ordering::Relaxed) + 1));
        self.learnt.fetch_add(1, Ordering::Relaxed);
    }

    /// Records what a name in a known directory leads to.
    pub(crate) fn learn(&self, dir: &[u8], name: &[u8], facts: Facts) {
        self.with(|state| state.learn(dir, name, facts));
        self.learnt.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds to what is known of a name.
    pub(crate) fn add(&self, dir: &[u8], name: &[u8], add: impl FnOnce(&mut Facts)) {
        self.with(|state| {
            if let Some(facts) = state.facts_mut(dir, name) {
                add(facts);
            }
        });
        self.learnt.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns until when attributes that were seen now are known; `None` if they are not to be learnt. `rested`: for how many
    /// seconds the file has not changed. `data_on`: the type of the filesystem that its data are on, if it has any.
    pub(crate) fn lasting(&self, rested: i64, data_on: Option<u64>) -> Option<i64> {
        let rules = self.with(|state| state.rules)?;
        let least = match data_on {
            None => rules.rested,
            Some(magic::XFS) => rules.trimmed,
            Some(_) => rules.written_back,
        };
        (rested >= least.as_secs().cast_signed()).then(|| seconds() + rested.max(LEAST))
    }
}

/// Returns the paths of the root and the directories down to the one above a path.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    (!path.is_empty()).then_some(0).into_iter().chain(ends).map(|end| &path[..end])
}

/// Returns the seconds of a clock that nobody sets.
fn seconds() -> i64 {
    clock_gettime(ClockId::Boottime).tv_sec
}

#[cfg(test)]
mod tests;
