//! What a branch holds, kept beside the branches, so that it is known when the branch is missing.
//!
//! A [`Record`] belongs to one branch: its directories, with all names, attributes and link targets, in a file on another disk.
//! While the branch is there, a thread reads it once, and from then on the directories in which events say that something has
//! happened. When it goes, the record stays as it is, and the pool shows from it what was there ([`missing`]).
//!
//! It never says too little: a directory in which something has happened that has not been read yet is unknown, and so is one that
//! was never read. Before a change is waited out, a frame in the file says that the directory is stale, so that this holds after a
//! kill as well.

mod keep;
mod log;
pub mod missing;
mod resume;
mod rows;
mod scan;

pub use missing::{Missing, MissingBranch, MissingName, Names};
pub use resume::Witness;
pub use rows::{Listing, Row};

use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_sys::own_dir;
use canopy_sys::shown::Show as _;
use log::Frame;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::Thread;
use std::time::Instant;

/// The most directories of one branch. What is beyond is unknown.
const MOST_DIRECTORIES: usize = 1 << 20;
/// How many directories are kept as they were read last from the file.
const READ_LAST: usize = 16;
/// How much of a file may say nothing any more before it is written anew, if that is more than half of it.
const MOST_DEAD: u64 = 4 << 20;

/// What is known of something on a branch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Known<T> {
    Yes(T),
    /// There is no such thing there.
    No,
    /// It may be there.
    Unknown,
}

/// What is remembered of one branch.
pub struct Record {
    branch: PathBuf,
    path: PathBuf,
    inner: Mutex<Inner, rank::Leaf>,
}

/// What there is in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extent {
    pub directories: u64,
    pub names: u64,
    /// Directories that are unknown, though they are in the record.
    pub stale: u64,
    /// All that the branch holds has been read once.
    pub whole: bool,
}

#[derive(Default)]
struct Inner {
    /// `None` if nothing can be remembered.
    file: Option<File>,
    end: u64,
    /// The bytes of frames that say what holds.
    live: u64,
    dirs: BTreeMap<Box<[u8]>, Slot>,
    by_handle: HashMap<Box<[u8]>, Box<[u8]>>,
    /// Anything may have changed.
    all_stale: bool,
    /// How often anything may have changed.
    missed: u64,
    whole: bool,
    forgotten: bool,
    removed: HashSet<Box<[u8]>>,
    /// Directories to be read again.
    queue: Vec<Box<[u8]>>,
    /// A directory could not be read that has no slot.
    unread: bool,
    /// What was mounted on directories of the branch when all was read ([`Witness::covered`]).
    covered: u64,
    /// The last state in the file, and where its frame ends: it holds as long as that is the end of the file.
    state: Option<(u64, Box<[u8]>)>,
    /// The file that a process before has left, and its length, as long as it has not been decided whether that still holds.
    before: Option<(u64, File)>,
    /// Who reads them, while the branch is there.
    keeper: Option<Thread>,
    /// Who waits for a state in the file, because this process is about to end.
    ending: Vec<Sender<()>>,
    frozen: bool,
    read_last: Vec<(Box<[u8]>, Arc<Listing>)>,
}

/// A directory of the record.
struct Slot {
    handle: Box<[u8]>,
    /// The frame that has it. Without a length, it has not been read yet.
    at: u64,
    length: u32,
    names: u32,
    stale: Stale,
    /// It is in the queue.
    queued: bool,
    read: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stale {
    Fresh,
    /// Its names, or their attributes, may have changed.
    Itself,
    /// So may have directories in it.
    Below,
}

impl Slot {
    fn is_read(&self) -> bool {
        self.length > 0
    }
}

impl Record {
    /// Begins the record of a branch that is there, in the place of the one before.
    ///
    /// # Errors
    /// Those of making the file.
    pub fn begin(path: &Path, branch: &Path) -> io::Result<Record> {
        let record = Record::empty(path, branch);
        {
            let mut inner = record.inner.lock();
            let (file, end) = record.new_file()?;
            fs::rename(record.beside(), path)?;
            (inner.file, inner.end) = (Some(file), end);
        }
        Ok(record)
    }

    /// Returns the record of a branch that is missing; `None` if there is none. Of a damaged one, everything is unknown.
    #[must_use]
    pub fn load(path: &Path, branch: &Path) -> Option<Record> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let file = match opened {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return None,
            Err(why) => {
                tracing::warn!("missing: {} cannot be read: {why}", path.shown());
                None
            }
            Ok(file) => Some(file),
        };
        let record = Record::empty(path, branch);
        if let Some(file) = file {
            let mut inner = record.inner.lock();
            let read = file.metadata().and_then(|meta| {
                log::read(&file, meta.len(), branch.as_os_str().as_bytes(), |frame, at, length| {
                    inner.apply(frame, at, length);
                })
            });
            match read {
                Ok(end) => (inner.file, inner.end) = (Some(file), end),
                Err(why) => {
                    tracing::warn!("missing: {} is damaged, so nothing in it is used: {why}", path.shown());
                    *inner = Inner::default();
                }
            }
            inner.frozen = true;
        }
        Some(record)
    }

    /// Returns the record of a branch of which nothing can be known.
    #[must_use]
    pub fn unknown(path: &Path, branch: &Path) -> Record {
        let record = Record::empty(path, branch);
        record.inner.lock().frozen = true;
        record
    }

    fn empty(path: &Path, branch: &Path) -> Record {
        Record { branch: branch.to_owned(), path: path.to_owned(), inner: Mutex::default() }
    }

    fn beside(&self) -> PathBuf {
        self.path.with_extension("new")
    }

    /// Makes a file beside the one of the record, and returns it with its length.
    fn new_file(&self) -> io::Result<(File, u64)> {
        if let Some(dir) = self.path.parent() {
            own_dir::make_private(dir)?;
        }
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create(true).truncate(true).mode(0o600).open(self.beside())?;
        let head = log::head(self.branch.as_os_str().as_bytes());
        file.write_all_at(&head, 0)?;
        Ok((file, head.len() as u64))
    }

    /// Returns the file in which it is.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the branch.
    #[must_use]
    pub fn branch(&self) -> &Path {
        &self.branch
    }

    /// Takes note of an event in the directory with this handle. `deep`: directories in it have come or gone.
    pub fn changed(&self, handle: &[u8], deep: bool) {
        let mut inner = self.inner.lock();
        if inner.frozen {
            return;
        }
        let Some(path) = inner.by_handle.get(handle).cloned() else { return };
        let stale = if deep { Stale::Below } else { Stale::Itself };
        let Some(slot) = inner.dirs.get_mut(&path) else { return };
        if slot.queued && slot.stale >= stale {
            return;
        }
        slot.stale = slot.stale.max(stale);
        if !std::mem::replace(&mut slot.queued, true) {
            inner.queue.push(path);
        }
        self.append(&mut inner, &Frame::Stale { handle: handle.into(), deep });
        inner.wake();
    }

    /// Takes note that events were lost.
    pub fn missed_events(&self) {
        let mut inner = self.inner.lock();
        if inner.frozen {
            return;
        }
        inner.missed += 1;
        inner.all_stale = true;
        self.append(&mut inner, &Frame::AllStale);
        inner.wake();
    }

    /// Ends it because nothing tells of changes any more: all is unknown from now on, until it begins anew.
    pub fn distrust(&self) {
        let mut inner = self.inner.lock();
        if !inner.frozen {
            inner.missed += 1;
            inner.all_stale = true;
            self.append(&mut inner, &Frame::AllStale);
            inner.freeze();
        }
    }

    /// Leaves the record as it is: the branch is missing from now on. The descriptors of the branch are closed soon.
    pub fn freeze(&self) {
        self.inner.lock().freeze();
    }

    /// Ends it: the branch is dead for good, or nobody misses it. Says so in the file.
    ///
    /// # Errors
    /// Those of writing the file.
    pub fn forget(&self) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let (file, end) = self.new_file()?;
        let frame = Frame::Forgotten.encode();
        file.write_all_at(&frame, end)?;
        file.sync_data()?;
        fs::rename(self.beside(), &self.path)?;
        *inner = Inner {
            file: Some(file),
            end: end + frame.len() as u64,
            forgotten: true,
            frozen: true,
            ..Inner::default()
        };
        Ok(())
    }

    #[must_use]
    pub fn is_forgotten(&self) -> bool {
        self.inner.lock().forgotten
    }

    /// Returns what is in it.
    #[must_use]
    pub fn extent(&self) -> Extent {
        let inner = self.inner.lock();
        let read = inner.dirs.values().filter(|slot| slot.is_read());
        let (mut directories, mut names, mut stale) = (0, 0, 0);
        for slot in read {
            directories += 1;
            names += u64::from(slot.names);
            stale += u64::from(slot.stale > Stale::Fresh);
        }
        Extent { directories, names, stale, whole: inner.whole && !inner.all_stale }
    }

    /// Notes that a directory was removed from the pool while the branch is missing, which has an empty one there.
    pub fn remove(&self, path: &[u8]) {
        let mut inner = self.inner.lock();
        if inner.removed.insert(path.into()) {
            self.append(&mut inner, &Frame::Removed(path.into()));
        }
    }

    /// Returns what is known of a directory.
    #[must_use]
    pub fn dir(&self, path: &[u8]) -> Known<Arc<Listing>> {
        self.inner.lock().dir(path)
    }

    /// Returns what is known of a name.
    #[must_use]
    pub fn name(&self, dir: &[u8], name: &[u8]) -> Known<Row> {
        let mut inner = self.inner.lock();
        let listing = match inner.dir(dir) {
            Known::Yes(listing) => listing,
            Known::No => return Known::No,
            Known::Unknown => return Known::Unknown,
        };
        let Some(row) = listing.get(name) else { return Known::No };
        let path = canopy_base::path::join(dir, name);
        if inner.removed.contains(&*path) {
            return Known::No;
        }
        let mut row = row.clone();
        if row.attr.is_dir()
            && let Known::Yes(own) = inner.dir(&path)
        {
            row.attr = own.own;
        }
        Known::Yes(row)
    }

    /// Passes all that is in it to `take`, directory by directory: the path, and what it holds, `None` if that is unknown.
    pub fn each(&self, mut take: impl FnMut(&[u8], Option<&Listing>)) {
        let paths: Vec<_> = self.inner.lock().dirs.keys().cloned().collect();
        for path in paths {
            match self.dir(&path) {
                Known::Yes(listing) => take(&path, Some(&listing)),
                Known::Unknown => take(&path, None),
                Known::No => {}
            }
        }
    }

    /// Adds a frame. If that fails, nothing is remembered any more, rather than too little.
    fn append(&self, inner: &mut Inner, frame: &Frame) {
        let bytes = frame.encode();
        let Some(file) = &inner.file else { return };
        if let Err(why) = file.write_all_at(&bytes, inner.end) {
            let (path, branch) = (self.path.shown(), self.branch.shown());
            tracing::warn!("missing: {path} cannot be written, so {branch} is not remembered: {why}");
            let _ = file.set_len(0);
            inner.clear(None);
            return;
        }
        inner.end += bytes.len() as u64;
    }
}

impl Inner {
    fn wake(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.unpark();
        }
    }

    fn freeze(&mut self) {
        self.frozen = true;
        // Nobody answers any more.
        self.ending.clear();
        self.wake();
    }

    /// Begins with nothing, in a new file if there is one.
    fn clear(&mut self, file: Option<(File, u64)>) {
        let (file, end) = file.map_or((None, 0), |(file, end)| (Some(file), end));
        let (keeper, ending) = (self.keeper.take(), std::mem::take(&mut self.ending));
        let (frozen, missed) = (self.frozen, self.missed);
        *self = Inner { file, end, keeper, ending, frozen, missed, ..Inner::default() };
    }

    /// Takes over what a frame of the file says.
    fn apply(&mut self, frame: Frame, at: u64, length: u32) {
        match frame {
            Frame::Dir { path, handle, listing } => self.put(path, handle, &listing, (at, length)),
            Frame::Stale { handle, deep } => {
                let path = self.by_handle.get(&handle).cloned();
                if let Some(slot) = path.and_then(|path| self.dirs.get_mut(&path)) {
                    slot.stale = slot.stale.max(if deep { Stale::Below } else { Stale::Itself });
                }
            }
            Frame::AllStale => self.all_stale = true,
            Frame::Drop(path) => self.drop_below(&path),
            Frame::Whole => (self.whole, self.all_stale) = (true, false),
            Frame::Removed(path) => drop(self.removed.insert(path)),
            Frame::Forgotten => self.forgotten = true,
            Frame::State(_) => {}
        }
    }

    /// Takes over a directory that was read.
    fn put(&mut self, path: Box<[u8]>, handle: Box<[u8]>, listing: &Listing, (at, length): (u64, u32)) {
        if let Some(before) = self.dirs.get(&path) {
            self.live -= u64::from(before.length);
            if before.handle != handle {
                self.by_handle.remove(&before.handle.clone());
            }
        }
        self.live += u64::from(length);
        self.read_last.retain(|(other, _)| *other != path);
        self.by_handle.insert(handle.clone(), path.clone());
        let names = u32::try_from(listing.rows.len()).unwrap_or(u32::MAX);
        let slot = Slot { handle, at, length, names, stale: Stale::Fresh, queued: false, read: None };
        self.dirs.insert(path, slot);
    }

    /// Drops a directory and all below it.
    fn drop_below(&mut self, path: &[u8]) {
        let (from, to) = ([path, b"/"].concat(), [path, b"0"].concat());
        let range = (Bound::Included(from.as_slice()), Bound::Excluded(to.as_slice()));
        let below = self.dirs.range::<[u8], _>(range).map(|(path, _)| path.clone());
        let gone: Vec<_> = below.chain([Box::from(path)]).collect();
        for path in gone {
            let Some(slot) = self.dirs.remove(&path) else { continue };
            self.live -= u64::from(slot.length);
            if self.by_handle.get(&slot.handle) == Some(&path) {
                self.by_handle.remove(&slot.handle);
            }
            self.read_last.retain(|(other, _)| *other != path);
        }
    }

    fn dir(&mut self, path: &[u8]) -> Known<Arc<Listing>> {
        if self.forgotten {
            return Known::No;
        }
        if self.all_stale || !self.above(path).all(|slot| slot.stale < Stale::Below) {
            return Known::Unknown;
        }
        if self.removed.contains(path) {
            return Known::No;
        }
        match self.dirs.get(path) {
            Some(slot) if slot.is_read() && slot.stale == Stale::Fresh => self.listing(path),
            Some(_) => Known::Unknown,
            None if path.is_empty() => Known::Unknown,
            None => {
                let (above, name) = canopy_base::path::split(path);
                match self.dir(above) {
                    Known::No => Known::No,
                    Known::Unknown => Known::Unknown,
                    Known::Yes(listing) => match listing.get(name).filter(|row| row.attr.is_dir()) {
                        Some(_) => Known::Unknown,
                        None => Known::No,
                    },
                }
            }
        }
    }

    /// Returns the directories above one that are in the record.
    fn above<'a>(&'a self, path: &'a [u8]) -> impl Iterator<Item = &'a Slot> {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let root = (!path.is_empty()).then_some(0);
        root.into_iter().chain(slashes).filter_map(|end| self.dirs.get(&path[..end]))
    }

    /// Reads a directory from the file.
    fn listing(&mut self, path: &[u8]) -> Known<Arc<Listing>> {
        if let Some((_, listing)) = self.read_last.iter().find(|(other, _)| **other == *path) {
            return Known::Yes(Arc::clone(listing));
        }
        let Some((file, slot)) = self.file.as_ref().zip(self.dirs.get(path)) else { return Known::Unknown };
        match log::listing_at(file, slot.at, slot.length) {
            Ok(listing) => {
                let listing = Arc::new(listing);
                self.read_last.truncate(READ_LAST - 1);
                self.read_last.insert(0, (path.into(), Arc::clone(&listing)));
                Known::Yes(listing)
            }
            Err(why) => {
                tracing::warn!("missing: a record cannot be read: {why}");
                Known::Unknown
            }
        }
    }
}

#[cfg(test)]
mod tests;
