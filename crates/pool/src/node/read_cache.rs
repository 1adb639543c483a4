//! What is known of the copies on a fast disk that files are read from, and of the reads that call for one. In memory; the copies
//! say themselves of what they are ones ([`canopy_branch::cached`]).

use canopy_base::hash::HashMap;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::Branch;
use canopy_branch::cached::{FileId, Found, Store, Version};
use canopy_branch::fs::stat;
use canopy_policy::read_cache::{Reads, Room};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Of so many files without a copy the reads are known. Of more, those that are worth least are forgotten.
const MOST_FILES: usize = 1 << 16;
/// So many files wait for a copy at most; they are open meanwhile.
const MOST_WAITING: usize = 16;

/// A copy of an open file.
pub(crate) struct OpenCopy {
    pub(crate) fd: Arc<OwnedFd>,
    /// The state of the original that it is a copy of.
    pub(crate) version: Version,
}

impl OpenCopy {
    /// Returns whether the original is still in that state.
    pub(crate) fn is_right(&self, original: &impl AsFd) -> bool {
        stat::of(original.as_fd()).is_ok_and(|attr| Version::of(&attr) == self.version)
    }
}

/// A file that is to have a copy.
pub(crate) struct Waiting {
    pub(crate) id: FileId,
    pub(crate) branch: Arc<Branch>,
    pub(crate) fd: OwnedFd,
    pub(crate) dirs: Vec<PathBuf>,
}

/// A directory of copies.
#[derive(Clone)]
pub(crate) struct Home {
    pub(crate) path: PathBuf,
    pub(crate) room: Room,
    pub(crate) store: Arc<Store>,
}

/// A copy that is known, and counted in its [`Store::held`].
struct Copy {
    store: Arc<Store>,
    version: Version,
    bytes: u64,
}

impl Copy {
    fn new(store: &Arc<Store>, version: Version, bytes: u64) -> Copy {
        store.held.files.fetch_add(1, Ordering::Relaxed);
        store.held.bytes.fetch_add(bytes, Ordering::Relaxed);
        Copy { store: Arc::clone(store), version, bytes }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.store.held.files.fetch_sub(1, Ordering::Relaxed);
        self.store.held.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Known {
    reads: Reads,
    copy: Option<Copy>,
}

#[derive(Default)]
struct Inner {
    homes: Vec<Home>,
    unusable: Vec<(PathBuf, Errno)>,
    files: HashMap<FileId, Known>,
    waiting: VecDeque<Waiting>,
    /// Copies of files that are gone.
    gone: Vec<FileId>,
}

/// What the caches hold, and what came of them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CacheFigures {
    pub files: u64,
    pub bytes: u64,
    /// Opens that were served from a copy, and the bytes that were read from copies.
    pub hits: u64,
    pub bytes_read: u64,
    /// Opens of files that a cache is for, and that had no copy.
    pub misses: u64,
    /// Directories that cannot be used, and why.
    pub unusable: Vec<(PathBuf, Errno)>,
}

#[derive(Default)]
pub(crate) struct ReadCache {
    inner: Mutex<Inner, rank::Leaf>,
    /// The reads have changed since they were written down.
    changed: AtomicBool,
    hits: AtomicU64,
    misses: AtomicU64,
    bytes_read: AtomicU64,
}

impl ReadCache {
    /// Notes a read of a file, now in this state. Returns the place of its copy if that is one of the state, and whether it is to
    /// have one, as `wants` says of its reads. A copy of another state is of no use any more.
    pub(crate) fn read(
        &self,
        id: FileId,
        version: &Version,
        now: u64,
        wants: impl FnOnce(&Reads) -> bool,
    ) -> (Option<Arc<Store>>, bool) {
        let mut inner = self.inner.lock();
        let known = inner.files.entry(id).or_default();
        known.reads.note(now);
        self.changed.store(true, Ordering::Relaxed);
        let store =
            known.copy.as_ref().filter(|copy| copy.version == *version).map(|copy| Arc::clone(&copy.store));
        let wanted = store.is_none() && wants(&known.reads);
        let copies: u64 = inner.homes.iter().map(|home| home.store.held.files.load(Ordering::Relaxed)).sum();
        if inner.files.len() as u64 > MOST_FILES as u64 + copies {
            inner.forget_some(now);
        }
        (store, wanted)
    }

    pub(crate) fn count(&self, hit: bool) {
        let counter = if hit { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_read(&self, bytes: usize) {
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Has a file copied soon.
    pub(crate) fn wait(&self, file: Waiting) {
        let mut inner = self.inner.lock();
        if inner.waiting.len() < MOST_WAITING && !inner.waiting.iter().any(|other| other.id == file.id) {
            inner.waiting.push_back(file);
        }
    }

    pub(crate) fn next_waiting(&self) -> Option<Waiting> {
        self.inner.lock().waiting.pop_front()
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        let inner = self.inner.lock();
        !inner.waiting.is_empty() || !inner.gone.is_empty()
    }

    /// Notes that a file is gone for good, as its copy is to be.
    pub(crate) fn gone(&self, id: FileId) {
        let mut inner = self.inner.lock();
        if inner.files.get(&id).is_some_and(|known| known.copy.is_some()) {
            inner.gone.push(id);
        }
    }

    pub(crate) fn take_gone(&self) -> Vec<FileId> {
        std::mem::take(&mut self.inner.lock().gone)
    }

    pub(crate) fn homes(&self) -> Vec<Home> {
        self.inner.lock().homes.clone()
    }

    pub(crate) fn has_homes_on(&self, dev: u64) -> bool {
        self.inner.lock().homes.iter().any(|home| home.store.dev == dev)
    }

    pub(crate) fn unusable(&self, path: &Path, errno: Errno) -> bool {
        let mut inner = self.inner.lock();
        let is_news = !inner.unusable.iter().any(|(at, why)| at == path && *why == errno);
        inner.unusable.retain(|(at, _)| at != path);
        inner.unusable.push((path.to_owned(), errno));
        is_news
    }

    /// Uses a directory from now on, with the copies that were found there.
    pub(crate) fn add_home(&self, home: Home, found: &[Found], reads: Vec<(FileId, Reads)>) -> Vec<Found> {
        let mut inner = self.inner.lock();
        let mut surplus = Vec::new();
        for (id, reads) in reads {
            let known = inner.files.entry(id).or_default();
            if known.reads.as_slice().is_empty() {
                known.reads = reads;
            }
        }
        for copy in found {
            let known = inner.files.entry(copy.id).or_default();
            // Of two only the later one can be of use.
            let newer = known.copy.as_ref().is_none_or(|other| other.version.ctime < copy.version.ctime);
            let new = Copy::new(&home.store, copy.version, copy.bytes);
            let former = if newer { known.copy.replace(new) } else { Some(new) };
            if let Some(former) = former.filter(|former| Arc::ptr_eq(&former.store, &home.store)) {
                surplus.push(Found { id: copy.id, version: former.version, bytes: former.bytes });
            }
        }
        inner.unusable.retain(|(at, _)| *at != home.path);
        inner.homes.push(home);
        surplus
    }

    /// Forgets the directories that are not to be used any more, and what they hold.
    pub(crate) fn retain_homes(&self, mut stays: impl FnMut(&Path) -> Option<Room>) {
        let mut inner = self.inner.lock();
        inner.homes.retain_mut(|home| stays(&home.path).map(|room| home.room = room).is_some());
        inner.unusable.retain(|(path, _)| stays(path).is_some());
        let Inner { homes, files, .. } = &mut *inner;
        for known in files.values_mut() {
            known.copy.take_if(|copy| !homes.iter().any(|home| Arc::ptr_eq(&home.store, &copy.store)));
        }
    }

    /// Notes a copy that was made. Returns what it takes the place of.
    pub(crate) fn made(
        &self,
        id: FileId,
        store: &Arc<Store>,
        version: Version,
        bytes: u64,
    ) -> Option<(Arc<Store>, Version)> {
        let mut inner = self.inner.lock();
        let former = inner.files.entry(id).or_default().copy.replace(Copy::new(store, version, bytes))?;
        (former.version != version || !Arc::ptr_eq(&former.store, store))
            .then(|| (Arc::clone(&former.store), former.version))
    }

    /// Takes the copy of a file away from what is known.
    pub(crate) fn take(&self, id: &FileId) -> Option<(Arc<Store>, Version)> {
        let copy = self.inner.lock().files.get_mut(id)?.copy.take()?;
        Some((Arc::clone(&copy.store), copy.version))
    }

    pub(crate) fn reads_of(&self, id: &FileId) -> Reads {
        self.inner.lock().files.get(id).map_or_else(Reads::default, |known| known.reads.clone())
    }

    /// Returns how many bytes the copies in these directories take. Asks no disk, and costs no more for many copies.
    pub(crate) fn bytes(&self, of: impl Fn(&Store) -> bool) -> u64 {
        let inner = self.inner.lock();
        let held = |home: &Home| home.store.held.bytes.load(Ordering::Relaxed);
        inner.homes.iter().filter(|home| of(&home.store)).map(held).sum()
    }

    /// Takes copies away from what is known, those that are worth least first, until they have taken so many bytes; none that is
    /// worth as much as `keep`. Returns them.
    pub(crate) fn take_worst(
        &self,
        of: impl Fn(&Store) -> bool,
        bytes: u64,
        now: u64,
        keep: Option<(u64, u64)>,
    ) -> Vec<(FileId, Arc<Store>, Version, u64)> {
        let mut inner = self.inner.lock();
        let copies = inner
            .files
            .iter()
            .filter_map(|(id, known)| Some((known.reads.worth(now), *id, known.copy.as_ref()?)));
        let mut all: Vec<_> = copies
            .filter(|(worth, _, copy)| of(&copy.store) && keep.is_none_or(|keep| *worth < keep))
            .map(|(worth, id, copy)| (worth, id, copy.bytes))
            .collect();
        all.sort_unstable_by_key(|(worth, ..)| *worth);
        let mut freed = 0;
        let go = all.into_iter().take_while(|(.., size)| {
            let goes = freed < bytes;
            freed += size;
            goes
        });
        let go: Vec<FileId> = go.map(|(_, id, _)| id).collect();
        let mut taken = Vec::new();
        for id in go {
            if let Some(copy) = inner.files.get_mut(&id).and_then(|known| known.copy.take()) {
                taken.push((id, Arc::clone(&copy.store), copy.version, copy.bytes));
            }
        }
        taken
    }

    /// Gives back what was taken, because it is still there.
    pub(crate) fn give_back(&self, id: FileId, store: Arc<Store>, version: Version, bytes: u64) {
        self.inner
            .lock()
            .files
            .entry(id)
            .or_default()
            .copy
            .get_or_insert_with(|| Copy::new(&store, version, bytes));
    }

    pub(crate) fn figures(&self) -> CacheFigures {
        let inner = self.inner.lock();
        let sum = |of: fn(&Store) -> u64| inner.homes.iter().map(|home| of(&home.store)).sum();
        CacheFigures {
            files: sum(|store| store.held.files.load(Ordering::Relaxed)),
            bytes: sum(|store| store.held.bytes.load(Ordering::Relaxed)),
            hits: self.hits.load(Ordering::Relaxed),
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            unusable: inner.unusable.clone(),
        }
    }

    /// Returns the reads as text, if they have changed.
    pub(crate) fn notes(&self) -> Option<String> {
        if !self.changed.swap(false, Ordering::Relaxed) {
            return None;
        }
        let inner = self.inner.lock();
        let mut text = String::new();
        for (id, known) in inner.files.iter().filter(|(_, known)| !known.reads.as_slice().is_empty()) {
            let _ = write!(text, "{:x} {:x} {:x} {:x}", id.branch, id.ino, id.birth.0, id.birth.1);
            for time in known.reads.as_slice() {
                let _ = write!(text, " {time}");
            }
            text.push('\n');
        }
        Some(text)
    }

    pub(crate) fn changed(&self) {
        self.changed.store(true, Ordering::Relaxed);
    }
}

/// Returns the reads that a text says; what is no such line is left out.
pub(crate) fn parse_notes(text: &str) -> Vec<(FileId, Reads)> {
    let one = |line: &str| {
        let mut words = line.split(' ');
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        let (branch, ino, sec, nsec) = (number()?, number()?, number()?, number()?);
        let id = FileId { branch, ino, birth: (sec.cast_signed(), u32::try_from(nsec).ok()?) };
        Some((id, words.map(|word| word.parse().ok()).collect::<Option<Reads>>()?))
    };
    text.lines().filter_map(one).collect()
}

impl Inner {
    /// Forgets a part of the files that have no copy.
    fn forget_some(&mut self, now: u64) {
        let without = self.files.iter().filter(|(_, known)| known.copy.is_none());
        let mut worth: Vec<_> = without.map(|(_, known)| known.reads.worth(now)).collect();
        worth.sort_unstable();
        let Some(&middle) = worth.get(worth.len() / 4) else { return };
        self.files.retain(|_, known| known.copy.is_some() || known.reads.worth(now) > middle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_understood_again() {
        let cache = ReadCache::default();
        let version = Version { size: 1, mtime: Default::default(), ctime: Default::default() };
        let id = FileId { branch: u64::MAX, ino: 5, birth: (-1, 9) };
        assert_eq!(cache.notes(), None);
        cache.read(id, &version, 100, |_| false);
        cache.read(id, &version, 200, |_| false);
        let text = cache.notes().unwrap();
        assert_eq!(parse_notes(&text), [(id, [100, 200].into_iter().collect())]);
        assert_eq!(cache.notes(), None);
        assert!(parse_notes("x 1 2 3 4\n1 2 3\n1 2 3 4 x\n").is_empty());
    }

    #[test]
    fn what_is_known_has_a_bound() {
        let cache = ReadCache::default();
        let version = Version { size: 1, mtime: Default::default(), ctime: Default::default() };
        for ino in 0..MOST_FILES as u64 + 10 {
            cache.read(FileId { branch: 1, ino, birth: (0, 0) }, &version, ino, |_| false);
        }
        let known = cache.inner.lock().files.len();
        assert!(known <= MOST_FILES && known > MOST_FILES / 2, "{known}");
        assert!(
            !cache
                .reads_of(&FileId { branch: 1, ino: MOST_FILES as u64, birth: (0, 0) })
                .as_slice()
                .is_empty()
        );
    }
}
