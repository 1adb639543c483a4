//! What the handles of one open file share.

use super::direct_writes::DirectWrites;
use crate::branch::Branch;
use crate::branch::health::OpKind;
use crate::error::Result;
use crate::fs::beneath;
use crate::fs::stat::{Attr, FileKey};
use crate::kernel::BackingFile;
use crate::lock::rank;
use crate::lock::ranked::RwLock;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// What an open file knows of being kept.
pub(crate) struct IdleState {
    /// How often all had been closed before it was opened.
    pub(crate) cleared: u32,
    /// Changes with the queue locked.
    pub(crate) queued: AtomicBool,
    /// Since it was last looked at.
    pub(crate) used: AtomicBool,
}

/// May a file that is opened with these flags share the descriptor of one that is open for reading?
pub(crate) fn only_reads(flags: OFlags) -> bool {
    // O_NONBLOCK means nothing to a regular file.
    flags - OFlags::NONBLOCK == OFlags::RDONLY
}

/// Where an open file lies.
pub(crate) struct FileLocation {
    pub(crate) branch: Arc<Branch>,
    /// The file; opened for whatever, or `O_PATH`.
    pub(crate) fd: Arc<OwnedFd>,
    /// Which file it is, if it is open for reading and nothing else: whoever reads may use the same descriptor.
    pub(crate) reads: Option<FileKey>,
    /// For data that goes to given offsets whatever flags the handles have: never `O_APPEND`, never `O_DIRECT`.
    plain_reads: OnceLock<Arc<OwnedFd>>,
    plain_writes: OnceLock<Arc<OwnedFd>>,
}

impl FileLocation {
    pub(crate) fn new(branch: Arc<Branch>, fd: Arc<OwnedFd>, reads: Option<FileKey>) -> Self {
        FileLocation { branch, fd, reads, plain_reads: OnceLock::new(), plain_writes: OnceLock::new() }
    }

    pub(crate) fn into_descriptors(self) -> impl Iterator<Item = Arc<OwnedFd>> {
        let plain = [self.plain_reads, self.plain_writes].into_iter().filter_map(OnceLock::into_inner);
        plain.chain([self.fd])
    }
}

/// What all handles of one node share while any of them is open: the file they all reach, whatever
/// happens to its names, and how its data travels.
pub(crate) struct OpenFile {
    /// Swapped, with the descriptors of all handles, when the file moves to another branch.
    pub(crate) location: RwLock<Arc<FileLocation>, rank::OpenFilePlace>,
    pub(crate) backing: Option<Box<dyn BackingFile>>,
    /// Those who have it open, or are about to.
    pub(crate) users: AtomicUsize,
    /// Handles that can write.
    pub(crate) writers: AtomicUsize,
    /// The thread that may be within an open(2) of the file: [`NOBODY`], [`SEVERAL`], or one more than its number.
    pub(crate) opener: AtomicU64,
    /// The names lead to another node by now, for the kernel goes on reading this file by itself: nobody else may join.
    pub(crate) detached: AtomicBool,
    pub(crate) idle: IdleState,
    /// Some handle reads and writes past the page cache.
    pub(crate) direct: AtomicBool,
    /// Pages have been fetched nevertheless: the file is mapped.
    pub(crate) overtaken: OnceLock<Box<DirectWrites>>,
}

const NOBODY: u64 = 0;

const SEVERAL: u64 = u64::MAX;

/// Threads of other PID namespaces all have the number 0.
fn number_of(thread: u32) -> u64 {
    if thread == 0 { SEVERAL } else { u64::from(thread) + 1 }
}

impl OpenFile {
    pub(crate) fn new(place: FileLocation, backing: Option<Box<dyn BackingFile>>, idle: IdleState) -> Self {
        OpenFile {
            location: RwLock::new(Arc::new(place)),
            backing,
            users: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            opener: AtomicU64::new(NOBODY),
            detached: AtomicBool::new(false),
            idle,
            direct: AtomicBool::new(false),
            overtaken: OnceLock::new(),
        }
    }

    /// Changes from 0 with the node's `open` locked.
    pub(crate) fn users(&self) -> usize {
        self.users.load(Ordering::Acquire)
    }

    pub(crate) fn location(&self) -> Arc<FileLocation> {
        self.location.read().clone()
    }

    pub(crate) fn move_to(&self, place: FileLocation) {
        *self.location.write() = Arc::new(place);
    }

    /// Whoever opens the file anew does so by this descriptor. Gives what served so far.
    pub(crate) fn replace_fds(&self, fd: &Arc<OwnedFd>) -> Arc<FileLocation> {
        let mut place = self.location.write();
        // What readers share can stay, for it is open for reading alone.
        let fd = if place.reads.is_some() { &place.fd } else { fd };
        let new = FileLocation::new(place.branch.clone(), fd.clone(), place.reads);
        std::mem::replace(&mut *place, Arc::new(new))
    }

    pub(crate) fn detach_names(&self) {
        self.detached.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Relaxed)
    }

    /// Can any handle write the file?
    pub(crate) fn is_written(&self) -> bool {
        self.writers.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn opened_by(&self, thread: u32) {
        let thread = number_of(thread);
        let alone = self.opener.compare_exchange(NOBODY, thread, Ordering::Relaxed, Ordering::Relaxed);
        if alone.is_err_and(|other| other != thread) {
            self.opener.store(SEVERAL, Ordering::Relaxed);
        }
    }

    /// A thread truncates the file to nothing, by its name: may that be the `O_TRUNC` of an open(2)?
    ///
    /// The kernel's requests for open(O_TRUNC) and for open(2) with a truncate(2) behind it are the same: OPEN without
    /// `O_TRUNC`, then SETATTR without a handle (fs/fuse/dir.c fuse_do_setattr). But the first always come from one
    /// thread. So nothing is missed; and where several threads have the file open, a truncate(2) passes for an `O_TRUNC`.
    pub(crate) fn may_be_open_truncate(&self, thread: u32) -> bool {
        let opener = self.opener.load(Ordering::Relaxed);
        let may_be = opener == SEVERAL || opener == number_of(thread);
        if may_be && opener != SEVERAL {
            // One open(2) truncates once.
            let _ = self.opener.compare_exchange(opener, NOBODY, Ordering::Relaxed, Ordering::Relaxed);
        }
        may_be
    }

    /// A page is about to be fetched. Whoever writes past the page cache from now on leaves word of it.
    pub(crate) fn fetching(&self, moving: &RwLock<(), rank::FileMove>) -> Option<&DirectWrites> {
        if !self.direct.load(Ordering::Relaxed) {
            return None;
        }
        self.overtaken().or_else(|| {
            // Not beside somebody who has looked already.
            let _no_writers = moving.write();
            Some(self.overtaken.get_or_init(Box::default))
        })
    }

    /// For somebody who holds the node's `moving`.
    pub(crate) fn overtaken(&self) -> Option<&DirectWrites> {
        self.overtaken.get().map(Box::as_ref)
    }

    /// A descriptor for reading at given offsets, whatever flags the handles have.
    pub(crate) fn plain_to_read(&self) -> Result<Arc<OwnedFd>, Errno> {
        self.plain(OFlags::RDONLY, |place| &place.plain_reads)
    }

    /// The same for writing. Whoever writes holds the node's `moving`.
    pub(crate) fn plain_to_write(&self) -> Result<Arc<OwnedFd>, Errno> {
        self.plain(OFlags::RDWR, |place| &place.plain_writes)
    }

    fn plain(
        &self,
        flags: OFlags,
        slot: impl Fn(&FileLocation) -> &OnceLock<Arc<OwnedFd>>,
    ) -> Result<Arc<OwnedFd>, Errno> {
        let place = self.location();
        if let Some(fd) = slot(&place).get() {
            return Ok(fd.clone());
        }
        let fd = beneath::reopen(&*place.fd, flags)
            .map_err(|errno| place.branch.record_error(errno, OpKind::Read))?;
        Ok(slot(&place).get_or_init(|| Arc::new(fd)).clone())
    }
}

/// Somebody's share in an open file.
pub(crate) struct FileUse(Arc<OpenFile>);

impl FileUse {
    pub(crate) fn new(file: Arc<OpenFile>) -> FileUse {
        file.users.fetch_add(1, Ordering::AcqRel);
        FileUse(file)
    }
}

impl Deref for FileUse {
    type Target = Arc<OpenFile>;

    fn deref(&self) -> &Arc<OpenFile> {
        &self.0
    }
}

impl Drop for FileUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Changes whenever a file's content may have changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fingerprint {
    key: FileKey,
    size: u64,
    mtime: crate::fs::stat::Time,
    ctime: crate::fs::stat::Time,
}

impl From<&Attr> for Fingerprint {
    fn from(attr: &Attr) -> Self {
        Fingerprint { key: attr.key(), size: attr.size, mtime: attr.mtime, ctime: attr.ctime }
    }
}

pub(crate) fn writes(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR)
}
