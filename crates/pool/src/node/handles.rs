//! Open files and directories, and the one decision about how an open file's data travels.

use super::Node;
use super::direct_writes::Overtaken;
use super::idle_files::Keeping;
use crate::branch::Branch;
use crate::branch::headroom::PassedWriter;
use crate::branch::health::Deed;
use crate::config::{CacheFiles, Config, FlushOnClose, PassthroughIo};
use crate::error::{Error, Result};
use crate::fs::beneath;
use crate::fs::stat::{self, Attr, FileKey};
use crate::hash::{HashMap, shrink};
use crate::ids::HandleId;
use crate::kernel::BackingFile;
use parking_lot::RwLock;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Where an open file lies.
pub(crate) struct Place {
    pub(crate) branch: Arc<Branch>,
    /// The file; opened for whatever, or `O_PATH`.
    pub(crate) fd: Arc<OwnedFd>,
    /// Which file it is, if it is open for reading and nothing else: whoever reads may use the same descriptor.
    pub(crate) reads: Option<FileKey>,
    /// For data that goes to given offsets whatever flags the handles have: never `O_APPEND`, never `O_DIRECT`.
    plain_reads: OnceLock<Arc<OwnedFd>>,
    plain_writes: OnceLock<Arc<OwnedFd>>,
}

impl Place {
    pub(crate) fn new(branch: Arc<Branch>, fd: Arc<OwnedFd>, reads: Option<FileKey>) -> Self {
        Place { branch, fd, reads, plain_reads: OnceLock::new(), plain_writes: OnceLock::new() }
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
    place: RwLock<Arc<Place>>,
    pub(crate) backing: Option<Box<dyn BackingFile>>,
    /// Those who have it open, or are about to.
    users: AtomicUsize,
    /// Handles that can write.
    writers: AtomicUsize,
    /// The thread that may be within an open(2) of the file: [`NOBODY`], [`SEVERAL`], or one more than its number.
    opener: AtomicU64,
    /// The names lead to another node by now, for the kernel goes on reading this file by itself: nobody else may join.
    parted: AtomicBool,
    pub(crate) keeping: Keeping,
    /// Some handle reads and writes past the page cache.
    direct: AtomicBool,
    /// Pages have been fetched nevertheless: the file is mapped.
    overtaken: OnceLock<Box<Overtaken>>,
}

const NOBODY: u64 = 0;
const SEVERAL: u64 = u64::MAX;

/// Threads of other PID namespaces all have the number 0.
fn number_of(thread: u32) -> u64 {
    if thread == 0 { SEVERAL } else { u64::from(thread) + 1 }
}

impl OpenFile {
    pub(crate) fn new(place: Place, backing: Option<Box<dyn BackingFile>>, keeping: Keeping) -> Self {
        OpenFile {
            place: RwLock::new(Arc::new(place)),
            backing,
            users: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            opener: AtomicU64::new(NOBODY),
            parted: AtomicBool::new(false),
            keeping,
            direct: AtomicBool::new(false),
            overtaken: OnceLock::new(),
        }
    }

    /// Changes from 0 with the node's `open` locked.
    pub(crate) fn users(&self) -> usize {
        self.users.load(Ordering::Acquire)
    }

    pub(crate) fn place(&self) -> Arc<Place> {
        self.place.read().clone()
    }

    pub(crate) fn move_to(&self, place: Place) {
        *self.place.write() = Arc::new(place);
    }

    /// Whoever opens the file anew does so by this descriptor. Gives what served so far.
    pub(crate) fn stand_in(&self, fd: &Arc<OwnedFd>) -> Arc<Place> {
        let mut place = self.place.write();
        // What readers share can stay, for it is open for reading alone.
        let fd = if place.reads.is_some() { &place.fd } else { fd };
        let new = Place::new(place.branch.clone(), fd.clone(), place.reads);
        std::mem::replace(&mut *place, Arc::new(new))
    }

    pub(crate) fn part(&self) {
        self.parted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_parted(&self) -> bool {
        self.parted.load(Ordering::Relaxed)
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
    pub(crate) fn may_be_opening(&self, thread: u32) -> bool {
        let opener = self.opener.load(Ordering::Relaxed);
        let may_be = opener == SEVERAL || opener == number_of(thread);
        if may_be && opener != SEVERAL {
            // One open(2) truncates once.
            let _ = self.opener.compare_exchange(opener, NOBODY, Ordering::Relaxed, Ordering::Relaxed);
        }
        may_be
    }

    /// A page is about to be fetched. Whoever writes past the page cache from now on leaves word of it.
    pub(crate) fn fetching(&self, node: &Node) -> Option<&Overtaken> {
        if !self.direct.load(Ordering::Relaxed) {
            return None;
        }
        self.overtaken().or_else(|| {
            // Not beside somebody who has looked already.
            let _no_writers = node.moving.write();
            Some(self.overtaken.get_or_init(Box::default))
        })
    }

    /// For somebody who holds the node's `moving`.
    pub(crate) fn overtaken(&self) -> Option<&Overtaken> {
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
        slot: impl Fn(&Place) -> &OnceLock<Arc<OwnedFd>>,
    ) -> Result<Arc<OwnedFd>, Errno> {
        let place = self.place();
        if let Some(fd) = slot(&place).get() {
            return Ok(fd.clone());
        }
        let fd =
            beneath::reopen(&*place.fd, flags).map_err(|errno| place.branch.notice(errno, Deed::Looking))?;
        Ok(slot(&place).get_or_init(|| Arc::new(fd)).clone())
    }
}

/// Somebody's share in an open file.
pub(crate) struct Using(Arc<OpenFile>);

impl Using {
    pub(crate) fn new(file: Arc<OpenFile>) -> Using {
        file.users.fetch_add(1, Ordering::AcqRel);
        Using(file)
    }
}

impl Deref for Using {
    type Target = Arc<OpenFile>;

    fn deref(&self) -> &Arc<OpenFile> {
        &self.0
    }
}

impl Drop for Using {
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

/// One open(2) of a file.
pub(crate) struct FileHandle {
    pub(crate) node: Arc<Node>,
    // Not an `ArcSwap`: one that goes away visits all threads, and files come and go more often than they are read.
    fd: RwLock<Arc<OwnedFd>>,
    pub(crate) flags: OFlags,
    /// The branch's descriptor has neither `O_APPEND` nor `O_DIRECT` any more.
    plain: AtomicBool,
    pub(crate) open: Using,
    /// The kernel reads and writes by itself.
    pub(crate) past: bool,
    /// What is read and written comes here, past the page cache.
    direct: bool,
    /// The room for what it writes so has been counted.
    pub(crate) passed: Option<PassedWriter>,
}

impl FileHandle {
    /// Also tells whether another handle can write the file.
    pub(crate) fn new(node: Arc<Node>, fd: Arc<OwnedFd>, flags: OFlags, open: Using) -> (Self, bool) {
        let others = open.writers.fetch_add(usize::from(writes(flags)), Ordering::Relaxed);
        let plain = AtomicBool::new(false);
        (
            FileHandle {
                node,
                fd: RwLock::new(fd),
                flags,
                plain,
                open,
                past: false,
                direct: false,
                passed: None,
            },
            others > 0,
        )
    }

    pub(crate) fn travels(&mut self, travel: &Travel) {
        self.past = travel.passthrough.is_some() && !travel.direct_io;
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
    pub(crate) fn held(&self) -> OFlags {
        match self.plain.load(Ordering::Relaxed) {
            true => self.flags - NOT_PLAIN,
            false => self.flags,
        }
    }

    /// A descriptor for data that goes exactly where it is told to, aligned or not: this handle's if it is of that kind,
    /// else one of the open file's. The daemon of an ordinary user may not open for writing what was made unwritable
    /// meanwhile (`O_CREAT` with mode 0444, as git does); then this handle's becomes of that kind.
    pub(crate) fn plain(&self) -> Result<Arc<OwnedFd>, Errno> {
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
        self.open.plain_to_read().or_else(|_| self.plain())
    }

    /// The branch's file, opened as this handle is. Whoever writes through it holds the node's `moving` while he
    /// does.
    pub(crate) fn fd(&self) -> Arc<OwnedFd> {
        self.fd.read().clone()
    }

    /// Takes note of an error that the file's branch has answered with, and gives it back.
    pub(crate) fn notice(&self, errno: Errno, deed: Deed) -> Errno {
        self.open.place().branch.notice(errno, deed)
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
    pub(crate) fn writes_past(&self) -> bool {
        self.writable() && self.past || self.maps_past()
    }

    /// As [`FileHandle::writes_past`], by a shared mapping. That outlives the handle, too.
    pub(crate) fn maps_past(&self) -> bool {
        self.open.backing.is_some() && self.flags.contains(OFlags::RDWR)
    }
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        self.open.writers.fetch_sub(usize::from(self.writable()), Ordering::Relaxed);
        if let Some(passed) = &self.passed {
            passed.closed(|| stat::of(self.fd().as_fd()).map_or(0, |attr| attr.size));
        }
    }
}

/// Data goes elsewhere than it is told to, or must be aligned.
const NOT_PLAIN: OFlags = OFlags::APPEND.union(OFlags::DIRECT);

pub(crate) fn writes(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR)
}

/// How one open travels (`FOPEN_*` in include/uapi/linux/fuse.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Travel {
    /// Reads and writes come to the daemon, whatever is in the page cache.
    pub direct_io: bool,
    /// What is cached of the file stays valid.
    pub keep_cache: bool,
    pub parallel_direct_writes: bool,
    /// close(2) needs no FLUSH.
    pub no_flush: bool,
    /// Reads, writes and mmap go to this backing file.
    pub passthrough: Option<u32>,
}

/// What is known of the node at an open, besides the options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sharing {
    /// Nobody has it open. The id is there if this open asked for passthrough and got it.
    First { backing: Option<u32> },
    /// Somebody has it open, by passthrough if there is an id.
    Shared { backing: Option<u32> },
}

/// Does this option want passthrough for the first open of a node with this access mode?
pub(crate) fn wants_passthrough(option: PassthroughIo, flags: OFlags) -> bool {
    match option {
        PassthroughIo::Off => false,
        PassthroughIo::Ro => !writes(flags),
        PassthroughIo::Wo => flags.contains(OFlags::WRONLY),
        PassthroughIo::Rw | PassthroughIo::Auto => true,
    }
}

/// A streaming writer past the page cache, such as `dd oflag=direct`, takes `O_DIRECT` back for a last piece
/// that is not aligned. The kernel opened the backing file with it, and has no way to take it back: the piece
/// would fail with EINVAL. So such data comes to the daemon. Whoever opens for reading too (disks of virtual
/// machines, databases) writes whole blocks, and keeps passthrough.
pub(crate) fn may_lose_direct(flags: OFlags) -> bool {
    flags.contains(OFlags::DIRECT) && flags & OFlags::ACCMODE == OFlags::WRONLY
}

/// The one place that decides how the data of an open file travels.
///
/// The kernel allows one way for all opens of an inode at a time: either all carry the same backing id,
/// or none carries any; anything else fails the open with EIO (fs/fuse/iomode.c). So the first open
/// decides, and later ones follow, each as well as it can:
/// * the node is in passthrough, this open only writes and would not want it: it carries the id together with
///   DIRECT_IO. Then what it writes comes to the daemon, coherent with everybody else's.
/// * the node is in passthrough, this open reads and would not want it: it goes past the daemon all the same. With
///   DIRECT_IO the kernel would take what is spliced (sendfile(2)) from the page cache of the pool
///   (fs/fuse/file.c fuse_splice_read), which hears nothing of what others write.
/// * the node is not in passthrough, this open would want it: it goes without.
///
/// `cached_by_name` tells, for `per-process`, that the caller is one of the listed programs; `valid`, for
/// `partial` and `auto-full`, that what the kernel has cached of the file is known to be good.
pub(crate) fn decide(
    config: &Config,
    flags: OFlags,
    sharing: Sharing,
    cached_by_name: bool,
    valid: bool,
) -> Travel {
    let (direct_io, keep_cache) = match config.cache_files {
        CacheFiles::Off => (true, false),
        CacheFiles::Partial => (false, valid),
        CacheFiles::Full => (false, true),
        CacheFiles::AutoFull => (false, valid),
        CacheFiles::PerProcess => (!cached_by_name, false),
    };
    let backing = match sharing {
        Sharing::First { backing } | Sharing::Shared { backing } => backing,
    };
    let direct_io = match backing {
        // `cache.files` rules the page cache of the pool, which passthrough does not use.
        Some(_) => {
            let served = !wants_passthrough(config.passthrough, flags) || may_lose_direct(flags);
            served && flags.contains(OFlags::WRONLY)
        }
        None => direct_io || may_lose_direct(flags),
    };
    Travel {
        direct_io,
        keep_cache: keep_cache && backing.is_none(),
        parallel_direct_writes: direct_io && config.parallel_direct_writes,
        no_flush: false,
        passthrough: backing,
    }
}

/// May the FLUSH of a close be left out? `quietly`: the branch's filesystem has nothing to do at a close. (With the
/// writeback cache the kernel sends it nevertheless, for then it is the kernel that has something to write.)
pub(crate) fn no_flush(option: FlushOnClose, flags: OFlags, quietly: bool) -> bool {
    match option {
        FlushOnClose::Never => true,
        FlushOnClose::Always => false,
        FlushOnClose::OpenedForWrite => !writes(flags) || quietly,
    }
}

const SHARDS: usize = 16;

/// Handles by number. Numbers are never reused, so a stale one finds nothing.
pub(crate) struct Handles<T> {
    next: AtomicU64,
    shards: [RwLock<HashMap<u64, Arc<T>>>; SHARDS],
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles { next: AtomicU64::new(1), shards: std::array::from_fn(|_| RwLock::default()) }
    }
}

impl<T> Handles<T> {
    fn shard(&self, id: HandleId) -> &RwLock<HashMap<u64, Arc<T>>> {
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
        let of = |shard: &RwLock<HashMap<u64, Arc<T>>>| -> Vec<Arc<T>> {
            shard.read().values().take(count).cloned().collect()
        };
        self.shards.iter().flat_map(of).take(count).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.read().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(passthrough: PassthroughIo, cache: CacheFiles) -> Config {
        Config { passthrough, cache_files: cache, ..Config::default() }
    }

    fn letters(travel: Travel) -> String {
        let mut out = String::new();
        for (on, letter) in [
            (travel.direct_io, 'D'),
            (travel.keep_cache, 'K'),
            (travel.passthrough.is_some(), 'P'),
            (travel.parallel_direct_writes, 'L'),
        ] {
            if on {
                out.push(letter);
            }
        }
        out
    }

    /// COMPATIBILITY, appendix C; with a backing id the cache mode no longer matters.
    #[test]
    fn flags_by_cache_mode() {
        use CacheFiles::*;
        for (cache, named, valid, without) in [
            (Off, false, false, "DL"),
            (Partial, false, false, ""),
            (Partial, false, true, "K"),
            (Full, false, false, "K"),
            (AutoFull, false, false, ""),
            (AutoFull, false, true, "K"),
            (PerProcess, true, false, ""),
            (PerProcess, false, false, "DL"),
        ] {
            let config = config(PassthroughIo::Rw, cache);
            let first = |backing| decide(&config, OFlags::RDWR, Sharing::First { backing }, named, valid);
            assert_eq!(letters(first(None)), without, "{cache} without passthrough");
            assert_eq!(letters(first(Some(7))), "P", "{cache} with passthrough");
        }
    }

    #[test]
    fn which_first_opens_want_passthrough() {
        use PassthroughIo::*;
        for (option, read, write, both) in [
            (Off, false, false, false),
            (Ro, true, false, false),
            (Wo, false, true, false),
            (Rw, true, true, true),
            (Auto, true, true, true),
        ] {
            let want = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR].map(|f| wants_passthrough(option, f));
            assert_eq!(want, [read, write, both], "{option}");
        }
    }

    /// 14.2 #10: with `ro` or `wo`, a second open in the other access mode failed with EIO.
    #[test]
    fn defect_10_every_open_of_a_passthrough_node_carries_its_id() {
        for option in
            [PassthroughIo::Off, PassthroughIo::Ro, PassthroughIo::Wo, PassthroughIo::Rw, PassthroughIo::Auto]
        {
            for cache in [CacheFiles::Off, CacheFiles::Partial, CacheFiles::Full, CacheFiles::AutoFull] {
                let config = config(option, cache);
                for flags in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR] {
                    let later = |backing| decide(&config, flags, Sharing::Shared { backing }, false, true);
                    assert_eq!(later(Some(3)).passthrough, Some(3));
                    let served = flags == OFlags::WRONLY && !wants_passthrough(option, flags);
                    assert_eq!(later(Some(3)).direct_io, served);
                    assert!(!later(Some(3)).keep_cache);
                    assert_eq!(later(None).passthrough, None);
                }
            }
        }
    }

    /// The first of them is not in passthrough at all; later ones carry the id of those who are.
    #[test]
    fn uncached_streams_come_to_the_daemon() {
        let config = config(PassthroughIo::Rw, CacheFiles::AutoFull);
        for (flags, beside, alone) in
            [(OFlags::RDONLY, "P", ""), (OFlags::WRONLY, "DPL", "DL"), (OFlags::RDWR, "P", "")]
        {
            for (backing, expected) in [(Some(1), beside), (None, alone)] {
                let sharing = Sharing::Shared { backing };
                let travel = decide(&config, flags | OFlags::DIRECT, sharing, false, false);
                assert_eq!(letters(travel), expected, "{flags:?}");
            }
        }
    }

    #[test]
    fn flush_only_where_something_was_written() {
        for (option, read, write, write_quietly) in [
            (FlushOnClose::Never, true, true, true),
            (FlushOnClose::Always, false, false, false),
            (FlushOnClose::OpenedForWrite, true, false, true),
        ] {
            assert_eq!(no_flush(option, OFlags::RDONLY, false), read);
            assert_eq!(no_flush(option, OFlags::RDWR, false), write);
            assert_eq!(no_flush(option, OFlags::RDWR, true), write_quietly);
        }
    }
}
