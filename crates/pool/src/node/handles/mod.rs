//! Handles: the kernel's references to open files.

pub(crate) mod mirrors;
pub(crate) mod records;

use self::records::{HandleRecord, HandleRecords, Recorded};
use super::Node;
use super::open_file::{FileUse, writes};
use super::passthrough::OpenFlags;
use canopy_base::error::{Error, Result};
use canopy_base::hash::{HashMap, shrink};
use canopy_base::ids::HandleId;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::RwLock;
use canopy_branch::branch::headroom::PassthroughWriter;
use canopy_branch::branch::traffic::Traffic;
use canopy_branch::fs::stat::{self, FileKey};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One open(2) of a file.
pub(crate) struct FileHandle {
    pub(crate) node: Arc<Node>,
    // Not an `ArcSwap`: dropping one visits all threads, and files are opened and closed more often than they are
    // read.
    fd: RwLock<(Arc<OwnedFd>, &'static Traffic), rank::Leaf>,
    pub(crate) flags: OFlags,
    /// `O_APPEND` and `O_DIRECT` have been removed from the branch's descriptor.
    plain: AtomicBool,
    pub(crate) open: FileUse,
    /// The kernel reads and writes the branch's file itself.
    pub(crate) passthrough: bool,
    /// Reads and writes bypass the kernel's page cache and come to the daemon.
    direct: bool,
    /// Counts this handle among the branch's passthrough writers.
    pub(crate) headroom: Option<PassthroughWriter>,
    /// Void before the descriptor is closed.
    record: Option<HandleRecord>,
}

impl FileHandle {
    /// Also returns whether another handle can write the file.
    pub(crate) fn new(
        node: Arc<Node>,
        (fd, traffic): (Arc<OwnedFd>, &'static Traffic),
        flags: OFlags,
        open: FileUse,
    ) -> (Self, bool) {
        let others = open.writers.fetch_add(usize::from(writes(flags)), Ordering::Relaxed);
        let plain = AtomicBool::new(false);
        (
            FileHandle {
                node,
                fd: RwLock::new((fd, traffic)),
                flags,
                plain,
                open,
                passthrough: false,
                direct: false,
                headroom: None,
                record: None,
            },
            others > 0,
        )
    }

    /// A handle that another process has had, as its record says.
    pub(crate) fn adopted(
        node: Arc<Node>,
        fd: (Arc<OwnedFd>, &'static Traffic),
        open: FileUse,
        (record, said): (HandleRecord, &Recorded),
    ) -> Self {
        let (mut handle, _) = FileHandle::new(node, fd, said.flags, open);
        (handle.passthrough, handle.direct) = (said.passthrough, said.direct);
        if said.direct {
            handle.open.direct.store(true, Ordering::Relaxed);
        }
        // What removed O_APPEND and O_DIRECT from the descriptor has done so for good.
        let now = rustix::fs::fcntl_getfl(&*handle.fd()).unwrap_or(said.flags);
        handle.plain.store(said.flags.intersects(NOT_PLAIN) && !now.intersects(NOT_PLAIN), Ordering::Relaxed);
        record.moved(&handle);
        handle.record = Some(record);
        handle
    }

    /// Has the handle recorded, if there is room for it.
    pub(crate) fn record_in(&mut self, records: &Arc<HandleRecords>, id: HandleId) {
        self.record = records.add(id, self);
    }

    /// Records that its file is about to be replaced by a copy, open as `fd`.
    pub(crate) fn moves_to(&self, fd: &OwnedFd) {
        if let Some(record) = &self.record {
            record.moves_to(fd);
        }
    }

    /// Records that its file is not replaced after all.
    pub(crate) fn stays(&self) {
        if let Some(record) = &self.record {
            record.moved(self);
        }
    }

    pub(crate) fn apply_open_flags(&mut self, open_flags: &OpenFlags) {
        self.passthrough = open_flags.passthrough.is_some() && !open_flags.direct_io;
        // With a backing file, a mapping maps that file.
        self.direct = open_flags.passthrough.is_none() && open_flags.direct_io;
        if self.direct {
            self.open.direct.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    /// Returns the flags that the branch's descriptor has now.
    pub(crate) fn fd_flags(&self) -> OFlags {
        if self.plain.load(Ordering::Relaxed) { self.flags - NOT_PLAIN } else { self.flags }
    }

    /// Returns a descriptor for data at exact offsets, aligned or not: this handle's own if its flags allow that,
    /// otherwise one of the open file's. Without privileges the daemon may not reopen for writing a file that was
    /// created read-only or has become so (`O_CREAT` with mode 0444, as git does); then it removes `O_APPEND` and
    /// `O_DIRECT` from this handle's own descriptor.
    pub(crate) fn plain_fd(&self) -> Result<Arc<OwnedFd>, Errno> {
        const DOES_MORE: OFlags = NOT_PLAIN.union(OFlags::SYNC).union(OFlags::DSYNC);
        if self.plain.load(Ordering::Relaxed) || !self.flags.intersects(DOES_MORE) {
            return Ok(self.fd());
        }
        let refused = match self.open.plain_to_write() {
            Err(errno @ (Errno::ACCESS | Errno::PERM)) => errno,
            other => return other,
        };
        let fd = self.fd();
        let now = rustix::fs::fcntl_getfl(&*fd)?;
        rustix::fs::fcntl_setfl(&*fd, now - NOT_PLAIN).map_err(|_| refused)?;
        self.plain.store(true, Ordering::Relaxed);
        Ok(fd)
    }

    /// As `plain_fd`, for reading; does not need to open the file for writing.
    pub(crate) fn plain_to_read(&self) -> Result<Arc<OwnedFd>, Errno> {
        self.open.plain_to_read().or_else(|_| self.plain_fd())
    }

    /// Returns the branch's file, opened with this handle's flags. A caller that writes through it holds the node's
    /// `moving` meanwhile.
    pub(crate) fn fd(&self) -> Arc<OwnedFd> {
        self.fd.read().0.clone()
    }

    /// As [`FileHandle::fd`], with what counts its use.
    pub(crate) fn counted_fd(&self) -> (Arc<OwnedFd>, &'static Traffic) {
        self.fd.read().clone()
    }

    /// Replaces the descriptor, and returns the former one.
    pub(crate) fn move_to(&self, fd: Arc<OwnedFd>) -> Arc<OwnedFd> {
        let former = std::mem::replace(&mut self.fd.write().0, fd);
        self.plain.store(false, Ordering::Relaxed);
        if let Some(record) = &self.record {
            record.moved(self);
        }
        former
    }

    /// Counts the use of the file for another branch, to which it has moved.
    pub(crate) fn count_for(&self, traffic: &'static Traffic) {
        self.fd.write().1 = traffic;
    }

    pub(crate) fn writable(&self) -> bool {
        writes(self.flags)
    }

    /// Returns true if data can be written without the daemon. With a backing file, a shared mapping maps that file,
    /// even if the daemon serves reads and writes; a writable one needs a descriptor that is open for both.
    pub(crate) fn writes_past_daemon(&self) -> bool {
        self.writable() && self.passthrough || self.maps_past_daemon()
    }

    /// Returns whether this is the file that the handle has open.
    pub(crate) fn leads_to(&self, file: &FileKey) -> bool {
        stat::of(self.fd().as_fd()).is_ok_and(|attr| attr.key() == *file)
    }

    /// As [`FileHandle::writes_past_daemon`], through a shared mapping only, which may outlive the handle.
    pub(crate) fn maps_past_daemon(&self) -> bool {
        self.open.backing.is_some() && self.flags.contains(OFlags::RDWR)
    }
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        self.open.writers.fetch_sub(usize::from(self.writable()), Ordering::Relaxed);
        self.record = None;
        if let Some(writer) = &self.headroom {
            writer.closed(|| stat::of(self.fd().as_fd()).map_or(0, |attr| attr.size));
        }
    }
}

/// Flags with which data goes to another offset than the given one, or must be aligned.
const NOT_PLAIN: OFlags = OFlags::APPEND.union(OFlags::DIRECT);

const SHARDS: usize = 16;

type Shard<T> = RwLock<HashMap<u64, Arc<T>>, rank::Handles>;

thread_local! {
    /// The number for the next handle that this thread opens; 0 for any.
    static RESERVED: Cell<u64> = const { Cell::new(0) };
}

/// Handles by number. Numbers are not reused, so a stale number finds nothing.
pub(crate) struct Handles<T> {
    next: AtomicU64,
    shards: [Shard<T>; SHARDS],
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles { next: AtomicU64::new(1), shards: std::array::from_fn(|_| RwLock::default()) }
    }
}

impl<T> Handles<T> {
    fn shard(&self, id: HandleId) -> &Shard<T> {
        &self.shards[id.0 as usize % SHARDS]
    }

    /// Returns the number that the next handle gets which this thread opens.
    pub(crate) fn reserve_id(&self) -> HandleId {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        RESERVED.set(id);
        HandleId(id)
    }

    /// Returns the number that was reserved, or one that no handle has had.
    pub(crate) fn new_id(&self) -> HandleId {
        match RESERVED.take() {
            0 => HandleId(self.next.fetch_add(1, Ordering::Relaxed)),
            reserved => HandleId(reserved),
        }
    }

    /// Makes all further numbers larger than this one.
    pub(crate) fn skip_to(&self, number: u64) {
        self.next.fetch_max(number, Ordering::Relaxed);
    }

    pub(crate) fn insert(&self, id: HandleId, handle: T) {
        self.shard(id).write().insert(id.0, Arc::new(handle));
    }

    pub(crate) fn get(&self, id: HandleId) -> Result<Arc<T>> {
        self.shard(id).read().get(&id.0).cloned().ok_or(Error::BadHandle)
    }

    /// Looks at a handle without becoming one of its users, of whom the last one closes the file.
    pub(crate) fn look_at<R>(&self, id: HandleId, look: impl FnOnce(&T) -> R) -> Option<R> {
        self.shard(id).read().get(&id.0).map(|handle| look(handle))
    }

    pub(crate) fn remove(&self, id: HandleId) -> Result<Arc<T>> {
        let mut shard = self.shard(id).write();
        let removed = shard.remove(&id.0).ok_or(Error::BadHandle);
        shrink(&mut shard);
        removed
    }

    /// Returns the open handles that `interesting` selects.
    pub(crate) fn matching(&self, interesting: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let shards = self.shards.iter().flat_map(|shard| shard.read().values().cloned().collect::<Vec<_>>());
        shards.filter(|handle| interesting(handle)).collect()
    }

    /// Looks at some of the open handles, as [`Handles::look_at`] does.
    pub(crate) fn some<R>(&self, count: usize, look: impl Fn(&T) -> R) -> Vec<R> {
        let of = |shard: &Shard<T>| -> Vec<R> {
            shard.read().values().take(count).map(|handle| look(handle)).collect()
        };
        self.shards.iter().flat_map(of).take(count).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.read().len()).sum()
    }
}
