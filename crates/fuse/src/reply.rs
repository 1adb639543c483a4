//! Answers, built in the buffer they are sent from.
//!
//! A [`Reply`] is the right to answer one request. Every method takes it and gives back a [`Replied`], which the
//! handler has to return: so each request is answered exactly once, and the compiler sees to it.

use std::fmt;

use zerocopy::{Immutable, IntoBytes};

use crate::abi::{self, AttrOut, EntryOut, StatxOut};
use crate::flags::OpenFlags;
use crate::request::{NodeId, Op, Request};

/// The largest errno the kernel takes. From 512 on they are its own, and a reply with one is refused (fs/fuse/dev.c).
pub const ERRNO_MAX: i32 = 511;

const EIO: i32 = 5;
const ERANGE: i32 = 34;
const EOPNOTSUPP: i32 = 95;
/// The kernel's own "not supported", which leaks out of some network filesystems.
const ENOTSUPP: i32 = 524;

/// The right to answer one request.
#[must_use = "a request that is not answered blocks its caller for ever"]
pub struct Reply<'b> {
    pub(crate) payload: &'b mut [u8],
    pub(crate) unique: u64,
    /// How many bytes of variable length the kernel takes as the answer to this request.
    limit: usize,
}

/// Proof that a request has been answered.
#[must_use = "to be returned from the handler"]
#[derive(Debug)]
pub struct Replied {
    pub(crate) unique: u64,
    pub(crate) answer: Answer,
    pub(crate) granted: Granted,
}

/// What is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Nothing,
    /// A positive errno.
    Error(i32),
    /// This many bytes of the payload.
    Payload(usize),
}

/// What the kernel holds once it has the answer, and what must be released if it does not get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granted {
    Nothing,
    Node(NodeId),
    Handle(u64),
    NodeAndHandle(NodeId, u64),
    /// One lookup for each entry of a READDIRPLUS; the payload tells which.
    Entries,
}

impl<'b> Reply<'b> {
    pub(crate) fn new(payload: &'b mut [u8], request: &Request<'_>, page: usize) -> Reply<'b> {
        let asked = match request.op {
            Op::Read(io) | Op::Readdir(io) | Op::Readdirplus(io) => io.size as usize,
            Op::Getxattr { size, .. } | Op::Listxattr { size } => size as usize,
            Op::Ioctl { out_size, .. } => out_size as usize,
            Op::Readlink => page - 1,
            _ => payload.len(),
        };
        let limit = asked.min(payload.len());
        Reply { payload, unique: request.header.unique, limit }
    }

    /// How many bytes [`Reply::bytes`], [`Reply::data`], [`Reply::dir`] and [`Reply::plus`] can carry: what the
    /// request asked for, and never more than the buffer.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    fn done(&self, answer: Answer, granted: Granted) -> Replied {
        Replied { unique: self.unique, answer, granted }
    }

    fn put<T: IntoBytes + Immutable>(self, value: &T, granted: Granted) -> Replied {
        let bytes = value.as_bytes();
        match self.payload.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.done(Answer::Payload(bytes.len()), granted)
            }
            None => self.error(EIO),
        }
    }

    /// Success, with nothing to say.
    pub fn ok(self) -> Replied {
        self.done(Answer::Payload(0), Granted::Nothing)
    }

    /// Failure with a positive errno. One that the kernel would refuse becomes `ERANGE`.
    pub fn error(self, errno: i32) -> Replied {
        let errno = match errno {
            ENOTSUPP => EOPNOTSUPP,
            1..=ERRNO_MAX => errno,
            _ => ERANGE,
        };
        self.done(Answer::Error(errno), Granted::Nothing)
    }

    /// No answer: for FORGET, BATCH_FORGET, INTERRUPT and NOTIFY_REPLY. For any other request the transport sends `EIO`.
    pub fn none(self) -> Replied {
        self.done(Answer::Nothing, Granted::Nothing)
    }

    /// LOOKUP, SYMLINK, MKNOD, MKDIR, LINK. The kernel then holds one lookup of the node, unless its id is 0.
    pub fn entry(self, entry: &EntryOut) -> Replied {
        let granted = if entry.nodeid == 0 { Granted::Nothing } else { Granted::Node(NodeId(entry.nodeid)) };
        self.put(entry, granted)
    }

    /// GETATTR, SETATTR.
    pub fn attr(self, attr: &AttrOut) -> Replied {
        self.put(attr, Granted::Nothing)
    }

    /// STATX.
    pub fn statx(self, statx: &StatxOut) -> Replied {
        self.put(statx, Granted::Nothing)
    }

    /// OPEN, OPENDIR. `backing` is a registered file ([`crate::backing`]) that the kernel reads and writes by itself.
    pub fn opened(self, handle: u64, flags: OpenFlags, backing: Option<u32>) -> Replied {
        self.put(&open_out(handle, flags, backing), Granted::Handle(handle))
    }

    /// CREATE, TMPFILE: an entry and an open file at once.
    pub fn created(self, entry: &EntryOut, handle: u64, flags: OpenFlags, backing: Option<u32>) -> Replied {
        #[derive(IntoBytes, Immutable)]
        #[repr(C)]
        struct CreateOut {
            entry: EntryOut,
            open: abi::OpenOut,
        }
        let out = CreateOut { entry: *entry, open: open_out(handle, flags, backing) };
        self.put(&out, Granted::NodeAndHandle(NodeId(entry.nodeid), handle))
    }

    /// WRITE: the number of bytes written.
    pub fn written(self, size: u32) -> Replied {
        self.put(&abi::WriteOut { size, padding: 0 }, Granted::Nothing)
    }

    /// STATFS.
    pub fn statfs(self, st: &abi::Kstatfs) -> Replied {
        self.put(st, Granted::Nothing)
    }

    /// GETXATTR and LISTXATTR of size 0: the length in bytes.
    pub fn xattr_size(self, size: u32) -> Replied {
        self.put(&abi::GetxattrOut { size, padding: 0 }, Granted::Nothing)
    }

    /// GETXATTR and LISTXATTR: the value, or its length when that was asked for, or `ERANGE` when it does not fit.
    pub fn xattr(self, value: &[u8]) -> Replied {
        if self.limit == 0 {
            return match u32::try_from(value.len()) {
                Ok(size) => self.xattr_size(size),
                Err(_) => self.error(ERANGE),
            };
        }
        self.bytes(value)
    }

    /// READ, READLINK, GETXATTR, LISTXATTR: `bytes`, or `ERANGE` when there are more than the kernel takes.
    pub fn bytes(self, bytes: &[u8]) -> Replied {
        if bytes.len() > self.limit {
            return self.error(ERANGE);
        }
        self.payload[..bytes.len()].copy_from_slice(bytes);
        self.done(Answer::Payload(bytes.len()), Granted::Nothing)
    }

    /// READ, READLINK, GETXATTR, LISTXATTR: lets `fill` write into the buffer the kernel copies from, at most `max`
    /// bytes. The slice starts on a page boundary, so that `O_DIRECT` reads can go there. It holds what an earlier
    /// answer left; only the number of bytes that `fill` returns is sent. An `Err` is a positive errno.
    pub fn data(self, max: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, i32>) -> Replied {
        let room = max.min(self.limit);
        match fill(&mut self.payload[..room]) {
            Ok(len) if len <= room => self.done(Answer::Payload(len), Granted::Nothing),
            Ok(_) => self.error(EIO),
            Err(errno) => self.error(errno),
        }
    }

    /// LSEEK: the resulting offset.
    pub fn lseek(self, offset: u64) -> Replied {
        self.put(&abi::LseekOut { offset }, Granted::Nothing)
    }

    /// IOCTL: its result, and up to the number of bytes the caller takes, written by `fill` as in [`Reply::data`].
    pub fn ioctl(self, result: i32, fill: impl FnOnce(&mut [u8]) -> Result<usize, i32>) -> Replied {
        let head = size_of::<abi::IoctlOut>();
        let Some(room) = self.payload.len().checked_sub(head).map(|room| room.min(self.limit)) else {
            return self.error(EIO);
        };
        match fill(&mut self.payload[head..head + room]) {
            Ok(len) if len <= room => {
                let out = abi::IoctlOut { result, flags: 0, in_iovs: 0, out_iovs: 0 };
                self.payload[..head].copy_from_slice(out.as_bytes());
                self.done(Answer::Payload(head + len), Granted::Nothing)
            }
            Ok(_) => self.error(EIO),
            Err(errno) => self.error(errno),
        }
    }

    /// COPY_FILE_RANGE: the number of bytes copied; `reply64` is the request's.
    ///
    /// The older form has room for 32 bits: the server must copy at most `u32::MAX` bytes for it (rounded down to
    /// whole pages, so that the caller goes on aligned), and more is told as that.
    pub fn copied(self, bytes: u64, reply64: bool) -> Replied {
        if reply64 {
            self.put(&abi::CopyFileRangeOut { bytes_copied: bytes }, Granted::Nothing)
        } else {
            self.written(u32::try_from(bytes).unwrap_or(u32::MAX))
        }
    }

    /// POLL: the `POLL*` bits that are ready.
    pub fn poll(self, revents: u32) -> Replied {
        self.put(&abi::PollOut { revents, padding: 0 }, Granted::Nothing)
    }

    /// GETLK: the lock in the way, or one of type `F_UNLCK`.
    pub fn lock(self, lock: &abi::FileLock) -> Replied {
        self.put(lock, Granted::Nothing)
    }

    /// BMAP.
    pub fn bmap(self, block: u64) -> Replied {
        self.put(&abi::BmapOut { block }, Granted::Nothing)
    }

    /// READDIR: entries, up to `max` bytes of them.
    pub fn dir(self, max: usize) -> DirBuf<'b> {
        let max = max.min(self.limit);
        DirBuf { reply: self, max, len: 0 }
    }

    /// READDIRPLUS: entries with attributes, up to `max` bytes of them.
    pub fn plus(self, max: usize) -> DirPlusBuf<'b> {
        let max = max.min(self.limit);
        DirPlusBuf { reply: self, max, len: 0, granted: 0 }
    }
}

impl fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({})", self.unique)
    }
}

fn open_out(handle: u64, flags: OpenFlags, backing: Option<u32>) -> abi::OpenOut {
    let flags = match backing {
        Some(_) => flags | OpenFlags::PASSTHROUGH,
        None => flags - OpenFlags::PASSTHROUGH,
    };
    abi::OpenOut { fh: handle, open_flags: flags.bits(), backing_id: backing.unwrap_or(0) }
}

/// Appends one record: a head, a name and zeroes up to the next multiple of 8. False when it does not fit.
fn push_record(room: &mut [u8], len: &mut usize, head: &[u8], name: &[u8]) -> bool {
    let named = head.len() + name.len();
    let total = abi::record_align(named);
    let Some(record) = len.checked_add(total).and_then(|end| room.get_mut(*len..end)) else { return false };
    record[..head.len()].copy_from_slice(head);
    record[head.len()..named].copy_from_slice(name);
    // What an earlier answer left in the buffer must not get out.
    record[named..].fill(0);
    *len += total;
    true
}

fn dirent(ino: u64, offset: u64, d_type: u32, name: &[u8]) -> abi::Dirent {
    let namelen = u32::try_from(name.len()).unwrap_or(u32::MAX);
    abi::Dirent { ino, off: offset, namelen, typ: d_type }
}

/// An answer to READDIR in the making.
#[derive(Debug)]
pub struct DirBuf<'b> {
    reply: Reply<'b>,
    max: usize,
    len: usize,
}

impl DirBuf<'_> {
    /// Adds an entry, or returns true: full, and the entry is not in. `offset` is where reading goes on after it (not
    /// 0); `d_type` is one of `DT_*`.
    #[must_use]
    pub fn push(&mut self, ino: u64, offset: u64, d_type: u32, name: &[u8]) -> bool {
        let head = dirent(ino, offset, d_type, name);
        !push_record(&mut self.reply.payload[..self.max], &mut self.len, head.as_bytes(), name)
    }

    /// Whether an entry with a name of this many bytes still fits.
    #[must_use]
    pub fn fits(&self, name_len: usize) -> bool {
        self.len + abi::record_align(size_of::<abi::Dirent>() + name_len) <= self.max
    }

    /// Whether nothing has been pushed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sends what was pushed; nothing means the end of the directory.
    pub fn finish(self) -> Replied {
        self.reply.done(Answer::Payload(self.len), Granted::Nothing)
    }

    /// Sends an errno instead.
    pub fn error(self, errno: i32) -> Replied {
        self.reply.error(errno)
    }
}

/// An answer to READDIRPLUS in the making.
#[derive(Debug)]
pub struct DirPlusBuf<'b> {
    reply: Reply<'b>,
    max: usize,
    len: usize,
    /// Granted by [`DirPlusBuf::grant`], pushed or not.
    granted: usize,
}

impl DirPlusBuf<'_> {
    /// Adds an entry, or returns true: full, and the entry is not in. The kernel then holds one lookup of the entry's
    /// node, unless the node id is 0 (attributes unknown) or the name is `.` or `..`. Ask [`DirPlusBuf::fits`] before
    /// a lookup is counted.
    #[must_use]
    pub fn push(&mut self, entry: &EntryOut, ino: u64, offset: u64, d_type: u32, name: &[u8]) -> bool {
        let head = abi::DirentPlus { entry: *entry, dirent: dirent(ino, offset, d_type, name) };
        !push_record(&mut self.reply.payload[..self.max], &mut self.len, head.as_bytes(), name)
    }

    /// Whether an entry with a name of this many bytes still fits.
    #[must_use]
    pub fn fits(&self, name_len: usize) -> bool {
        self.len + abi::record_align(size_of::<abi::DirentPlus>() + name_len) <= self.max
    }

    /// Sets room aside for an entry with a name of this many bytes, if there is some left: for who pushes only after
    /// all have been asked about.
    #[must_use]
    pub fn grant(&mut self, name_len: usize) -> bool {
        let total = self.granted + abi::record_align(size_of::<abi::DirentPlus>() + name_len);
        let granted = total <= self.max;
        if granted {
            self.granted = total;
        }
        granted
    }

    /// Whether nothing has been pushed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sends what was pushed; nothing means the end of the directory.
    pub fn finish(self) -> Replied {
        self.reply.done(Answer::Payload(self.len), Granted::Entries)
    }

    /// Sends an errno instead. Lookups counted for entries that were pushed are the caller's to take back.
    pub fn error(self, errno: i32) -> Replied {
        self.reply.error(errno)
    }
}
