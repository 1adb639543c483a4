//! From what happened on a branch to what the kernel must forget: exactly that.
//!
//! An event names a directory and a name in it. It says that something happened there, not what is there now: several
//! may be told as one, and by the time they are read the directory may have moved. So nothing is concluded but that the
//! kernel must ask again, which does no harm where it need not have.

use super::filesystems::Filesystems;
use super::notifications::{Notices, Repeats, Round};
use crate::coherence::Coherence;
use canopy_pool::Pool;
use canopy_pool::config::Func;
use canopy_pool::policy::{self, Category};
use canopy_sys::fanotify::{self, Event};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// Bytes of events that are worked on at once; some hundreds of events.
const BUFFER: usize = 32 << 10;

/// Names in a directory that has come, beyond which all names are looked up again instead.
const BELOW: usize = 10_000;

const NAMES: u64 = fanotify::CREATE | fanotify::DELETE | fanotify::MOVED_FROM | fanotify::MOVED_TO;
const MOVED: u64 = fanotify::MOVED_FROM | fanotify::MOVED_TO;

/// For how long what happens is left to gather, once it is the pool's own and there is much of it: who makes a file
/// through the pool then wakes nobody up. From, to; a small part of what is promised.
const RESTS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(8)];

pub(crate) struct Reader {
    buffer: Vec<u8>,
    /// This process: what it does is what the pool does, of which the kernel knows.
    own: i32,
    repeats: Repeats,
    /// How long what happens was left to gather last; none if it was not.
    rest: Option<Duration>,
    /// What was read since, by whomever, can wait.
    calm: bool,
    /// Files that were closed; to be told by the thread that watches, so that nobody who asks for something waits for it.
    written: Notices,
}

/// What is in the queue after a part of it was worked on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    Nothing,
    Perhaps,
}

impl Reader {
    pub(crate) fn new() -> Reader {
        let own = std::process::id().cast_signed();
        Reader {
            buffer: vec![0; BUFFER],
            own,
            repeats: Repeats::default(),
            rest: None,
            calm: false,
            written: Notices::default(),
        }
    }

    /// Whether nobody need be woken by what happens next, and how long there is nothing to do; `None` for ever.
    pub(crate) fn rest(&mut self) -> (bool, Option<Duration>) {
        let [least, most] = RESTS;
        let longer = self.rest.map_or(least, |rest| (rest * 2).min(most));
        self.rest = std::mem::take(&mut self.calm).then_some(longer);
        let due = self.repeats.next().map(|at| at.saturating_duration_since(Instant::now()));
        (self.rest.is_some(), self.rest.into_iter().chain(due).min())
    }

    /// Works on what has happened by now, and on what is due. `most`: on no more than so many bytes, for somebody who
    /// waits for it.
    pub(crate) fn work(
        &mut self,
        (pool, coherence): (&Pool, &Coherence),
        group: BorrowedFd<'_>,
        filesystems: &mut Filesystems,
        most: Option<usize>,
    ) -> Result<Left, Errno> {
        let room = most.unwrap_or(BUFFER).min(BUFFER);
        let (length, left) = match rustix::io::read(group, &mut self.buffer[..room]) {
            Err(Errno::AGAIN) => (0, Left::Nothing),
            Err(Errno::INTR) => (0, Left::Perhaps),
            // It gives what there is as long as there is room (fs/notify/fanotify/fanotify_user.c).
            Ok(length) if room - length >= fanotify::EVENT_MAX => (length, Left::Nothing),
            Ok(length) => (length, Left::Perhaps),
            Err(errno) => return Err(errno),
        };
        let mut round = Round::default();
        let mut urgent = false;
        let mut gathering = Gathering {
            pool,
            coherence,
            filesystems,
            round: &mut round,
            own: self.own,
            looked_at: HashSet::new(),
        };
        for event in fanotify::events(&self.buffer[..length]) {
            urgent |= event.pid != self.own && event.mask != fanotify::CLOSE_WRITE;
            gathering.take(&event);
        }
        self.calm = !urgent && (self.calm || length > 0);
        filesystems.rest();
        round.now.send(coherence);
        self.written.add(round.written);
        // While it rests it will come by itself, and soon.
        if most.is_none() || self.rest.is_none() {
            std::mem::take(&mut self.written).send(coherence);
        }
        let now = Instant::now();
        self.repeats.add(now, round.again);
        self.repeats.send_due(now, coherence);
        Ok(left)
    }
}

struct Gathering<'a> {
    pool: &'a Pool,
    coherence: &'a Coherence,
    filesystems: &'a mut Filesystems,
    round: &'a mut Round,
    own: i32,
    /// Handles of files whose nodes are in the round already.
    looked_at: HashSet<Vec<u8>>,
}

impl Gathering<'_> {
    fn take(&mut self, event: &Event<'_>) {
        let dir_moved = event.mask & fanotify::ONDIR != 0 && event.mask & MOVED != 0;
        let own = event.pid == self.own;
        if own && !dir_moved && !self.overlap() {
            return;
        }
        if event.mask & fanotify::OVERFLOW != 0 {
            tracing::info!(
                "more has changed on the branches than could be told: all names are looked up again"
            );
            return self.all();
        }
        let Some(place) = event.entry else { return };
        if dir_moved {
            self.filesystems.forget_places(place.fsid);
        }
        if own && !self.overlap() {
            return;
        }
        if event.mask & fanotify::ONDIR != 0 && event.mask & NAMES != 0 {
            self.pool.places_changed();
        }
        // The directory's path on the branch and in the node table must be of one moment.
        let lost = self.pool.with_tree_locked(|moves| -> Result<(), Errno> {
            let dirs = self.filesystems.places(place.fsid, place.dir, moves)?;
            // All names of a file are one node, whichever of them it happened by. Who has renamed it since has told so.
            let mut found = event.mask & fanotify::ONDIR != 0 || dirs.is_empty();
            for dir in dirs.iter() {
                found |= self.happened(dir, place.name, event)? && event.mask == fanotify::CLOSE_WRITE;
            }
            if !found {
                self.file(place.fsid, event);
            }
            Ok(())
        });
        if let Err(errno) = lost {
            tracing::warn!("cannot tell where something has changed: {errno}; all names are looked up again");
            self.all();
        }
    }

    /// Can what the pool has changed itself show at a place that it does not know of?
    fn overlap(&mut self) -> bool {
        self.filesystems.overlap(self.pool)
    }

    fn all(&mut self) {
        self.pool.changes_missed();
        self.coherence.listings_changed();
        self.coherence.anything_changed();
        self.round.now.all = true;
        self.round.again.all = true;
    }

    /// Something happened to a name in a directory of the pool; true if a node is known by it.
    fn happened(&mut self, dir: &[u8], name: &[u8], event: &Event<'_>) -> Result<bool, Errno> {
        let mask = event.mask;
        let known = self.pool.known();
        // Of what is not known the kernel knows nothing, nor of what lies below.
        let Some(dir) = known.dir(dir) else { return Ok(false) };
        if name == b"." {
            self.round.node(self.coherence, dir, false);
            return Ok(true);
        }
        let named = mask & NAMES != 0;
        if named {
            self.pool.name_changed(dir, name);
            self.coherence.is_worked_in(dir);
        }
        // Which copy is shown may depend on which was changed last.
        let shows = self.pool.config().policies.get(Func::Getattr);
        if named || !policy::first_only(shows, Category::Search) {
            self.round.name(self.coherence, dir, name);
        } else {
            // Who looks it up at this moment has entered in the table what he found, or is told that it is out of date.
            self.coherence.name_changed(dir, name);
        }
        if named {
            self.round.node(self.coherence, dir, true);
        }
        let Some(child) = known.child(dir, name) else { return Ok(false) };
        self.file_changed(child.node, mask);
        if !child.is_dir || mask & fanotify::ONDIR == 0 {
            return Ok(true);
        }
        if mask & (fanotify::DELETE | fanotify::MOVED_FROM) != 0 {
            self.gone(child.node);
        }
        match event.target.zip(event.entry) {
            Some((target, place)) if mask & fanotify::MOVED_TO != 0 => {
                let mut left = BELOW;
                if let Some(found) = self.filesystems.find(place.fsid, target) {
                    self.came(child.node, found.as_fd(), &mut left)?;
                }
            }
            _ => {}
        }
        Ok(true)
    }

    /// A directory has gone from a branch. What moved out of it before cannot be told any more once it is gone, so all
    /// that is known below is to be looked up again; that something is missing there is as true as before.
    fn gone(&mut self, dir: canopy_pool::NodeId) {
        // Also what is being looked up there at this moment.
        self.coherence.anything_changed();
        for below in self.pool.known().below(dir) {
            self.round.name(self.coherence, below.parent, &below.name);
            self.round.node(self.coherence, below.node, below.is_dir);
        }
    }

    /// A directory has come to a branch, with all that is in it, to where the kernel knows of a directory: what it holds
    /// is not missing there any more.
    fn came(
        &mut self,
        node: canopy_pool::NodeId,
        dir: BorrowedFd<'_>,
        left: &mut usize,
    ) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match rustix::fs::openat(dir, c".", flags, Mode::empty()) {
            // It has gone meanwhile, which will be told.
            Err(Errno::NOENT | Errno::STALE) => return Ok(()),
            result => result?,
        };
        self.round.node(self.coherence, node, true);
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(&dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                // Removed while it is read.
                Err(Errno::NOENT) => return Ok(()),
                result => result?,
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            *left = left.checked_sub(1).ok_or(Errno::TOOBIG)?;
            self.round.name(self.coherence, node, name.to_bytes());
            let Some(child) = self.pool.known().child(node, name.to_bytes()) else { continue };
            self.round.node(self.coherence, child.node, false);
            if child.is_dir {
                let path = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match rustix::fs::openat(&dir, name, path, Mode::empty()) {
                    Ok(below) => self.came(child.node, below.as_fd(), left)?,
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        Ok(())
    }

    fn file_changed(&mut self, node: canopy_pool::NodeId, mask: u64) {
        match mask {
            fanotify::CLOSE_WRITE => self.round.written(self.coherence, node),
            _ => self.round.node(self.coherence, node, false),
        }
    }

    /// Something happened to a file, which may be known by another name.
    fn file(&mut self, fsid: u64, event: &Event<'_>) {
        let Some(target) = event.target else { return };
        if event.mask != fanotify::CLOSE_WRITE && !self.looked_at.insert(target.to_vec()) {
            return;
        }
        // Gone with its last name; the node of that one was found by it.
        let Some(file) = self.filesystems.find(fsid, target) else { return };
        match self.pool.known().file(file.as_fd()) {
            // Looked up by another name at this moment, it may become known with attributes of before.
            Ok((nodes, links)) if nodes.is_empty() && links > 1 => {
                self.coherence.anything_changed();
            }
            Ok((nodes, _)) => nodes.into_iter().for_each(|node| self.file_changed(node, event.mask)),
            Err(_) => {}
        }
    }
}

impl Round {
    /// A name must be looked up again.
    fn name(&mut self, coherence: &Coherence, dir: canopy_pool::NodeId, name: &[u8]) {
        // Before it is told: an answer that comes in between is told without time, or is known to be under way.
        if coherence.name_changed(dir, name) {
            self.again.name(dir, name);
        }
        self.now.name(dir, name);
    }

    /// The attributes of a node, and perhaps the listing of a directory, must be asked for again.
    fn node(&mut self, coherence: &Coherence, node: canopy_pool::NodeId, listing: bool) {
        if listing {
            coherence.listing_changed(node);
        }
        if coherence.attributes_changed(node) {
            self.again.node(node, listing);
        }
        self.now.node(node, listing);
    }

    /// A file was closed that may have been written: its attributes are recent, and so are looked at again
    /// (`recent_files`). Programs that wrote it through the pool, past the daemon, are told as well, for it is they who
    /// close it.
    fn written(&mut self, coherence: &Coherence, node: canopy_pool::NodeId) {
        coherence.attributes_changed(node);
        self.written.node(node, false);
    }
}
