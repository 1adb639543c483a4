//! Turns events on a branch into what the kernel must revalidate, and nothing more.
//!
//! An event names a directory and an entry in it. It says that something happened there, not what is there now:
//! several changes may be merged into one event, and by the time it is read the directory may have moved. So an event
//! only ever makes the kernel ask again, which is harmless where nothing has changed.

use super::filesystems::Filesystems;
use super::notifications::{Outgoing, RepeatQueue};
use super::writers::Writers;
use crate::coherence::{Coherence, WrittenFiles};
use canopy_base::ids::NodeId;
use canopy_policy::{self as policy, Category};
use canopy_pool::Pool;
use canopy_pool::coherence::catalogue::Reported;
use canopy_pool::coherence::changes::{Change, Client};
use canopy_pool::config::Func;
use canopy_pool::ops;
use canopy_sys::fanotify::{self, Event};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The size of a read in bytes: some hundreds of events.
const BUFFER_SIZE: usize = 32 << 10;

/// When more names than this arrive with a directory, all names are looked up again instead.
const MAX_ARRIVED_NAMES: usize = 10_000;

const NAMES: u64 = fanotify::CREATE | fanotify::DELETE | fanotify::MOVED_FROM | fanotify::MOVED_TO;
const WRITTEN: u64 = fanotify::MODIFY | fanotify::CLOSE_WRITE;
const MOVED: u64 = fanotify::MOVED_FROM | fanotify::MOVED_TO;

/// How long events gather unread while only the pool itself causes them: the first pause and the longest. A client
/// that creates files through the pool then does not have to wake the watch thread each time. The pauses are short
/// compared to the promised time until changes are visible.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(8)];

pub(crate) struct EventReader {
    buffer: Vec<u8>,
    /// This process: what it changes is changed by the pool, and the kernel knows.
    own_pid: i32,
    repeats: RepeatQueue,
    /// The current pause; `None` if the watch thread waits for events.
    pause: Option<Duration>,
    /// Everything read since the last pause can wait.
    can_pause: bool,
    writers: Writers,
}

/// What remains in the queue after a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Remaining {
    Nothing,
    MaybeMore,
    /// Perhaps more, and what was read was all by the pool itself, which took no time.
    MaybeMoreOwn,
}

impl EventReader {
    pub(crate) fn new(written: Arc<WrittenFiles>) -> EventReader {
        let own_pid = std::process::id().cast_signed();
        EventReader {
            buffer: vec![0; BUFFER_SIZE],
            own_pid,
            repeats: RepeatQueue::default(),
            pause: None,
            can_pause: false,
            writers: Writers::new(written),
        }
    }

    /// Has all writes reported again. The caller tells that anything may have changed.
    pub(crate) fn forget_writers(&mut self, group: Option<Arc<OwnedFd>>) {
        self.writers.forget(group.as_ref().map(|group| group.as_fd()));
    }

    /// Returns whether a file on the filesystem with this device number is written without being told.
    pub(crate) fn is_written(&self, dev: u64) -> bool {
        self.writers.any_marked(dev)
    }

    /// Returns whether to pause instead of waiting for events, and how long to wait for anything at all; `None`
    /// without limit.
    pub(crate) fn next_pause(&mut self) -> (bool, Option<Duration>) {
        let [least, most] = PAUSES;
        let longer = self.pause.map_or(least, |pause| (pause * 2).min(most));
        self.pause = std::mem::take(&mut self.can_pause).then_some(longer);
        let due = self.repeats.next_due().map(|at| at.saturating_duration_since(Instant::now()));
        (self.pause.is_some(), self.pause.into_iter().chain(due).min())
    }

    /// Processes the events so far and sends what is due. `most`: reads at most this many bytes, because a request
    /// waits for it.
    pub(crate) fn process(
        &mut self,
        (pool, coherence): (&Pool, &Coherence),
        group: BorrowedFd<'_>,
        filesystems: &mut Filesystems,
        most: Option<usize>,
    ) -> Result<Remaining, Errno> {
        let room = most.unwrap_or(BUFFER_SIZE).min(BUFFER_SIZE);
        let (length, remaining) = match rustix::io::read(group, &mut self.buffer[..room]) {
            Err(Errno::AGAIN) => (0, Remaining::Nothing),
            Err(Errno::INTR) => (0, Remaining::MaybeMore),
            // A read returns all events that fit (fs/notify/fanotify/fanotify_user.c).
            Ok(length) if room - length >= fanotify::EVENT_MAX => (length, Remaining::Nothing),
            Ok(length) => (length, Remaining::MaybeMore),
            Err(errno) => return Err(errno),
        };
        let mut outgoing = Outgoing::default();
        let (mut urgent, mut own) = (false, true);
        let mut translator = Translator {
            pool,
            coherence,
            filesystems,
            outgoing: &mut outgoing,
            own_pid: self.own_pid,
            group,
            writers: &mut self.writers,
            handled_files: HashSet::new(),
            clone_arrives: false,
        };
        for event in fanotify::events(&self.buffer[..length]) {
            own &= event.pid == self.own_pid;
            urgent |= event.pid != self.own_pid && !only_written(event.mask);
            translator.translate(&event);
        }
        let remaining = match remaining {
            Remaining::MaybeMore if own && !translator.branches_overlap() => Remaining::MaybeMoreOwn,
            other => other,
        };
        self.can_pause = !urgent && (self.can_pause || length > 0);
        filesystems.close_dirs();
        outgoing.now.send(coherence);
        // If the watch thread pauses, it will send them itself soon.
        if most.is_none() || self.pause.is_none() {
            coherence.expire_written().into_iter().for_each(|node| outgoing.repeat.node(node, false));
        }
        let now = Instant::now();
        self.repeats.add(now, outgoing.repeat);
        self.repeats.send_due(now, coherence);
        Ok(remaining)
    }
}

struct Translator<'a> {
    pool: &'a Pool,
    coherence: &'a Coherence,
    filesystems: &'a mut Filesystems,
    outgoing: &'a mut Outgoing,
    own_pid: i32,
    group: BorrowedFd<'a>,
    writers: &'a mut Writers,
    /// Handles of files whose nodes are in `outgoing` already.
    handled_files: HashSet<Vec<u8>>,
    /// The pool has just moved a directory that it had built aside. The second half of that rename is next.
    clone_arrives: bool,
}

impl Translator<'_> {
    fn translate(&mut self, event: &Event<'_>) {
        let clone_arrives = std::mem::take(&mut self.clone_arrives);
        let dir_moved = event.mask & fanotify::ONDIR != 0 && event.mask & MOVED != 0;
        let writing = self.writing(event);
        self.tell_catalogue(event, &writing);
        self.tell_records(event);
        // Others may write it as well, or have written it, and nothing tells of that.
        let is_own = event.pid == self.own_pid && matches!(writing, Writing::Reported);
        if is_own && !dir_moved && !self.branches_overlap() {
            return;
        }
        if event.mask & fanotify::OVERFLOW != 0 {
            tracing::info!(
                "the queue of changes on the branches has overflowed: all names are looked up again"
            );
            return self.invalidate_all();
        }
        let Some(place) = event.entry else {
            // Another name of the file was replaced.
            return self.file_event(event);
        };
        self.clone_arrives = is_own
            && event.mask & fanotify::MOVED_FROM != 0
            && canopy_branch::fs::reserved::is_reserved(place.name);
        // No path of what was in such a directory can be known yet.
        if dir_moved && !clone_arrives && !self.clone_arrives {
            self.filesystems.forget_paths(place.fsid, is_own);
        }
        if is_own && !self.branches_overlap() {
            return;
        }
        if event.mask & fanotify::ONDIR != 0 && event.mask & NAMES != 0 {
            self.outgoing.tell(self.coherence, Change::Places);
        }
        // The directory's path on the branch and in the node table must be of the same moment.
        let result = ops::external_changes::with_tree_locked(self.pool, |moves| -> Result<(), Errno> {
            let dirs = self.filesystems.pool_paths(place.fsid, place.dir, moves)?;
            // All names of a file are one node, whichever name the event has. A rename since then has its own event.
            let mut found = event.mask & fanotify::ONDIR != 0;
            for dir in dirs.iter() {
                found |= self.name_event(dir, place.name, event)?
                    && only_written(event.mask)
                    && matches!(writing, Writing::Reported);
            }
            // Also if the directory is outside of the branches: a file may have names inside.
            if !found {
                self.file_event(event);
            }
            Ok(())
        });
        if let (Writing::Continues(file), Some(target)) = (writing, event.target) {
            self.writers.mark(self.group, target, file.as_fd());
        }
        if let Err(errno) = result {
            tracing::warn!("cannot tell where a change has happened: {errno}; all names are looked up again");
            self.invalidate_all();
        }
    }

    /// Tells the catalogue, which knows directories that have no node, and by itself nothing of what the pool does.
    fn tell_catalogue(&self, event: &Event<'_>, writing: &Writing) {
        let catalogue = ops::external_changes::catalogue(self.pool);
        if !catalogue.is_on() {
            return;
        }
        let target = event.target.map(|target| target.handle);
        match target.filter(|_| event.mask & fanotify::ONDIR == 0) {
            Some(file) if matches!(writing, Writing::Continues(_)) => catalogue.unreported(file, true),
            Some(file) if event.mask & fanotify::CLOSE_WRITE != 0 => catalogue.unreported(file, false),
            _ => {}
        }
        catalogue.changed(Reported {
            entry: event.entry.map(|entry| (entry.dir, entry.name)),
            target,
            names: event.mask & NAMES != 0,
            on_dir: event.mask & fanotify::ONDIR != 0,
        });
    }

    /// Tells what is remembered of the branches. What the pool does itself counts as well.
    fn tell_records(&self, event: &Event<'_>) {
        let records = ops::external_changes::records(self.pool);
        for record in records.iter() {
            if event.mask & fanotify::OVERFLOW != 0 {
                record.missed_events();
            } else if let Some(place) = event.entry {
                record.changed(place.dir, event.mask & fanotify::ONDIR != 0 && event.mask & NAMES != 0);
            }
        }
    }

    /// Finds out what an event says of a file that is being written.
    fn writing(&mut self, event: &Event<'_>) -> Writing {
        let Some(target) = event.target.filter(|_| event.mask & fanotify::ONDIR == 0) else {
            return Writing::Reported;
        };
        if event.mask & fanotify::CLOSE_WRITE != 0 {
            let open = || self.filesystems.open_handle(target.fsid, target.handle);
            let ended = self.writers.closed(self.group, target, open);
            return if ended { Writing::Ended } else { Writing::Reported };
        }
        if event.mask & fanotify::MODIFY == 0 || !self.writers.wrote(target) || !self.may_mark() {
            return Writing::Reported;
        }
        if self.writers.is_full() {
            self.writers.forget(Some(self.group));
            ops::external_changes::catalogue(self.pool).all_reported();
            self.outgoing.tell(self.coherence, Change::Answers);
        }
        match self.filesystems.open_handle(target.fsid, target.handle) {
            Some(file) if self.writers.prepare(target, file.as_fd()) => Writing::Continues(file),
            _ => Writing::Reported,
        }
    }

    /// Returns whether writes of a file may go unreported: not if they may decide which copy is shown.
    fn may_mark(&self) -> bool {
        policy::first_only(self.pool.config().policies.get(Func::Getattr), Category::Search)
    }

    /// Returns whether a change made through the pool can be visible at a second path, unknown to the pool.
    fn branches_overlap(&mut self) -> bool {
        self.filesystems.branches_overlap(self.pool)
    }

    fn invalidate_all(&mut self) {
        self.writers.forget(Some(self.group));
        self.outgoing.tell(self.coherence, Change::Missed);
        self.outgoing.now.all = true;
        self.outgoing.repeat.all = true;
    }

    /// Handles an event for a name in a directory of the pool. Returns whether a node is known by that name.
    fn name_event(&mut self, dir: &[u8], name: &[u8], event: &Event<'_>) -> Result<bool, Errno> {
        let mask = event.mask;
        let known = ops::external_changes::known(self.pool);
        // The kernel caches nothing of an unknown directory or below it.
        let Some(dir) = known.dir(dir) else { return Ok(false) };
        if name == b"." {
            self.outgoing.tell(self.coherence, Change::Attributes(dir));
            return Ok(true);
        }
        let named = mask & NAMES != 0;
        if named {
            self.coherence.directory_modified(dir);
        }
        // Which copy of a file is shown may depend on which was changed last.
        let shows = self.pool.config().policies.get(Func::Getattr);
        if named {
            self.outgoing.tell(self.coherence, Change::Holders { dir, name });
            self.outgoing.tell(self.coherence, Change::Names(dir));
        } else if !policy::first_only(shows, Category::Search) {
            self.outgoing.tell(self.coherence, Change::Name { dir, name });
        } else {
            // A lookup in progress either has entered its result in the node table already, or finds its answer
            // stale.
            self.coherence.tell(Change::Name { dir, name }, Client::Outside);
        }
        let Some(child) = known.child(dir, name) else { return Ok(false) };
        self.file_changed(child.node, mask);
        if !child.is_dir || mask & fanotify::ONDIR == 0 {
            return Ok(true);
        }
        if mask & (fanotify::DELETE | fanotify::MOVED_FROM) != 0 {
            self.directory_left(child.node);
        }
        match event.target.zip(event.entry) {
            Some((target, place)) if mask & fanotify::MOVED_TO != 0 => {
                let mut remaining = MAX_ARRIVED_NAMES;
                if let Some(found) = self.filesystems.open_handle(place.fsid, target.handle) {
                    self.directory_arrived(child.node, found.as_fd(), &mut remaining)?;
                }
            }
            _ => {}
        }
        Ok(true)
    }

    /// Handles a directory that has left a branch. After that there are no events for what was moved out of it
    /// before, so everything known below is to be looked up again. Names that were missing there are still missing.
    fn directory_left(&mut self, dir: NodeId) {
        // Lookups in progress below it are affected too.
        self.outgoing.tell(self.coherence, Change::Answers);
        // Its listing has lost the names of this branch.
        self.outgoing.tell(self.coherence, Change::Names(dir));
        for below in ops::external_changes::known(self.pool).below(dir) {
            self.outgoing.tell(self.coherence, Change::Name { dir: below.parent, name: &below.name });
            self.outgoing.tell(
                self.coherence,
                if below.is_dir { Change::Names(below.node) } else { Change::Attributes(below.node) },
            );
        }
    }

    /// Handles a directory that has arrived on a branch with all its contents, where the kernel knows a directory
    /// already: what it contains is no longer missing there.
    fn directory_arrived(
        &mut self,
        node: NodeId,
        dir: BorrowedFd<'_>,
        remaining: &mut usize,
    ) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match rustix::fs::openat(dir, c".", flags, Mode::empty()) {
            // It has left meanwhile, which causes another event.
            Err(Errno::NOENT | Errno::STALE) => return Ok(()),
            result => result?,
        };
        self.outgoing.tell(self.coherence, Change::Names(node));
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(&dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                // Removed while being read.
                Err(Errno::NOENT) => return Ok(()),
                result => result?,
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            *remaining = remaining.checked_sub(1).ok_or(Errno::TOOBIG)?;
            self.outgoing.tell(self.coherence, Change::Name { dir: node, name: name.to_bytes() });
            let Some(child) = ops::external_changes::known(self.pool).child(node, name.to_bytes()) else {
                continue;
            };
            self.outgoing.tell(self.coherence, Change::Attributes(child.node));
            if child.is_dir {
                let path = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match rustix::fs::openat(&dir, name, path, Mode::empty()) {
                    Ok(below) => self.directory_arrived(child.node, below.as_fd(), remaining)?,
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        Ok(())
    }

    fn file_changed(&mut self, node: NodeId, mask: u64) {
        if only_written(mask) {
            self.coherence.file_written(node);
        } else {
            self.outgoing.tell(self.coherence, Change::Attributes(node));
        }
    }

    /// Handles an event for a file, which may be known by another name.
    fn file_event(&mut self, event: &Event<'_>) {
        let Some(target) = event.target else { return };
        if !only_written(event.mask) && !self.handled_files.insert(target.handle.to_vec()) {
            return;
        }
        // The file is gone with its last name; its node was found by that.
        let Some(file) = self.filesystems.open_handle(target.fsid, target.handle) else { return };
        match ops::external_changes::known(self.pool).file(file.as_fd()) {
            // A lookup of another name in progress may make the file known with outdated attributes.
            Ok((nodes, links)) if nodes.is_empty() && links > 1 => {
                self.outgoing.tell(self.coherence, Change::Answers);
            }
            Ok((nodes, _)) => nodes.into_iter().for_each(|node| self.file_changed(node, event.mask)),
            Err(_) => {}
        }
    }
}

impl Outgoing {
    /// Tells of a change, and adds what the kernel must be notified of.
    fn tell(&mut self, coherence: &Coherence, change: Change<'_>) {
        // Before the notification is sent: an answer given in between is stale, or known to be in flight.
        let seen = coherence.tell(change, Client::Outside);
        match change {
            Change::Name { dir, name } | Change::Holders { dir, name } => {
                if seen {
                    self.repeat.name(dir, name);
                }
                self.now.name(dir, name);
            }
            Change::Names(node) | Change::Attributes(node) => {
                let listing = matches!(change, Change::Names(_));
                if seen {
                    // Where the kernel keeps listings by itself, a listing in flight is dropped when it ends.
                    self.repeat.node(node, listing && !coherence.kernel_opens_directories());
                }
                self.now.node(node, listing);
            }
            Change::Places | Change::Answers | Change::Listings | Change::Missed => {}
        }
    }
}

/// What an event says of a file that is being written.
enum Writing {
    /// Whatever changes is reported.
    Reported,
    /// It goes on: further writes must not be reported.
    Continues(OwnedFd),
    /// Further writes were not reported, and it has ended.
    Ended,
}

/// Returns whether an event says no more than that a file was written or closed after that.
fn only_written(mask: u64) -> bool {
    mask & WRITTEN != 0 && mask & !WRITTEN == 0
}
