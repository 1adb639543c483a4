//! Serves the files of a directory. Each node is an `O_PATH` descriptor.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use canopy_fuse::abi::{Attr, AttrOut, EntryOut, Kstatfs, Statx, StatxOut, SxTime, decode_dev, encode_dev};
use canopy_fuse::flags::OpenFlags;
use canopy_fuse::request::{CopyRange, Create, Name, NodeId, SetTime, Setattr};
use canopy_fuse::{Op, Replied, Reply, Request, Undelivered};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, StatxFlags, Timespec,
    Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;

/// The kernel caches nothing, so that every access is a request, which can have a fault.
const NO_CACHE: Duration = Duration::ZERO;
const XATTR_MAX: usize = 65536;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// The most bytes that a request copies, so that a large copy takes many requests.
const COPY_MAX: usize = 1 << 20;

pub(super) struct Mirror {
    nodes: Mutex<Nodes>,
    files: Table<OwnedFd>,
    listings: Table<Vec<(Vec<u8>, u64, FileType)>>,
}

struct Nodes {
    known: HashMap<u64, Node>,
    /// By device and inode number.
    ids: HashMap<(u64, u64), u64>,
    last: u64,
}

/// A file or directory that the kernel knows.
struct Node {
    fd: Arc<OwnedFd>,
    key: (u64, u64),
    lookups: u64,
}

/// Open files or listings, by handle.
struct Table<T> {
    open: Mutex<HashMap<u64, Arc<T>>>,
    last: AtomicU64,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { open: Mutex::default(), last: AtomicU64::new(0) }
    }
}

impl<T> Table<T> {
    fn insert(&self, value: T) -> u64 {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        lock(&self.open).insert(id, Arc::new(value));
        id
    }

    fn get(&self, id: u64) -> Result<Arc<T>, Errno> {
        lock(&self.open).get(&id).cloned().ok_or(Errno::BADF)
    }

    fn remove(&self, id: u64) {
        lock(&self.open).remove(&id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer to a request.
enum MirrorReply {
    Done,
    Entry(EntryOut),
    Attr(Attr),
    Statx(Statx),
    Opened(u64),
    Created(EntryOut, u64),
    Bytes(Vec<u8>),
    Xattr(Vec<u8>),
    Written(usize),
    Copied(usize, bool),
    Offset(u64),
}

impl Mirror {
    pub(super) fn of(dir: &Path) -> Result<Mirror, Errno> {
        let fd = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let key = key(fd.as_fd())?;
        let root = Node { fd: Arc::new(fd), key, lookups: 1 };
        let id = NodeId::ROOT.0;
        let nodes = Nodes { known: HashMap::from([(id, root)]), ids: HashMap::from([(key, id)]), last: id };
        Ok(Mirror { nodes: Mutex::new(nodes), files: Table::default(), listings: Table::default() })
    }

    pub(super) fn serve(&self, request: &Request<'_>, reply: Reply<'_>) -> Replied {
        match request.op {
            Op::Forget { nlookup } => {
                self.forget(request.header.node, nlookup);
                return reply.none();
            }
            Op::BatchForget(items) => {
                items.for_each(|item| self.forget(item.node, item.nlookup));
                return reply.none();
            }
            Op::Interrupt { .. } | Op::NotifyReply { .. } => return reply.none(),
            Op::Read(io) => {
                return reply.data(io.size as usize, |buffer| {
                    let file = self.files.get(io.handle).map_err(Errno::raw_os_error)?;
                    rustix::io::pread(&*file, buffer, io.offset).map_err(Errno::raw_os_error)
                });
            }
            Op::Readdir(io) => {
                let mut out = reply.dir(io.size as usize);
                let Ok(listing) = self.listings.get(io.handle) else {
                    return out.error(Errno::BADF.raw_os_error());
                };
                for (place, (name, ino, kind)) in listing.iter().enumerate().skip(io.offset as usize) {
                    if out.push(*ino, place as u64 + 1, kind.as_raw_mode() >> 12, name) {
                        break;
                    }
                }
                return out.finish();
            }
            Op::Statfs => {
                let found = self.fd(request.header.node).and_then(|fd| rustix::fs::fstatvfs(&*fd));
                return match found {
                    Ok(found) => reply.statfs(&Kstatfs {
                        blocks: found.f_blocks,
                        bfree: found.f_bfree,
                        bavail: found.f_bavail,
                        files: found.f_files,
                        ffree: found.f_ffree,
                        bsize: found.f_bsize as u32,
                        frsize: found.f_frsize as u32,
                        namelen: found.f_namemax as u32,
                        ..Kstatfs::default()
                    }),
                    Err(errno) => reply.error(errno.raw_os_error()),
                };
            }
            _ => {}
        }
        match self.answer(request) {
            Ok(MirrorReply::Done) => reply.ok(),
            Ok(MirrorReply::Entry(entry)) => reply.entry(&entry),
            Ok(MirrorReply::Attr(attr)) => reply.attr(&AttrOut::new(attr, NO_CACHE)),
            Ok(MirrorReply::Statx(statx)) => reply.statx(&StatxOut::new(statx, NO_CACHE)),
            Ok(MirrorReply::Opened(handle)) => reply.opened(handle, OpenFlags::empty(), None),
            Ok(MirrorReply::Created(entry, handle)) => {
                reply.created(&entry, handle, OpenFlags::empty(), None)
            }
            Ok(MirrorReply::Bytes(bytes)) => reply.bytes(&bytes),
            Ok(MirrorReply::Xattr(value)) => reply.xattr(&value),
            Ok(MirrorReply::Written(bytes)) => reply.written(bytes as u32),
            Ok(MirrorReply::Copied(bytes, wide)) => reply.copied(bytes as u64, wide),
            Ok(MirrorReply::Offset(offset)) => reply.lseek(offset),
            Err(errno) => reply.error(errno.raw_os_error()),
        }
    }

    fn answer(&self, request: &Request<'_>) -> Result<MirrorReply, Errno> {
        let this = self.fd(request.header.node)?;
        let owner = (request.header.uid, request.header.gid);
        Ok(match request.op {
            Op::Lookup { name } => MirrorReply::Entry(self.entry(&this, name)?),
            Op::Getattr { .. } => MirrorReply::Attr(attr(&statx(this.as_fd())?)),
            Op::Statx { .. } => MirrorReply::Statx(to_statx(&statx(this.as_fd())?)),
            Op::Setattr(set) => {
                change(this.as_fd(), &set)?;
                MirrorReply::Attr(attr(&statx(this.as_fd())?))
            }
            Op::Readlink => MirrorReply::Bytes(rustix::fs::readlinkat(&*this, c"", Vec::new())?.into_bytes()),
            Op::Symlink { name, target } => {
                rustix::fs::symlinkat(target, &*this, name.as_cstr())?;
                MirrorReply::Entry(self.adopt(&this, name, owner, None)?)
            }
            Op::Mknod { name, mode, rdev, umask } => {
                let (kind, rights) =
                    (FileType::from_raw_mode(mode), Mode::from_raw_mode(mode & !umask & 0o7777));
                let (major, minor) = decode_dev(rdev);
                rustix::fs::mknodat(&*this, name.as_cstr(), kind, rights, rustix::fs::makedev(major, minor))?;
                MirrorReply::Entry(self.adopt(&this, name, owner, Some(rights))?)
            }
            Op::Mkdir { name, mode, umask } => {
                let rights = Mode::from_raw_mode(mode & !umask & 0o7777);
                rustix::fs::mkdirat(&*this, name.as_cstr(), rights)?;
                MirrorReply::Entry(self.adopt(&this, name, owner, Some(rights))?)
            }
            Op::Unlink { name } => {
                rustix::fs::unlinkat(&*this, name.as_cstr(), AtFlags::empty())?;
                MirrorReply::Done
            }
            Op::Rmdir { name } => {
                rustix::fs::unlinkat(&*this, name.as_cstr(), AtFlags::REMOVEDIR)?;
                MirrorReply::Done
            }
            Op::Rename { name, newdir, newname, flags } => {
                let (to, flags) = (self.fd(newdir)?, RenameFlags::from_bits_retain(flags));
                rustix::fs::renameat_with(&*this, name.as_cstr(), &*to, newname.as_cstr(), flags)?;
                MirrorReply::Done
            }
            Op::Link { old, name } => {
                let old = self.fd(NodeId(old.0))?;
                rustix::fs::linkat(&*old, c"", &*this, name.as_cstr(), AtFlags::EMPTY_PATH)?;
                MirrorReply::Entry(self.entry(&this, name)?)
            }
            Op::Open { flags, .. } => MirrorReply::Opened(self.files.insert(reopen(&this, flags)?)),
            Op::Create(create) => self.create(&this, &create, owner)?,
            Op::Write(io) => {
                MirrorReply::Written(rustix::io::pwrite(&*self.files.get(io.handle)?, io.data, io.offset)?)
            }
            Op::Release { handle, .. } => {
                self.files.remove(handle);
                MirrorReply::Done
            }
            Op::Fsync { handle, .. } => {
                rustix::fs::fsync(&*self.files.get(handle)?)?;
                MirrorReply::Done
            }
            Op::Fallocate { handle, offset, length, mode } => {
                let mode = FallocateFlags::from_bits_retain(mode);
                rustix::fs::fallocate(&*self.files.get(handle)?, mode, offset, length)?;
                MirrorReply::Done
            }
            Op::Lseek { handle, offset, whence } => self.seek(handle, offset, whence)?,
            Op::CopyFileRange(copy) => self.copy(&copy)?,
            Op::Opendir { .. } => MirrorReply::Opened(self.listings.insert(list(&this)?)),
            Op::Releasedir { handle, .. } => {
                self.listings.remove(handle);
                MirrorReply::Done
            }
            Op::Setxattr { name, value, flags, .. } => {
                rustix::fs::setxattr(
                    path(&this),
                    &*stored_name(name),
                    value,
                    XattrFlags::from_bits_retain(flags),
                )?;
                MirrorReply::Done
            }
            Op::Getxattr { name, .. } => {
                let mut value = vec![0; XATTR_MAX];
                let len = rustix::fs::getxattr(path(&this), &*stored_name(name), &mut value)?;
                value.truncate(len);
                MirrorReply::Xattr(value)
            }
            Op::Listxattr { .. } => {
                let mut names = vec![0_u8; XATTR_MAX];
                let len = rustix::fs::listxattr(path(&this), &mut names)?;
                names.truncate(len);
                MirrorReply::Xattr(names)
            }
            Op::Removexattr { name } => {
                rustix::fs::removexattr(path(&this), &*stored_name(name))?;
                MirrorReply::Done
            }
            Op::Flush { .. } | Op::Fsyncdir { .. } | Op::Syncfs | Op::Destroy => MirrorReply::Done,
            _ => return Err(Errno::NOSYS),
        })
    }

    pub(super) fn undelivered(&self, what: Undelivered) {
        match what {
            Undelivered::Entry { node } => self.forget(node, 1),
            Undelivered::Opened { handle, dir: true, .. } => self.listings.remove(handle),
            Undelivered::Opened { handle, dir: false, .. } => self.files.remove(handle),
            Undelivered::Created { node, handle } => {
                self.files.remove(handle);
                self.forget(node, 1);
            }
        }
    }

    pub(super) fn is_empty(&self, id: NodeId) -> bool {
        self.fd(id).and_then(|fd| statx(fd.as_fd())).is_ok_and(|found| found.stx_size == 0)
    }

    fn fd(&self, id: NodeId) -> Result<Arc<OwnedFd>, Errno> {
        lock(&self.nodes).known.get(&id.0).map(|node| Arc::clone(&node.fd)).ok_or(Errno::STALE)
    }

    fn entry(&self, dir: &OwnedFd, name: Name<'_>) -> Result<EntryOut, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(dir, name.as_cstr(), flags, Mode::empty())?;
        let (key, attr) = (key(fd.as_fd())?, attr(&statx(fd.as_fd())?));
        let nodes = &mut *lock(&self.nodes);
        let id = *nodes.ids.entry(key).or_insert_with(|| {
            nodes.last += 1;
            nodes.last
        });
        let new = || Node { fd: Arc::new(fd), key, lookups: 0 };
        nodes.known.entry(id).or_insert_with(new).lookups += 1;
        Ok(EntryOut::new(id, 0, attr, NO_CACHE, NO_CACHE))
    }

    fn create(&self, dir: &OwnedFd, create: &Create<'_>, owner: (u32, u32)) -> Result<MirrorReply, Errno> {
        let rights = Mode::from_raw_mode(create.mode & !create.umask & 0o7777);
        let flags =
            OFlags::from_bits_retain(create.flags) | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, create.name.as_cstr(), flags - OFlags::APPEND, rights)?;
        let entry = self.adopt(dir, create.name, owner, Some(rights))?;
        Ok(MirrorReply::Created(entry, self.files.insert(file)))
    }

    fn seek(&self, handle: u64, offset: u64, whence: u32) -> Result<MirrorReply, Errno> {
        let from = match whence {
            SEEK_DATA => SeekFrom::Data(offset),
            SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::INVAL),
        };
        Ok(MirrorReply::Offset(rustix::fs::seek(&*self.files.get(handle)?, from)?))
    }

    /// Copies at most [`COPY_MAX`] bytes, as a network filesystem answers with less than was asked for.
    fn copy(&self, copy: &CopyRange) -> Result<MirrorReply, Errno> {
        let (from, to) = (self.files.get(copy.handle_in)?, self.files.get(copy.handle_out)?);
        let (mut at, mut into) = (copy.offset_in, copy.offset_out);
        let len = usize::try_from(copy.len).unwrap_or(usize::MAX).min(COPY_MAX);
        let bytes = rustix::fs::copy_file_range(&*from, Some(&mut at), &*to, Some(&mut into), len)?;
        Ok(MirrorReply::Copied(bytes, copy.reply64))
    }

    /// Gives a new file to the caller, with these permissions whatever the umask of the test, and returns its entry.
    fn adopt(
        &self,
        dir: &OwnedFd,
        name: Name<'_>,
        (uid, gid): (u32, u32),
        rights: Option<Mode>,
    ) -> Result<EntryOut, Errno> {
        let made =
            rustix::fs::statat(dir, name.as_cstr(), AtFlags::SYMLINK_NOFOLLOW).ok().map(|it| it.st_mode);
        // What is made in a setgid directory has the group of that.
        let inherits = Mode::from_raw_mode(rustix::fs::fstat(dir)?.st_mode).contains(Mode::SGID);
        let (uid, gid) = (Uid::from_raw(uid), (!inherits).then(|| Gid::from_raw(gid)));
        rustix::fs::chownat(dir, name.as_cstr(), Some(uid), gid, AtFlags::SYMLINK_NOFOLLOW)?;
        if let Some(rights) = rights {
            // A directory has inherited setgid, which a change of its owner may have cleared.
            let inherited = made.filter(|made| FileType::from_raw_mode(*made) == FileType::Directory);
            let inherited = Mode::from_raw_mode(inherited.unwrap_or_default()) & Mode::SGID;
            rustix::fs::chmodat(dir, name.as_cstr(), rights | inherited, AtFlags::empty())?;
        }
        self.entry(dir, name)
    }

    fn forget(&self, id: NodeId, count: u64) {
        let nodes = &mut *lock(&self.nodes);
        let Some(node) = nodes.known.get_mut(&id.0).filter(|_| id != NodeId::ROOT) else { return };
        node.lookups = node.lookups.saturating_sub(count);
        if node.lookups == 0 {
            nodes.ids.remove(&node.key);
            nodes.known.remove(&id.0);
        }
    }
}

/// Returns the name under which the backing directory stores an attribute.
///
/// Attributes that only some filesystems support (`system.nfs4_acl`, `system.ntfs_attrib`) are stored with the prefix
/// `trusted.`, so that a test can use them everywhere. Such filesystems check on their server who may write them; this one
/// allows every caller.
fn stored_name(name: &CStr) -> Cow<'_, CStr> {
    let bytes = name.to_bytes();
    if !bytes.starts_with(b"system.") || bytes.starts_with(b"system.posix_acl_") {
        return Cow::Borrowed(name);
    }
    Cow::Owned(CString::new([b"trusted.", bytes].concat()).expect("no NUL"))
}

/// Returns a path to an open file, for calls that accept no `O_PATH` descriptor.
fn path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn reopen(fd: &OwnedFd, flags: u32) -> Result<OwnedFd, Errno> {
    // Each WRITE contains its offset.
    let flags = (OFlags::from_bits_retain(flags) - (OFlags::NOFOLLOW | OFlags::APPEND)) | OFlags::CLOEXEC;
    rustix::fs::open(path(fd), flags, Mode::empty())
}

fn list(dir: &OwnedFd) -> Result<Vec<(Vec<u8>, u64, FileType)>, Errno> {
    let opened = reopen(dir, (OFlags::RDONLY | OFlags::DIRECTORY).bits())?;
    let entry =
        |entry: rustix::fs::DirEntry| (entry.file_name().to_bytes().to_vec(), entry.ino(), entry.file_type());
    rustix::fs::Dir::read_from(opened)?.map(|found| found.map(entry)).collect()
}

fn statx(fd: BorrowedFd<'_>) -> Result<rustix::fs::Statx, Errno> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

fn key(fd: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

fn attr(found: &rustix::fs::Statx) -> Attr {
    Attr {
        ino: found.stx_ino,
        size: found.stx_size,
        blocks: found.stx_blocks,
        atime: found.stx_atime.tv_sec.cast_unsigned(),
        mtime: found.stx_mtime.tv_sec.cast_unsigned(),
        ctime: found.stx_ctime.tv_sec.cast_unsigned(),
        atimensec: found.stx_atime.tv_nsec,
        mtimensec: found.stx_mtime.tv_nsec,
        ctimensec: found.stx_ctime.tv_nsec,
        mode: found.stx_mode.into(),
        nlink: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        rdev: encode_dev(found.stx_rdev_major, found.stx_rdev_minor),
        blksize: found.stx_blksize,
        flags: 0,
    }
}

fn to_statx(found: &rustix::fs::Statx) -> Statx {
    let time = |t: rustix::fs::StatxTimestamp| SxTime { sec: t.tv_sec, nsec: t.tv_nsec, reserved: 0 };
    Statx {
        mask: found.stx_mask,
        blksize: found.stx_blksize,
        nlink: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        mode: found.stx_mode,
        ino: found.stx_ino,
        size: found.stx_size,
        blocks: found.stx_blocks,
        atime: time(found.stx_atime),
        btime: time(found.stx_btime),
        ctime: time(found.stx_ctime),
        mtime: time(found.stx_mtime),
        rdev_major: found.stx_rdev_major,
        rdev_minor: found.stx_rdev_minor,
        ..Statx::default()
    }
}

fn change(fd: BorrowedFd<'_>, set: &Setattr) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    if set.uid.is_some() || set.gid.is_some() {
        let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
        rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    if let Some(mode) = set.mode {
        rustix::fs::chmodat(CWD, &path, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?;
    }
    if let Some(size) = set.size {
        rustix::fs::ftruncate(
            rustix::fs::open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?,
            size,
        )?;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        let time = |time: Option<SetTime>| match time {
            None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            Some(SetTime::At(at)) => Timespec { tv_sec: at.sec, tv_nsec: at.nsec.into() },
        };
        let times = Timestamps { last_access: time(set.atime), last_modification: time(set.mtime) };
        rustix::fs::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}
