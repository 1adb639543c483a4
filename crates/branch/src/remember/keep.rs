//! Keeping a record current while its branch is there.

use super::log::Frame;
use super::resume::{Quiet, Witness};
use super::rows::Listing;
use super::scan;
use super::{Inner, Known, MOST_DEAD, MOST_DIRECTORIES, Record, Slot, Stale};
use crate::fs::{beneath, stat};
use canopy_base::lock::rank;
use canopy_base::lock::ranked::MutexGuard;
use canopy_base::path::join;
use canopy_sys::shown::Show as _;
use canopy_sys::thread::ioprio;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long changes gather before the directories are read again, and how long for each name in a directory.
const GATHER: Duration = Duration::from_secs(1);
const GATHER_PER_NAME: Duration = Duration::from_millis(1);
const GATHER_AT_MOST: Duration = Duration::from_secs(60);

/// How a round went.
#[derive(PartialEq, Eq)]
pub(super) enum Round {
    Ended,
    /// The branch is missing.
    Frozen,
}

impl Record {
    /// Reads the branch with this root, unless the witness proves that what is in the record still holds; and again what changes, on a
    /// thread of its own, until the record is frozen. By now, all events are told to the record.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn keep(self: &Arc<Record>, root: OwnedFd, witness: Box<dyn Witness>) -> io::Result<()> {
        let record = Arc::clone(self);
        let keep = move || {
            ioprio::yield_disks();
            record.run(&root, &*witness);
            // Whoever unmounts the disk waits for this.
            drop(root);
        };
        let keeper = thread::Builder::new().name("canopy-names".into()).spawn(keep)?;
        self.inner.lock().keeper = Some(keeper.thread().clone());
        self.inner.lock().wake();
        Ok(())
    }

    fn run(&self, root: &OwnedFd, witness: &dyn Witness) {
        let dev = stat::of(root.as_fd()).map_or(0, |attr| attr.dev);
        let mut quiet = Quiet::new(witness.quiet());
        let mut is_known = self.resume(witness);
        while is_known || self.read_all(root, dev, witness) == Round::Ended {
            is_known = false;
            loop {
                let (missed, queued, frozen, ending, end) = {
                    let inner = self.inner.lock();
                    let ending = !inner.ending.is_empty();
                    (inner.all_stale, !inner.queue.is_empty(), inner.frozen, ending, inner.end)
                };
                if frozen {
                    return;
                }
                if ending {
                    self.end(root, dev, witness, quiet.is_long(end));
                    continue;
                }
                if missed {
                    break;
                }
                if !queued {
                    match quiet.rest(end) {
                        Some(Duration::ZERO) => {
                            self.note_state(witness, false);
                            quiet.noted(self.inner.lock().end);
                        }
                        Some(rest) => thread::park_timeout(rest),
                        None => thread::park(),
                    }
                    continue;
                }
                self.gather();
                if self.read_queued(root, dev) == Round::Frozen {
                    return;
                }
            }
        }
    }

    /// Waits a moment, unless the branch goes, or this process ends.
    fn gather(&self) {
        let until = Instant::now() + GATHER;
        let is_cut = || {
            let inner = self.inner.lock();
            inner.frozen || !inner.ending.is_empty()
        };
        while let Some(rest) = until.checked_duration_since(Instant::now())
            && !is_cut()
        {
            thread::park_timeout(rest);
        }
    }

    /// Reads the whole branch.
    fn read_all(&self, root: &OwnedFd, dev: u64, witness: &dyn Witness) -> Round {
        let covered = witness.covered();
        let missed = {
            let mut inner = self.inner.lock();
            (inner.covered, inner.unread) = (covered, false);
            inner.queue.clear();
            inner.dirs.values_mut().for_each(|slot| slot.queued = false);
            inner.missed
        };
        if self.read_below(root, dev, vec![Box::default()], true) == Round::Frozen {
            return Round::Frozen;
        }
        let mut inner = self.inner.lock();
        if inner.frozen {
            return Round::Frozen;
        }
        if inner.missed == missed {
            (inner.whole, inner.all_stale) = (true, false);
            self.append(&mut inner, &Frame::Whole);
        }
        self.sync(&mut inner);
        Round::Ended
    }

    /// Reads the directories again in which something has happened.
    pub(super) fn read_queued(&self, root: &OwnedFd, dev: u64) -> Round {
        let due = {
            let mut inner = self.inner.lock();
            let now = Instant::now();
            let Inner { queue, dirs, ending, .. } = &mut *inner;
            let at_once = !ending.is_empty();
            let is_due = |path: &mut Box<[u8]>| {
                let Some(slot) = dirs.get_mut(path) else { return true };
                let gather = (GATHER_PER_NAME * slot.names).min(GATHER_AT_MOST);
                let due =
                    at_once || slot.read.is_none_or(|read| now.saturating_duration_since(read) >= gather);
                slot.queued = !due;
                due
            };
            let mut due: Vec<_> = queue.extract_if(.., is_due).collect();
            // Those above come first: what has moved is then read where it is.
            due.sort_unstable();
            due.reverse();
            due
        };
        if due.is_empty() {
            return Round::Ended;
        }
        if self.read_below(root, dev, due, false) == Round::Frozen {
            return Round::Frozen;
        }
        let mut inner = self.inner.lock();
        // The file may be another record's from then on.
        if inner.frozen {
            return Round::Frozen;
        }
        if let Err(why) = self.compact(&mut inner) {
            tracing::warn!("missing: {} cannot be written anew: {why}", self.path.shown());
        }
        self.sync(&mut inner);
        Round::Ended
    }

    /// Reads directories, and those in them that are not known: `all` of them, or those that are new.
    fn read_below(&self, root: &OwnedFd, dev: u64, mut todo: Vec<Box<[u8]>>, all: bool) -> Round {
        while let Some(path) = todo.pop() {
            match self.read_one(root, dev, &path, all) {
                Ok(more) => todo.extend(more),
                Err(Some(errno)) => {
                    // It stays unknown, and the next process tries again.
                    {
                        let mut inner = self.inner.lock();
                        inner.unread |= !inner.dirs.contains_key(&path);
                    }
                    let (branch, path) = (self.branch.shown(), path.shown());
                    tracing::debug!("missing: {path} on {branch} cannot be read: {errno}");
                }
                Err(None) => return Round::Frozen,
            }
        }
        Round::Ended
    }

    /// Reads one directory, and returns which of those in it are to be read. Errors: `None` if the branch is missing by now.
    fn read_one(
        &self,
        root: &OwnedFd,
        dev: u64,
        path: &[u8],
        all: bool,
    ) -> Result<Vec<Box<[u8]>>, Option<Errno>> {
        let opened = scan::open(root.as_fd(), path);
        let dir = match opened {
            Err(errno) if beneath::is_absent(errno) && !path.is_empty() => {
                let mut inner = self.unfrozen()?;
                inner.drop_below(path);
                self.append(&mut inner, &Frame::Drop(path.into()));
                return Ok(Vec::new());
            }
            other => other?,
        };
        // Nothing tells of changes on another filesystem that is mounted there, so what it holds stays unknown.
        if stat::of(dir.as_fd())?.dev != dev {
            return Ok(Vec::new());
        }
        let handle: Box<[u8]> = scan::handle(&dir)?.into();
        self.expect(path, &handle)?;
        let before = self.read_before(path);
        let listing = scan::read(&dir)?;
        self.take(path, handle, listing, before.as_deref(), all)
    }

    /// Returns a directory as it was read the last time.
    fn read_before(&self, path: &[u8]) -> Option<Arc<Listing>> {
        let mut inner = self.inner.lock();
        inner.dirs.get(path).filter(|slot| slot.is_read())?;
        match inner.listing(path) {
            Known::Yes(before) => Some(before),
            Known::No | Known::Unknown => None,
        }
    }

    fn unfrozen(&self) -> Result<MutexGuard<'_, Inner, rank::Leaf>, Option<Errno>> {
        let inner = self.inner.lock();
        if inner.frozen { Err(None) } else { Ok(inner) }
    }

    /// Has events of a directory count that is about to be read.
    fn expect(&self, path: &[u8], handle: &[u8]) -> Result<(), Option<Errno>> {
        let mut inner = self.unfrozen()?;
        if let Some(slot) = inner.dirs.get_mut(path) {
            if *slot.handle == *handle {
                slot.queued = false;
                return Ok(());
            }
            // Another directory has come there. What was below is not below this one.
            inner.drop_below(path);
            self.append(&mut inner, &Frame::Drop(path.into()));
        }
        if inner.dirs.len() >= MOST_DIRECTORIES {
            return Err(Some(Errno::NOMEM));
        }
        let slot = Slot {
            handle: handle.into(),
            at: 0,
            length: 0,
            names: 0,
            stale: Stale::Itself,
            queued: false,
            read: None,
        };
        inner.dirs.insert(path.into(), slot);
        inner.by_handle.insert(handle.into(), path.into());
        Ok(())
    }

    /// Takes over what was read of a directory, and returns which of those in it are to be read.
    fn take(
        &self,
        path: &[u8],
        handle: Box<[u8]>,
        listing: Listing,
        before: Option<&Listing>,
        all: bool,
    ) -> Result<Vec<Box<[u8]>>, Option<Errno>> {
        let mut inner = self.unfrozen()?;
        let mut todo = Vec::new();
        let dirs = |listing: &Listing| -> Vec<(Box<[u8]>, _)> {
            let dirs = listing.rows.iter().filter(|row| row.attr.is_dir());
            dirs.map(|row| (row.name.clone(), row.attr.key())).collect()
        };
        for (name, key) in dirs(&listing) {
            let below = join(path, &name);
            let same = before.and_then(|before| before.get(&name)).is_some_and(|row| row.attr.key() == key);
            if !same && inner.dirs.contains_key(&*below) && before.is_some() {
                inner.drop_below(&below);
                self.append(&mut inner, &Frame::Drop((&*below).into()));
            }
            if all || !same || !inner.dirs.contains_key(&*below) {
                todo.push((&*below).into());
            }
        }
        for (name, _) in before.map(dirs).unwrap_or_default() {
            if !listing.get(&name).is_some_and(|row| row.attr.is_dir()) {
                let below = join(path, &name);
                inner.drop_below(&below);
                self.append(&mut inner, &Frame::Drop((&*below).into()));
            }
        }
        // What has happened since it was opened.
        let again = inner.dirs.get(path).filter(|slot| slot.queued).map(|slot| slot.stale);
        let frame = Frame::Dir { path: path.into(), handle: handle.clone(), listing };
        let at = inner.end;
        self.append(&mut inner, &frame);
        let length = u32::try_from(inner.end.saturating_sub(at)).unwrap_or(0);
        let Frame::Dir { listing, .. } = frame else { return Ok(todo) };
        if length == 0 {
            return Ok(Vec::new());
        }
        inner.put(path.into(), handle.clone(), &listing, (at, length));
        if let Some(slot) = inner.dirs.get_mut(path) {
            slot.read = Some(Instant::now());
            if let Some(stale) = again {
                (slot.stale, slot.queued) = (stale, true);
                self.append(&mut inner, &Frame::Stale { handle, deep: stale == Stale::Below });
            }
        }
        Ok(todo)
    }

    /// Has a machine that loses its power lose little.
    pub(super) fn sync(&self, inner: &mut Inner) {
        if let Some(file) = &inner.file
            && let Err(why) = file.sync_data()
        {
            tracing::warn!("missing: {} cannot be written: {why}", self.path.shown());
        }
    }

    /// Writes the file anew if most of it says nothing any more.
    fn compact(&self, inner: &mut Inner) -> io::Result<()> {
        let dead = inner.end.saturating_sub(inner.live);
        let Some(old) = inner.file.as_ref().filter(|_| dead > MOST_DEAD.max(inner.live)) else {
            return Ok(());
        };
        let (file, mut end) = self.new_file()?;
        let mut moved = Vec::new();
        let mut stale = Vec::new();
        for (path, slot) in inner.dirs.iter().filter(|(_, slot)| slot.is_read()) {
            let mut bytes = vec![0; slot.length as usize];
            old.read_exact_at(&mut bytes, slot.at)?;
            file.write_all_at(&bytes, end)?;
            moved.push((path.clone(), end));
            end += u64::from(slot.length);
            if slot.stale > Stale::Fresh {
                let deep = slot.stale == Stale::Below;
                stale.push(Frame::Stale { handle: slot.handle.clone(), deep });
            }
        }
        let all = [Frame::Whole].into_iter().filter(|_| inner.whole);
        for frame in all.chain(inner.all_stale.then_some(Frame::AllStale)).chain(stale) {
            let bytes = frame.encode();
            file.write_all_at(&bytes, end)?;
            end += bytes.len() as u64;
        }
        file.sync_data()?;
        fs::rename(self.beside(), &self.path)?;
        for (path, at) in moved {
            if let Some(slot) = inner.dirs.get_mut(&path) {
                slot.at = at;
            }
        }
        (inner.file, inner.end, inner.state) = (Some(file), end, None);
        Ok(())
    }
}
