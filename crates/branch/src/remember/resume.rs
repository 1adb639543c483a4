//! Going on with the record that a process before has left, without reading the branch.
//!
//! When nothing has happened for a while, and when the process ends, the state of the branch ([`unchanged`](crate::branch::unchanged)) is
//! the last frame of its record. The next process, which is told of all events by then, looks at the state again: if it is the same, all in
//! the record holds. Whatever is written behind the frame makes it say nothing, so no change has to remove it.
//!
//! It goes on in a copy: the process before may still be there, if another pool has taken the place of its own, and writes into its
//! file. Until the state is found to be the same, an empty record is in the place: after a kill meanwhile, nothing is known, because
//! what happened while this process had the branch may be in no record.

use super::keep::Round;
use super::log::{self, Frame};
use super::{Inner, Record, Stale};
use canopy_sys::shown::Show as _;
use rustix::fd::OwnedFd;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How often a state is tried before this process ends: events may still be on their way.
const ATTEMPTS: usize = 3;

/// What tells whether a branch has changed. Called without a lock.
pub trait Witness: Send {
    /// Returns the state of the branch ([`unchanged::state`](crate::branch::unchanged::state)). May wait for the disk.
    ///
    /// # Errors
    /// Why it proves nothing.
    fn state(&self, flush: bool) -> Result<String, String>;

    /// Returns a number for the directories on which something else is mounted: what these hold on the branch is not what is shown.
    fn covered(&self) -> u64;

    /// Has all events so far told, and returns whether that succeeded, and no file is being written of which no event tells.
    fn is_settled(&self) -> bool;

    /// Returns how long nothing must have happened before a state is worth a frame.
    fn quiet(&self) -> Duration;
}

/// For how long nothing has been written to a record.
pub(super) struct Quiet {
    long: Duration,
    /// The end of the file, and since when it is that.
    seen: (u64, Instant),
    /// The end after which a state was tried.
    noted: Option<u64>,
}

impl Quiet {
    pub(super) fn new(long: Duration) -> Quiet {
        Quiet { long, seen: (0, Instant::now()), noted: None }
    }

    /// Returns how long to wait for a state to be due; `None` if there is one.
    pub(super) fn rest(&mut self, end: u64) -> Option<Duration> {
        if self.noted == Some(end) {
            return None;
        }
        if self.seen.0 != end {
            self.seen = (end, Instant::now());
        }
        Some(self.long.saturating_sub(self.seen.1.elapsed()))
    }

    pub(super) fn noted(&mut self, end: u64) {
        self.noted = Some(end);
        self.seen.0 = end;
    }

    /// Returns whether the kernel has written by itself whatever was changed.
    pub(super) fn is_long(&self, end: u64) -> bool {
        self.seen.0 == end && self.seen.1.elapsed() >= 2 * self.long
    }
}

impl Record {
    /// Goes on with the record that a process before has left of a branch that is there, if that still holds ([`Record::keep`]). If not,
    /// it is one that begins.
    ///
    /// # Errors
    /// Those of making the file.
    pub fn take_up(path: &Path, branch: &Path) -> io::Result<Record> {
        let before = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let record = Record::begin(path, branch)?;
        record.inner.lock().before = before.ok();
        Ok(record)
    }

    /// Has the state be noted, because this process is about to end. Who is returned hears when that is over; `None` if there is nothing
    /// to wait for.
    #[must_use]
    pub fn end_soon(&self) -> Option<Receiver<()>> {
        let mut inner = self.inner.lock();
        // While it is read, nobody waits for it.
        if inner.frozen || !inner.whole || inner.all_stale || inner.keeper.is_none() {
            return None;
        }
        let (done, waits) = channel();
        inner.ending.push(done);
        inner.wake();
        Some(waits)
    }

    /// Decides whether what a process before has left still holds, and goes on with that if it does.
    pub(super) fn resume(&self, witness: &dyn Witness) -> bool {
        let Some((size, before)) = self.inner.lock().before.take() else { return false };
        let branch = self.branch.shown();
        let learnt = self.learn(size, &before);
        let why = match learnt.and_then(|(found, last)| self.prove(found, last, witness)) {
            Ok(()) => {
                tracing::info!("missing: the names on {branch} are known from before");
                return true;
            }
            Err(why) => why,
        };
        let _ = fs::remove_file(self.beside());
        tracing::info!("missing: the names on {branch} are read, because {why}");
        false
    }

    /// Returns what is in the first `size` bytes of a file, with a copy of it, and the state in which that holds.
    ///
    /// Errors: why it may not hold.
    fn learn(&self, size: u64, before: &File) -> Result<(Inner, Box<[u8]>), String> {
        let unusable = |why: io::Error| format!("what was known of them cannot be used: {why}");
        let (mut found, mut last) = (Inner::default(), None);
        let end = log::read(before, size, self.branch.as_os_str().as_bytes(), |frame, at, length| {
            last = if let Frame::State(state) = &frame { Some(state.clone()) } else { None };
            found.apply(frame, at, length);
        });
        let is_whole = end.map_err(unusable)? == size;
        let holds = is_whole && found.is_current() && !found.forgotten && found.removed.is_empty();
        let last = last.filter(|_| holds).ok_or("it is unknown in which state they were")?;
        let (copy, _) = self.new_file().map_err(unusable)?;
        // Both begin with the same head.
        let copied = io::copy(&mut before.take(size), &mut &copy).map_err(unusable)?;
        if copied != size {
            return Err("what was known of them is cut off".into());
        }
        copy.sync_data().map_err(unusable)?;
        (found.file, found.end, found.state) = (Some(copy), size, Some((size, last.clone())));
        Ok((found, last))
    }

    /// Goes on with what was found if the branch is in the same state as it was then.
    ///
    /// Errors: why it may not hold. Nothing is taken over then.
    fn prove(&self, found: Inner, last: Box<[u8]>, witness: &dyn Witness) -> Result<(), String> {
        let covered = witness.covered();
        let begun = {
            // Before the state is taken: whatever happens from then on makes one of these stale.
            let mut inner = self.inner.lock();
            let begun = inner.file.take().map(|file| (file, inner.end));
            inner.clear(None);
            (inner.file, inner.end, inner.state) = (found.file, found.end, found.state);
            (inner.dirs, inner.by_handle, inner.live) = (found.dirs, found.by_handle, found.live);
            (inner.covered, inner.all_stale) = (covered, true);
            begun
        };
        // What was changed before is on the disk afterwards.
        let state = self.state(witness, covered, true);
        let mut inner = self.inner.lock();
        let is_same = match state {
            _ if inner.missed > 0 || inner.file.is_none() => Err("what happens to it was not told".into()),
            Ok(state) if state == last => {
                fs::rename(self.beside(), &self.path).map_err(|why| why.to_string())
            }
            Ok(_) => Err("something may have been changed there".into()),
            Err(why) => Err(why),
        };
        match is_same {
            // If the branch is missing by now, nothing has been missed, either.
            Ok(()) => (inner.whole, inner.all_stale) = (true, false),
            Err(_) => inner.clear(begun),
        }
        is_same
    }

    fn state(&self, witness: &dyn Witness, covered: u64, flush: bool) -> Result<Box<[u8]>, String> {
        Ok(format!("{} {covered:016x}", witness.state(flush)?).into_bytes().into())
    }

    /// Writes the state of the branch into the file if all is read. Returns whether it is there.
    pub(super) fn note_state(&self, witness: &dyn Witness, flush: bool) -> bool {
        if !witness.is_settled() {
            return false;
        }
        let covered = witness.covered();
        let end = {
            let inner = self.inner.lock();
            if inner.frozen || !inner.is_current() || inner.covered != covered {
                return false;
            }
            inner.end
        };
        let state = match self.state(witness, covered, flush) {
            Ok(state) => state,
            Err(why) => {
                let branch = self.branch.shown();
                tracing::debug!("missing: the names on {branch} are read again after the next mount: {why}");
                return false;
            }
        };
        // What has happened before the state was taken is told, and would be behind the end.
        if !witness.is_settled() {
            return false;
        }
        let mut inner = self.inner.lock();
        if inner.frozen || inner.end != end || !inner.is_current() {
            return false;
        }
        if inner.state.as_ref().is_some_and(|(at, before)| *at == end && *before == state) {
            return true;
        }
        // After a loss of power, the frame must not be there without those before.
        self.sync(&mut inner);
        let Some(file) = &inner.file else { return false };
        let bytes = Frame::State(state.clone()).encode();
        if let Err(why) = file.write_all_at(&bytes, end) {
            // Nothing is lost but this frame.
            let _ = file.set_len(end);
            tracing::debug!("missing: {} cannot be written: {why}", self.path.shown());
            return false;
        }
        inner.end += bytes.len() as u64;
        inner.state = Some((inner.end, state));
        self.sync(&mut inner);
        true
    }

    /// Reads what is due, notes the state, and tells those who wait. `quiet`: nothing is to be written to the disk.
    pub(super) fn end(&self, root: &OwnedFd, dev: u64, witness: &dyn Witness, quiet: bool) {
        for _ in 0..ATTEMPTS {
            // What has happened so far is queued.
            if witness.is_settled()
                && (self.read_queued(root, dev) == Round::Frozen || self.note_state(witness, !quiet))
            {
                break;
            }
        }
        self.inner.lock().ending.clear();
    }
}

impl Inner {
    /// Returns whether all is read, and nothing has happened since.
    fn is_current(&self) -> bool {
        self.whole
            && !self.all_stale
            && !self.unread
            && self.queue.is_empty()
            && self.dirs.values().all(|slot| slot.is_read() && slot.stale == Stale::Fresh)
    }
}
