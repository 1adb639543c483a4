//! The state that the handles of one open file share.

use super::Node;
use super::direct_writes::DirectWrites;
use super::read_cache::OpenCopy;
use crate::kernel::BackingFile;
use canopy_base::error::{Failure, Result};
use canopy_base::hash;
use canopy_base::ids::BranchId;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::RwLock;
use canopy_branch::branch::Branch;
use canopy_branch::branch::gate;
use canopy_branch::branch::health::OpKind;
use canopy_branch::fs::beneath;
use canopy_branch::fs::stat::{Attr, FileKey};
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The state of an open file as an idle file.
pub(crate) struct IdleState {
    /// How often all idle files had been closed before it was opened.
    pub(crate) cleared: u32,
    /// The file is in the queue. Changes with the queue locked.
    pub(crate) queued: AtomicBool,
    /// It was used since the last check.
    pub(crate) used: AtomicBool,
}

/// Returns true if a file that is opened with these flags may share the descriptor of one that is open for reading.
pub(crate) fn only_reads(flags: OFlags) -> bool {
    // O_NONBLOCK has no effect on a regular file.
    flags - OFlags::NONBLOCK == OFlags::RDONLY
}

/// Where an open file is.
pub(crate) struct FileLocation {
    pub(crate) branch: Arc<Branch>,
    /// The file, opened with some flags, possibly `O_PATH`.
    pub(crate) fd: Arc<OwnedFd>,
    /// The file's identity, if `fd` is open for reading only: then other readers may share the descriptor.
    pub(crate) reads: Option<FileKey>,
    /// For data at given offsets whatever flags the handles have: without `O_APPEND` and `O_DIRECT`.
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

/// The state that all handles of one node share while any of them is open: the file, whatever happens to its names,
/// and how its data travels.
pub(crate) struct OpenFile {
    node: Weak<Node>,
    /// Replaced, with the descriptors of all handles, when the file moves to another branch.
    pub(crate) location: RwLock<Arc<FileLocation>, rank::Leaf>,
    /// The id of the location's branch.
    branch: AtomicU32,
    pub(crate) backing: Option<Box<dyn BackingFile>>,
    /// The number of handles that have it open, or are about to.
    pub(crate) users: AtomicUsize,
    /// The number of handles that can write.
    pub(crate) writers: AtomicUsize,
    /// The thread that may be inside an open(2) of the file: [`NOBODY`], [`SEVERAL`], or its id plus one.
    pub(crate) opener: AtomicU64,
    /// The names lead to another node now, because the kernel still reads this file by passthrough. No further handle
    /// may join.
    pub(crate) detached: AtomicBool,
    pub(crate) idle: IdleState,
    /// Some handle reads and writes past the page cache.
    pub(crate) direct: AtomicBool,
    /// Pages have been fetched all the same, because the file is mapped.
    pub(crate) overtaken: OnceLock<Box<DirectWrites>>,
    /// From which it is read while that is right.
    copy: RwLock<Option<Arc<OpenCopy>>, rank::Leaf>,
    has_copy: AtomicBool,
}

const NOBODY: u64 = 0;

const SEVERAL: u64 = u64::MAX;

/// Returns the number that stands for a thread. Threads of other PID namespaces all have the id 0.
fn opener_number(thread: u32) -> u64 {
    if thread == 0 { SEVERAL } else { u64::from(thread) + 1 }
}

impl OpenFile {
    pub(crate) fn new(
        node: &Arc<Node>,
        location: FileLocation,
        backing: Option<Box<dyn BackingFile>>,
        idle: IdleState,
    ) -> Self {
        OpenFile {
            node: Arc::downgrade(node),
            branch: AtomicU32::new(location.branch.id.0),
            location: RwLock::new(Arc::new(location)),
            backing,
            users: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            opener: AtomicU64::new(NOBODY),
            detached: AtomicBool::new(false),
            idle,
            direct: AtomicBool::new(false),
            overtaken: OnceLock::new(),
            copy: RwLock::default(),
            has_copy: AtomicBool::new(false),
        }
    }

    /// Has it read from a copy from now on.
    pub(crate) fn read_from(&self, copy: OpenCopy) {
        *self.copy.write() = Some(Arc::new(copy));
        self.has_copy.store(true, Ordering::Release);
    }

    /// Returns the copy to read from. Costs one load if there is none.
    pub(crate) fn copy(&self) -> Option<Arc<OpenCopy>> {
        if self.has_copy.load(Ordering::Acquire) { self.copy.read().clone() } else { None }
    }

    /// Has it read from its own file. Reads that have begun may still have what the file was.
    pub(crate) fn leave_copy(&self) {
        if self.has_copy.swap(false, Ordering::AcqRel) {
            // Closing it may wait for its disk: not under the lock.
            let former = self.copy.write().take();
            drop(former);
        }
    }

    /// Returns the number of users. Leaves 0 only with the node's `open` locked.
    pub(crate) fn users(&self) -> usize {
        self.users.load(Ordering::Acquire)
    }

    pub(crate) fn location(&self) -> Arc<FileLocation> {
        self.location.read().clone()
    }

    /// Runs calls that read the file, on its branch.
    pub(crate) fn reads<T, E: Failure>(&self, calls: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.runs(OpKind::Read, calls)
    }

    /// Runs calls that change the file.
    pub(crate) fn changes<T, E: Failure>(&self, calls: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.runs(OpKind::Change, calls)
    }

    /// Runs calls on its branch whose failure tells nothing yet.
    pub(crate) fn tries<T>(&self, calls: impl FnOnce() -> Option<T>) -> Option<T> {
        self.location().branch.tries(calls)
    }

    fn runs<T, E: Failure>(&self, act: OpKind, calls: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let branch = BranchId(self.branch.load(Ordering::Relaxed));
        gate::run(branch, act, calls, |record| record(&self.location().branch))
    }

    pub(crate) fn move_to(&self, location: FileLocation) {
        // The last user of the former location closes its descriptors, which may wait for the disk: not under the lock.
        let mut current = self.location.write();
        self.branch.store(location.branch.id.0, Ordering::Relaxed);
        let former = std::mem::replace(&mut *current, Arc::new(location));
        drop(current);
        drop(former);
    }

    /// Makes later opens of the file use this descriptor. Returns the former location.
    pub(crate) fn replace_fds(&self, fd: &Arc<OwnedFd>) -> Arc<FileLocation> {
        let mut location = self.location.write();
        // A descriptor that readers share can stay, because it is open for reading only.
        let fd = if location.reads.is_some() { &location.fd } else { fd };
        let new = FileLocation::new(location.branch.clone(), fd.clone(), location.reads);
        std::mem::replace(&mut *location, Arc::new(new))
    }

    pub(crate) fn detach_names(&self) {
        self.detached.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Relaxed)
    }

    /// Returns true if some handle can write the file.
    pub(crate) fn is_written(&self) -> bool {
        self.writers.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn opened_by(&self, thread: u32) {
        let thread = opener_number(thread);
        let alone = self.opener.compare_exchange(NOBODY, thread, Ordering::Relaxed, Ordering::Relaxed);
        if alone.is_err_and(|other| other != thread) {
            self.opener.store(SEVERAL, Ordering::Relaxed);
        }
    }

    /// Returns true if a truncation to zero by a thread may be the `O_TRUNC` of an open(2).
    ///
    /// The kernel sends the same requests for open(O_TRUNC) as for open(2) followed by truncate(2): OPEN without
    /// `O_TRUNC`, then SETATTR without a handle (fs/fuse/dir.c, fuse_do_setattr). But those of an open(O_TRUNC) come
    /// from one thread. So every `O_TRUNC` is recognized; where several threads have the file open, a truncate(2) may
    /// be mistaken for one.
    pub(crate) fn may_be_open_truncate(&self, thread: u32) -> bool {
        let opener = self.opener.load(Ordering::Relaxed);
        let may_be = opener == SEVERAL || opener == opener_number(thread);
        if may_be && opener != SEVERAL {
            // An open(2) truncates only once.
            let _ = self.opener.compare_exchange(opener, NOBODY, Ordering::Relaxed, Ordering::Relaxed);
        }
        may_be
    }

    /// Prepares for fetching a page of the node's file into the page cache. From now on, direct writes record their ranges.
    ///
    /// Errors: [`Error::Wait`](canopy_base::error::Error::Wait) while the file moves, for the first page.
    pub(crate) fn fetching(&self, node: &Node) -> Result<Option<&DirectWrites>> {
        if !self.direct.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if let Some(overtaken) = self.overtaken() {
            return Ok(Some(overtaken));
        }
        // Writers that have checked already have ended then.
        let _no_writers = node.take()?;
        Ok(Some(self.overtaken.get_or_init(Box::default)))
    }

    /// Returns the record of direct writes, if there is one. The caller holds the node's `moving`.
    pub(crate) fn overtaken(&self) -> Option<&DirectWrites> {
        self.overtaken.get().map(Box::as_ref)
    }

    /// Returns a descriptor for reading at given offsets, whatever flags the handles have.
    pub(crate) fn plain_to_read(&self) -> Result<Arc<OwnedFd>, Errno> {
        self.plain(OFlags::RDONLY, |location| &location.plain_reads)
    }

    /// As `plain_to_read`, for writing. A caller that writes holds the node's `moving`.
    pub(crate) fn plain_to_write(&self) -> Result<Arc<OwnedFd>, Errno> {
        self.plain(OFlags::RDWR, |location| &location.plain_writes)
    }

    fn plain(
        &self,
        flags: OFlags,
        slot: impl Fn(&FileLocation) -> &OnceLock<Arc<OwnedFd>>,
    ) -> Result<Arc<OwnedFd>, Errno> {
        let location = self.location();
        if let Some(fd) = slot(&location).get() {
            return Ok(fd.clone());
        }
        let fd = location.branch.reads(|| beneath::reopen(&*location.fd, flags))?;
        Ok(slot(&location).get_or_init(|| Arc::new(fd)).clone())
    }
}

impl Drop for OpenFile {
    /// Removes the node's reference, which would keep the memory of the open file.
    fn drop(&mut self) {
        // Whoever holds the lock is about to replace the reference, or will find that it leads nowhere.
        if let Some(node) = self.node.upgrade()
            && let Some(mut slot) = node.open().try_lock()
            && std::ptr::eq(slot.as_ptr(), self)
        {
            *slot = Weak::new();
        }
    }
}

/// A use of an open file, counted until dropped.
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

/// What stands for a file whose state is not known.
pub(crate) const NO_FINGERPRINT: u64 = 1;

/// Returns a number that changes whenever a file's content may have changed; never 0 or [`NO_FINGERPRINT`].
pub(crate) fn fingerprint(attr: &Attr) -> u64 {
    let time = |time: canopy_branch::fs::stat::Time| (time.sec, time.nsec);
    hash::of(&(attr.key(), attr.size, time(attr.mtime), time(attr.ctime))).max(NO_FINGERPRINT + 1)
}

pub(crate) fn writes(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR)
}
