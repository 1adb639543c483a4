//! What is known of the copies on a fast disk that files are read from, and of the reads that call for one. In memory; the copies
//! say themselves of what they are ones ([`canopy_branch::cached`]).

mod figures;
mod notes;
mod originals;
mod spool;

pub(crate) use figures::Counts;
pub use figures::{CacheFigures, CachedFile};
pub(crate) use notes::{Noted, parse as parse_notes};
pub(crate) use spool::{CopyData, OpenCopy, Spool};

use canopy_base::hash::HashMap;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::Branch;
use canopy_branch::cached::{FileId, Found, RESTS, Store, Version};
use canopy_policy::read_cache::{Reads, Room};
use originals::{Original, Originals};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Of so many files without a copy the reads are known. Of more, those that are worth least are forgotten.
const MOST_FILES: usize = 1 << 16;
/// So many files wait for a copy at most; they are open meanwhile. As many more may that were asked for.
const MOST_WAITING: usize = 16;

/// A file that is to have a copy.
pub(crate) struct Waiting {
    pub(crate) id: FileId,
    pub(crate) version: Version,
    pub(crate) branch: Arc<Branch>,
    pub(crate) fd: OwnedFd,
    pub(crate) dirs: Vec<PathBuf>,
    pub(crate) path: Box<[u8]>,
    /// An administrator has asked for it.
    pub(crate) asked: bool,
    /// Its copy, from which it is read as soon as that begins.
    pub(crate) spool: Arc<Spool>,
}

/// A directory of copies.
#[derive(Clone)]
pub(crate) struct Home {
    pub(crate) path: PathBuf,
    pub(crate) room: Room,
    pub(crate) store: Arc<Store>,
    pub(crate) counts: Arc<Counts>,
}

/// A copy that is known, and counted in its [`Store::held`].
struct Copy {
    store: Arc<Store>,
    version: Version,
    bytes: u64,
    /// Opens that it has served.
    hits: u64,
    original: Option<Arc<Original>>,
}

impl Copy {
    fn new(store: &Arc<Store>, version: Version, bytes: u64) -> Copy {
        store.held.files.fetch_add(1, Ordering::Relaxed);
        store.held.bytes.fetch_add(bytes, Ordering::Relaxed);
        Copy { store: Arc::clone(store), version, bytes, hits: 0, original: None }
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
    /// An administrator wants the copy, and nobody has used it since.
    added: bool,
    /// By which it was opened last, of a file with a copy.
    path: Box<[u8]>,
}

/// What a copy is worth: of two, the one that is worth less goes first.
pub(crate) type Worth = (bool, (u64, u64));

impl Known {
    /// What was added stays until it was read.
    fn worth(&self, now: u64) -> Worth {
        (self.added, self.reads.worth(now))
    }
}

#[derive(Default)]
struct Inner {
    homes: Vec<Home>,
    unusable: Vec<(PathBuf, Errno)>,
    files: HashMap<FileId, Known>,
    waiting: VecDeque<Waiting>,
    /// The file that is being copied.
    under_way: Option<(FileId, Version, Arc<Spool>)>,
    /// Why files got no copy that were asked for.
    failed: HashMap<FileId, Errno>,
    /// Copies of files that are gone.
    gone: Vec<FileId>,
}

pub(crate) struct ReadCache {
    /// A file that has not rested for so many milliseconds gets no copy.
    rests: AtomicU64,
    inner: Mutex<Inner, rank::Leaf>,
    /// The reads have changed since they were written down.
    changed: AtomicBool,
    originals: Originals,
}

impl Default for ReadCache {
    fn default() -> ReadCache {
        let cache = ReadCache {
            rests: AtomicU64::new(0),
            inner: Mutex::default(),
            changed: AtomicBool::default(),
            originals: Originals::default(),
        };
        cache.set_rests(RESTS);
        cache
    }
}

/// How far the copy of a file is that was asked for.
pub(crate) enum Asked {
    Whole,
    Waits,
    Copying(u64),
    Failed(Errno),
}

impl ReadCache {
    pub(crate) fn set_rests(&self, long: Duration) {
        self.rests.store(u64::try_from(long.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns whether a file in this state may get a copy now.
    pub(crate) fn is_at_rest(&self, version: &Version) -> bool {
        version.rests(SystemTime::now(), Duration::from_millis(self.rests.load(Ordering::Relaxed)))
    }

    /// Notes a read of a file, now in this state. Returns the place of its copy if that is one of the state, and whether it is to
    /// have one, as `wants` says of its reads. A copy of another state is of no use any more.
    pub(crate) fn read(
        &self,
        id: FileId,
        version: &Version,
        path: &[u8],
        now: u64,
        wants: impl FnOnce(&Reads) -> bool,
    ) -> (Option<Home>, bool) {
        let mut inner = self.inner.lock();
        let Inner { homes, files, .. } = &mut *inner;
        let known = files.entry(id).or_default();
        known.reads.note(now);
        self.changed.store(true, Ordering::Relaxed);
        let store = known.copy.as_mut().filter(|copy| copy.version == *version).map(|copy| {
            copy.hits += 1;
            Arc::clone(&copy.store)
        });
        let wanted = store.is_none() && wants(&known.reads);
        if store.is_some() {
            known.added = false;
            if *known.path != *path {
                known.path = path.into();
            }
        }
        let home =
            store.and_then(|store| homes.iter().find(|home| Arc::ptr_eq(&home.store, &store)).cloned());
        let copies: u64 = homes.iter().map(|home| home.store.held.files.load(Ordering::Relaxed)).sum();
        if files.len() as u64 > MOST_FILES as u64 + copies {
            inner.forget_some(now);
        }
        (home, wanted)
    }

    /// Returns the counts of the first of these directories that is used.
    pub(crate) fn counts(&self, dirs: &[PathBuf]) -> Option<Arc<Counts>> {
        let inner = self.inner.lock();
        let first = inner.homes.iter().find(|home| dirs.contains(&home.path));
        first.map(|home| Arc::clone(&home.counts))
    }

    /// Asks for the copy of a file; `file` makes it wait for one.
    pub(crate) fn ask(
        &self,
        id: &FileId,
        version: &Version,
        file: impl FnOnce() -> Option<Waiting>,
    ) -> Asked {
        {
            let mut inner = self.inner.lock();
            let inner = &mut *inner;
            if let Some(known) = inner.files.get_mut(id)
                && known.copy.as_ref().is_some_and(|copy| copy.version == *version)
            {
                known.added = true;
                self.changed.store(true, Ordering::Relaxed);
                return Asked::Whole;
            }
            if let Some(errno) = inner.failed.remove(id) {
                return Asked::Failed(errno);
            }
            if let Some((_, _, spool)) = inner.under_way.as_ref().filter(|(now, ..)| now == id) {
                return Asked::Copying(spool.upto());
            }
        }
        if let Some(file) = file() {
            self.wait(file);
        }
        Asked::Waits
    }

    /// Has a file copied soon. Returns the copy; `None` if too many wait, or one for another state of it.
    pub(crate) fn wait(&self, file: Waiting) -> Option<Arc<Spool>> {
        let mut inner = self.inner.lock();
        if let Some((_, version, spool)) = inner.under_way.as_ref().filter(|(id, ..)| *id == file.id) {
            return (*version == file.version).then(|| Arc::clone(spool));
        }
        if let Some(other) = inner.waiting.iter_mut().find(|other| other.id == file.id) {
            other.asked |= file.asked;
            return (other.version == file.version).then(|| Arc::clone(&other.spool));
        }
        let most = if file.asked { 2 * MOST_WAITING } else { MOST_WAITING };
        (inner.waiting.len() < most).then(|| {
            let spool = Arc::clone(&file.spool);
            inner.waiting.push_back(file);
            spool
        })
    }

    /// Returns the next file to copy. The one before is done, if there was one.
    pub(crate) fn next_waiting(&self) -> Option<Waiting> {
        let mut inner = self.inner.lock();
        let next = inner.waiting.pop_front();
        inner.under_way = next.as_ref().map(|next| (next.id, next.version, Arc::clone(&next.spool)));
        next
    }

    /// Notes why a file has got no copy, for who has asked for it.
    pub(crate) fn failed(&self, id: FileId, errno: Errno) {
        let mut inner = self.inner.lock();
        // Whoever has gone away does not ask again.
        if inner.failed.len() >= 2 * MOST_WAITING {
            inner.failed.clear();
        }
        inner.failed.insert(id, errno);
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        let inner = self.inner.lock();
        !inner.waiting.is_empty() || !inner.gone.is_empty() || self.originals.are_doubted()
    }

    /// Keeps the original of a copy in the kernel's memory, so that the next open asks no disk.
    pub(crate) fn keep_original(&self, id: &FileId, file: BorrowedFd<'_>, now: u64) {
        let is_kept = |known: &Known| known.copy.as_ref().is_none_or(|copy| copy.original.is_some());
        if self.inner.lock().files.get(id).is_none_or(is_kept) {
            return;
        }
        // Without one, the disk is asked.
        let Ok(original) = self.originals.keep(file) else { return };
        let mut given_up = Vec::new();
        let mut inner = self.inner.lock();
        if let Some(copy) = inner.files.get_mut(id).and_then(|known| known.copy.as_mut()) {
            given_up.extend(copy.original.replace(Arc::new(original)));
        }
        if self.originals.are_too_many() {
            given_up.extend(inner.give_up_some_originals(now));
        }
        // Closing them may wait for a disk.
        drop(inner);
        drop(given_up);
    }

    /// Gives up all originals: the branches are others now.
    pub(crate) fn give_up_originals(&self) {
        let mut inner = self.inner.lock();
        let copies = inner.files.values_mut().filter_map(|known| known.copy.as_mut());
        let given_up: Vec<_> = copies.filter_map(|copy| copy.original.take()).collect();
        drop(inner);
        drop(given_up);
    }

    /// Notes that files may have been removed on their branches.
    pub(crate) fn names_changed(&self) {
        self.originals.doubt();
    }

    /// Gives up the originals without a name, which take room on their disks meanwhile.
    pub(crate) fn give_up_nameless(&self) {
        self.originals.looked_over();
        let kept =
            |(id, known): (&FileId, &Known)| Some((*id, Arc::clone(known.copy.as_ref()?.original.as_ref()?)));
        let mut all: Vec<_> = self.inner.lock().files.iter().filter_map(kept).collect();
        all.retain(|(_, original)| !original.has_name());
        for (id, original) in &all {
            self.take_original(id, |now| Arc::ptr_eq(now, original));
        }
    }

    /// Takes the original of a copy away, if there is one that `goes`.
    fn take_original(&self, id: &FileId, goes: impl Fn(&Arc<Original>) -> bool) -> Option<Arc<Original>> {
        let mut inner = self.inner.lock();
        inner.files.get_mut(id)?.copy.as_mut()?.original.take_if(|original| goes(original))
    }

    /// Gives up the original of a copy, because it is about to be removed.
    pub(crate) fn give_up_original(&self, id: &FileId) {
        // Closing it may wait for its disk.
        drop(self.take_original(id, |_| true));
    }

    /// Notes that a file is gone for good, as its copy is to be.
    pub(crate) fn gone(&self, id: FileId) {
        self.give_up_original(&id);
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
    pub(crate) fn add_home(&self, home: Home, found: &[Found], noted: Vec<(FileId, Noted)>) -> Vec<Found> {
        let mut inner = self.inner.lock();
        let mut surplus = Vec::new();
        for (id, Noted { reads, added, path }) in noted {
            let known = inner.files.entry(id).or_default();
            if known.reads.as_slice().is_empty() {
                known.reads = reads;
            }
            if known.path.is_empty() {
                (known.added, known.path) = (added, path);
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
        file: &Waiting,
        store: &Arc<Store>,
        bytes: u64,
    ) -> Option<(Arc<Store>, Version)> {
        let mut inner = self.inner.lock();
        let known = inner.files.entry(file.id).or_default();
        known.path = file.path.clone();
        known.added |= file.asked;
        self.changed.store(true, Ordering::Relaxed);
        let former = known.copy.replace(Copy::new(store, file.version, bytes))?;
        (former.version != file.version || !Arc::ptr_eq(&former.store, store))
            .then(|| (Arc::clone(&former.store), former.version))
    }

    /// Takes the copy of a file away from what is known.
    pub(crate) fn take(&self, id: &FileId) -> Option<(Arc<Store>, Version)> {
        let copy = self.inner.lock().files.get_mut(id)?.copy.take()?;
        Some((Arc::clone(&copy.store), copy.version))
    }

    /// Returns the place of the copy of a file, and its state.
    pub(crate) fn copy_of(&self, id: &FileId) -> Option<(Arc<Store>, Version)> {
        let inner = self.inner.lock();
        let copy = inner.files.get(id)?.copy.as_ref()?;
        Some((Arc::clone(&copy.store), copy.version))
    }

    /// Notes that the copy of a file is one of another state of it. Returns false if there is none any more.
    pub(crate) fn restamped(&self, id: &FileId, before: &Version, now: Version) -> bool {
        let mut inner = self.inner.lock();
        let copy = inner.files.get_mut(id).and_then(|known| known.copy.as_mut());
        copy.filter(|copy| copy.version == *before).map(|copy| copy.version = now).is_some()
    }

    /// Notes that a path has become another one, with all below it.
    pub(crate) fn renamed(&self, from: &[u8], to: &[u8]) {
        let mut inner = self.inner.lock();
        for known in inner.files.values_mut().filter(|known| !known.path.is_empty()) {
            let rest = known.path.strip_prefix(from).filter(|rest| rest.first().is_none_or(|&b| b == b'/'));
            if let Some(rest) = rest {
                known.path = [to, rest].concat().into();
            }
        }
    }

    /// Returns what a file is worth that is to be copied.
    pub(crate) fn worth_of(&self, id: &FileId, now: u64) -> Worth {
        self.inner.lock().files.get(id).map_or_else(Worth::default, |known| known.worth(now))
    }

    /// Returns all copies.
    pub(crate) fn list(&self) -> Vec<CachedFile> {
        let inner = self.inner.lock();
        let one = |known: &Known| {
            let copy = known.copy.as_ref()?;
            let home = inner.homes.iter().find(|home| Arc::ptr_eq(&home.store, &copy.store))?;
            Some(CachedFile {
                path: known.path.to_vec(),
                dir: home.path.clone(),
                size: copy.version.size,
                bytes: copy.bytes,
                hits: copy.hits,
                used: known.reads.as_slice().last().copied().unwrap_or_default(),
                added: known.added,
            })
        };
        inner.files.values().filter_map(one).collect()
    }

    /// Takes the copies of these paths away from what is known, or all.
    pub(crate) fn take_paths(&self, goes: impl Fn(&[u8]) -> bool) -> Vec<(FileId, Arc<Store>, Version, u64)> {
        let mut inner = self.inner.lock();
        let mut taken = Vec::new();
        for (id, known) in inner.files.iter_mut() {
            if let Some(copy) = known.copy.take_if(|_| goes(&known.path)) {
                known.added = false;
                taken.push((*id, Arc::clone(&copy.store), copy.version, copy.bytes));
            }
        }
        taken
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
        keep: Option<Worth>,
    ) -> Vec<(FileId, Arc<Store>, Version, u64)> {
        let mut inner = self.inner.lock();
        let copies =
            inner.files.iter().filter_map(|(id, known)| Some((known.worth(now), *id, known.copy.as_ref()?)));
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

    pub(crate) fn figures(&self) -> Vec<CacheFigures> {
        let inner = self.inner.lock();
        let used = inner.homes.iter().map(|home| {
            let held = &home.store.held;
            let mut figures = CacheFigures {
                path: home.path.clone(),
                files: held.files.load(Ordering::Relaxed),
                bytes: held.bytes.load(Ordering::Relaxed),
                ..CacheFigures::default()
            };
            home.counts.fill(&mut figures);
            figures
        });
        let unusable = inner.unusable.iter().map(|(path, errno)| CacheFigures {
            path: path.clone(),
            unusable: Some(*errno),
            ..CacheFigures::default()
        });
        used.chain(unusable).collect()
    }

    /// Returns what is to be written down, if it has changed.
    pub(crate) fn notes(&self) -> Option<String> {
        if !self.changed.swap(false, Ordering::Relaxed) {
            return None;
        }
        let inner = self.inner.lock();
        let mut text = String::new();
        for (id, known) in &inner.files {
            let path: &[u8] = if known.copy.is_some() { &known.path } else { b"" };
            if !known.reads.as_slice().is_empty() || !path.is_empty() {
                notes::write(&mut text, id, &known.reads, known.added, path);
            }
        }
        Some(text)
    }

    pub(crate) fn changed(&self) {
        self.changed.store(true, Ordering::Relaxed);
    }
}

impl Inner {
    /// Returns a quarter of the originals, of the files that are worth least. Some other may be worth as little.
    fn give_up_some_originals(&mut self, now: u64) -> Vec<Arc<Original>> {
        let is_kept = |known: &Known| known.copy.as_ref().is_some_and(|copy| copy.original.is_some());
        let mut worth: Vec<_> =
            self.files.values().filter(|known| is_kept(known)).map(|known| known.worth(now)).collect();
        worth.sort_unstable();
        let Some(&quarter) = worth.get(worth.len() / 4) else { return Vec::new() };
        let go = self.files.values_mut().filter(|known| is_kept(known) && known.worth(now) <= quarter);
        go.filter_map(|known| known.copy.as_mut()?.original.take()).collect()
    }

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

    use canopy_policy::random::{Random as _, ThreadRandom};

    impl ReadCache {
        fn put_for_test(&self, id: FileId, store: &Arc<Store>, version: Version) {
            self.inner.lock().files.entry(id).or_default().copy = Some(Copy::new(store, version, 1));
        }
    }

    #[test]
    fn what_is_known_has_a_bound() {
        let cache = ReadCache::default();
        let version = Version { size: 1, mtime: Default::default(), ctime: Default::default() };
        for ino in 0..MOST_FILES as u64 + 10 {
            cache.read(FileId { branch: 1, ino, birth: (0, 0) }, &version, b"", ino, |_| false);
        }
        let known = cache.inner.lock().files.len();
        assert!(known <= MOST_FILES && known > MOST_FILES / 2, "{known}");
        let last = FileId { branch: 1, ino: MOST_FILES as u64, birth: (0, 0) };
        assert!(cache.worth_of(&last, MOST_FILES as u64) > Worth::default());
    }

    /// A load that prefers some files, as a library does.
    #[test]
    fn of_a_zipf_load_nearly_all_is_hit_that_a_perfect_cache_has() {
        const FILES: usize = 2000;
        const ROOM: u64 = 200;
        const READS: u64 = 30_000;
        let home = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(home.path()).unwrap().0);
        let cache = ReadCache::default();
        let path = home.path().to_owned();
        let room = Room::Size(ROOM);
        let counts = Arc::new(Counts::default());
        cache.add_home(Home { path, room, store: Arc::clone(&store), counts }, &[], Vec::new());
        let version = Version { size: 1, mtime: Default::default(), ctime: Default::default() };
        ThreadRandom::seed(39);
        let mut bounds = Vec::new();
        let total = (1..=FILES).fold(0.0, |sum, rank| {
            bounds.push(sum + 1.0 / rank as f64);
            sum + 1.0 / rank as f64
        });
        let (mut hits, mut counted, mut often) = (0, 0, vec![0u64; FILES]);
        for round in 0..READS {
            let (now, at) = (round * 20, ThreadRandom.below(1 << 53) as f64 / (1u64 << 53) as f64 * total);
            let file = bounds.partition_point(|bound| *bound <= at).min(FILES - 1);
            let id = FileId { branch: 1, ino: file as u64, birth: (0, 0) };
            let (hit, wanted) = cache.read(id, &version, b"", now, |_| true);
            // The first reads fill it.
            if round >= READS / 3 {
                (hits, counted) = (hits + u64::from(hit.is_some()), counted + 1);
                often[file] += 1;
            }
            if !wanted {
                continue;
            }
            if cache.bytes(|_| true) >= ROOM {
                cache.take_worst(|_| true, 1, now, Some(cache.worth_of(&id, now)));
            }
            if cache.bytes(|_| true) < ROOM {
                cache.put_for_test(id, &store, version);
            }
        }
        often.sort_unstable_by(|a, b| b.cmp(a));
        // It knows in advance what will be read most.
        let perfect: u64 = often.iter().take(ROOM as usize).sum();
        let share = hits as f64 / perfect as f64;
        assert!(share > 0.9, "{share:.3} of the hits of a perfect cache, of {counted} reads");
    }
}
