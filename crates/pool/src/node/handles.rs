//! Handles: what the kernel names an open file by.

use super::Node;
use super::open_file::{FileUse, writes};
use super::passthrough::OpenFlags;
use crate::branch::headroom::PassthroughWriter;
use crate::branch::health::OpKind;
use crate::error::{Error, Result};
use crate::fs::stat;
use crate::hash::{HashMap, shrink};
use crate::ids::HandleId;
use crate::lock::rank;
use crate::lock::ranked::RwLock;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One open(2) of a file.
pub(crate) struct FileHandle {
    pub(crate) node: Arc<Node>,
    // Not an `ArcSwap`: one that goes away visits all threads, and files come and go more often than they are read.
    fd: RwLock<Arc<OwnedFd>, rank::HandleFd>,
    pub(crate) flags: OFlags,
    /// The branch's descriptor has neither `O_APPEND` nor `O_DIRECT` any more.
    plain: AtomicBool,
    pub(crate) open: FileUse,
    /// The kernel reads and writes by itself.
    pub(crate) passthrough: bool,
    /// What is read and written comes here, past the page cache.
    direct: bool,
    /// The room for what it writes so has been counted.
    pub(crate) headroom: Option<PassthroughWriter>,
}

impl FileHandle {
    /// Also tells whether another handle can write the file.
    pub(crate) fn new(node: Arc<Node>, fd: Arc<OwnedFd>, flags: OFlags, open: FileUse) -> (Self, bool) {
        let others = open.writers.fetch_add(usize::from(writes(flags)), Ordering::Relaxed);
        let plain = AtomicBool::new(false);
        (
            FileHandle {
                node,
                fd: RwLock::new(fd),
                flags,
                plain,
                open,
                passthrough: false,
                direct: false,
                headroom: None,
            },
            others > 0,
        )
    }

    pub(crate) fn apply_open_flags(&mut self, travel: &OpenFlags) {
        self.passthrough = travel.passthrough.is_some() && !travel.direct_io;
        // With a backing file a mapping is one of that file.
        self.direct = travel.passthrough.is_none() && travel.direct_io;
        if self.direct {
            self.open.direct.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    /// What the branch's descriptor acts by.
    pub(crate) fn fd_flags(&self) -> OFlags {
        match self.plain.load(Ordering::Relaxed) {
            true => self.flags - NOT_PLAIN,
            false => self.flags,
        }
    }

    /// A descriptor for data that goes exactly where it is told to, aligned or not: this handle's if it is of that kind,
    /// else one of the open file's. The daemon of an ordinary user may not open for writing what was made unwritable
    /// meanwhile (`O_CREAT` with mode 0444, as git does); then this handle's becomes of that kind.
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

    /// The same for data that is read, which nobody opens the file for writing for.
    pub(crate) fn plain_to_read(&self) -> Result<Arc<OwnedFd>, Errno> {
        self.open.plain_to_read().or_else(|_| self.plain_fd())
    }

    /// The branch's file, opened as this handle is. Whoever writes through it holds the node's `moving` while he
    /// does.
    pub(crate) fn fd(&self) -> Arc<OwnedFd> {
        self.fd.read().clone()
    }

    /// Takes note of an error that the file's branch has answered with, and gives it back.
    pub(crate) fn record_error(&self, errno: Errno, deed: OpKind) -> Errno {
        self.open.location().branch.record_error(errno, deed)
    }

    /// Gives the descriptor that served so far.
    pub(crate) fn move_to(&self, fd: Arc<OwnedFd>) -> Arc<OwnedFd> {
        let former = std::mem::replace(&mut *self.fd.write(), fd);
        self.plain.store(false, Ordering::Relaxed);
        former
    }

    pub(crate) fn writable(&self) -> bool {
        writes(self.flags)
    }

    /// Could something be written that does not come to the daemon? With a backing file, a shared mapping is one of
    /// that file, whoever serves read and write; to map it so, a descriptor must be able to do both.
    pub(crate) fn writes_past_daemon(&self) -> bool {
        self.writable() && self.passthrough || self.maps_past_daemon()
    }

    /// As [`FileHandle::writes_past_daemon`], by a shared mapping. That outlives the handle, too.
    pub(crate) fn maps_past_daemon(&self) -> bool {
        self.open.backing.is_some() && self.flags.contains(OFlags::RDWR)
    }
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        self.open.writers.fetch_sub(usize::from(self.writable()), Ordering::Relaxed);
        if let Some(passed) = &self.headroom {
            passed.closed(|| stat::of(self.fd().as_fd()).map_or(0, |attr| attr.size));
        }
    }
}

/// Data goes elsewhere than it is told to, or must be aligned.
const NOT_PLAIN: OFlags = OFlags::APPEND.union(OFlags::DIRECT);

const SHARDS: usize = 16;

type Shard<T> = RwLock<HashMap<u64, Arc<T>>, rank::Handles>;

/// Handles by number. Numbers are never reused, so a stale one finds nothing.
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

    pub(crate) fn insert(&self, handle: T) -> HandleId {
        let id = HandleId(self.next.fetch_add(1, Ordering::Relaxed));
        self.shard(id).write().insert(id.0, Arc::new(handle));
        id
    }

    pub(crate) fn get(&self, id: HandleId) -> Result<Arc<T>> {
        self.shard(id).read().get(&id.0).cloned().ok_or(Error::BadHandle)
    }

    pub(crate) fn remove(&self, id: HandleId) -> Result<Arc<T>> {
        let mut shard = self.shard(id).write();
        let removed = shard.remove(&id.0).ok_or(Error::BadHandle);
        shrink(&mut shard);
        removed
    }

    /// Those that are open now and of interest.
    pub(crate) fn matching(&self, interesting: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let shards = self.shards.iter().flat_map(|shard| shard.read().values().cloned().collect::<Vec<_>>());
        shards.filter(|handle| interesting(handle)).collect()
    }

    /// A few of those that are open now.
    pub(crate) fn some(&self, count: usize) -> Vec<Arc<T>> {
        let of = |shard: &Shard<T>| -> Vec<Arc<T>> { shard.read().values().take(count).cloned().collect() };
        self.shards.iter().flat_map(of).take(count).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.read().len()).sum()
    }
}
