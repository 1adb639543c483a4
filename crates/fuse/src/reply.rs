//! Replies, built in the buffer they are sent from.
//!
//! A [`Reply`] is the right to answer one request. Every method consumes it and returns a [`Replied`], which the handler
//! must return. So the compiler ensures that each request is answered exactly once.

use std::fmt;

use zerocopy::{Immutable, IntoBytes};

use crate::abi::{self, AttrOut, EntryOut, StatxOut};
use crate::flags::OpenFlags;
use crate::request::{NodeId, Op, Request};
use crate::wait::{Attempt, Signal, Wait};

/// The largest errno that the kernel accepts. Numbers from 512 on are internal to the kernel, which refuses a reply with
/// one of them (fs/fuse/dev.c).
pub const ERRNO_MAX: i32 = 511;

const EIO: i32 = 5;
const ERANGE: i32 = 34;
const EOPNOTSUPP: i32 = 95;
/// The kernel's internal "not supported", which some network filesystems leak.
const ENOTSUPP: i32 = 524;

/// The right to answer one request.
#[must_use = "an unanswered request blocks its caller until the filesystem is unmounted"]
pub struct Reply<'b> {
    pub(crate) payload: &'b mut [u8],
    pub(crate) unique: u64,
    /// How many bytes of variable-length data the kernel accepts for this request.
    limit: usize,
    /// The attempt of a worker that it belongs to.
    attempt: Option<&'b Attempt>,
}

/// Proof that a request has been answered.
#[must_use = "the handler must return it"]
#[derive(Debug)]
pub struct Replied {
    pub(crate) unique: u64,
    pub(crate) answer: Content,
    pub(crate) granted: Granted,
}

impl Replied {
    /// Returns whether the request waits ([`Reply::later`]).
    #[must_use]
    pub fn is_later(&self) -> bool {
        matches!(self.answer, Content::Later(_))
    }

    /// Has the signal that has reached the client end the wait, if it does that and this is one.
    pub fn after(self, signal: Signal) -> Replied {
        match self.answer {
            Content::Later(_) => Replied { answer: Content::Later(signal), ..self },
            _ => self,
        }
    }
}

/// Why there is no data to reply with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoData {
    /// A positive errno.
    Error(i32),
    /// The request waits for this: see [`Reply::later`].
    Later(Wait),
}

/// What to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Nothing,
    /// A positive errno.
    Error(i32),
    /// The first bytes of the payload buffer.
    Payload(usize),
    /// None yet: the request waits, as its attempt says, unless this ends that.
    Later(Signal),
}

/// The references that the kernel holds once it has the reply, and that the server must release if it does not get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granted {
    Nothing,
    Node(NodeId),
    Handle(u64),
    NodeAndHandle(NodeId, u64),
    /// One lookup for each entry of a READDIRPLUS, as listed in the payload.
    Entries,
}

impl<'b> Reply<'b> {
    pub(crate) fn new(
        payload: &'b mut [u8],
        request: &Request<'_>,
        page: usize,
        attempt: Option<&'b Attempt>,
    ) -> Reply<'b> {
        let asked = match request.op {
            Op::Read(io) | Op::Readdir(io) | Op::Readdirplus(io) => io.size as usize,
            Op::Getxattr { size, .. } | Op::Listxattr { size } => size as usize,
            Op::Ioctl { out_size, .. } => out_size as usize,
            Op::Readlink => page - 1,
            _ => payload.len(),
        };
        let limit = asked.min(payload.len());
        Reply { payload, unique: request.header.unique, limit, attempt }
    }

    /// Returns how many bytes [`Reply::bytes`], [`Reply::data`], [`Reply::dir`] and [`Reply::plus`] can send: as many as
    /// the request asks for, limited by the size of the buffer.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    fn done(&self, answer: Content, granted: Granted) -> Replied {
        Replied { unique: self.unique, answer, granted }
    }

    fn put<T: IntoBytes + Immutable>(self, value: &T, granted: Granted) -> Replied {
        let bytes = value.as_bytes();
        match self.payload.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.done(Content::Payload(bytes.len()), granted)
            }
            None => self.error(EIO),
        }
    }

    /// Replies with success and no data.
    pub fn ok(self) -> Replied {
        self.done(Content::Payload(0), Granted::Nothing)
    }

    /// Replies with a positive errno. One that the kernel would refuse becomes `ERANGE`.
    pub fn error(self, errno: i32) -> Replied {
        let errno = match errno {
            ENOTSUPP => EOPNOTSUPP,
            1..=ERRNO_MAX => errno,
            _ => ERANGE,
        };
        self.done(Content::Error(errno), Granted::Nothing)
    }

    /// Sends no reply yet: the request would have to wait for something else than a disk, and has changed nothing. It is put
    /// aside and handled once more later, when its turn comes.
    pub fn later(self, wait: Wait) -> Replied {
        if let Some(attempt) = self.attempt {
            attempt.waits_for(wait);
        }
        self.done(Content::Later(Signal::None), Granted::Nothing)
    }

    /// Sends no reply, for FORGET, BATCH_FORGET, INTERRUPT and NOTIFY_REPLY. For any other request the transport sends
    /// `EIO`.
    pub fn none(self) -> Replied {
        self.done(Content::Nothing, Granted::Nothing)
    }

    /// Replies to LOOKUP, SYMLINK, MKNOD, MKDIR or LINK. The kernel then holds one lookup of the node, unless its id is 0.
    pub fn entry(self, entry: &EntryOut) -> Replied {
        let granted = if entry.nodeid == 0 { Granted::Nothing } else { Granted::Node(NodeId(entry.nodeid)) };
        self.put(entry, granted)
    }

    /// Replies to GETATTR or SETATTR.
    pub fn attr(self, attr: &AttrOut) -> Replied {
        self.put(attr, Granted::Nothing)
    }

    /// Replies to STATX.
    pub fn statx(self, statx: &StatxOut) -> Replied {
        self.put(statx, Granted::Nothing)
    }

    /// Replies to OPEN or OPENDIR. `backing` is the id of a registered file ([`crate::backing`]) for passthrough.
    pub fn opened(self, handle: u64, flags: OpenFlags, backing: Option<u32>) -> Replied {
        self.put(&open_out(handle, flags, backing), Granted::Handle(handle))
    }

    /// Replies to CREATE or TMPFILE with an entry and an open file.
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

    /// Replies to WRITE with the number of bytes written.
    pub fn written(self, size: u32) -> Replied {
        self.put(&abi::WriteOut { size, padding: 0 }, Granted::Nothing)
    }

    /// Replies to STATFS.
    pub fn statfs(self, st: &abi::Kstatfs) -> Replied {
        self.put(st, Granted::Nothing)
    }

    /// Replies to GETXATTR or LISTXATTR of size 0 with the length in bytes.
    pub fn xattr_size(self, size: u32) -> Replied {
        self.put(&abi::GetxattrOut { size, padding: 0 }, Granted::Nothing)
    }

    /// Replies to GETXATTR or LISTXATTR with the value, with its length if the request asks for that, or with `ERANGE` if
    /// the value does not fit.
    pub fn xattr(self, value: &[u8]) -> Replied {
        if self.limit == 0 {
            return match u32::try_from(value.len()) {
                Ok(size) => self.xattr_size(size),
                Err(_) => self.error(ERANGE),
            };
        }
        self.bytes(value)
    }

    /// Replies to READ, READLINK, GETXATTR or LISTXATTR with `bytes`, or with `ERANGE` if they exceed the limit.
    pub fn bytes(self, bytes: &[u8]) -> Replied {
        if bytes.len() > self.limit {
            return self.error(ERANGE);
        }
        self.payload[..bytes.len()].copy_from_slice(bytes);
        self.done(Content::Payload(bytes.len()), Granted::Nothing)
    }

    /// Replies to READ, READLINK, GETXATTR or LISTXATTR with up to `max` bytes, which `fill` writes into the buffer that
    /// the kernel copies from. The slice is page-aligned, as `O_DIRECT` reads require. It may hold data of an earlier
    /// reply; only the number of bytes that `fill` returns is sent. An `Err` is a positive errno.
    pub fn data(self, max: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, i32>) -> Replied {
        self.data_or_later(max, |buffer| fill(buffer).map_err(NoData::Error))
    }

    /// As [`Reply::data`], for a request that may have to wait.
    pub fn data_or_later(self, max: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, NoData>) -> Replied {
        let room = max.min(self.limit);
        match fill(&mut self.payload[..room]) {
            Ok(len) if len <= room => self.done(Content::Payload(len), Granted::Nothing),
            Ok(_) => self.error(EIO),
            Err(NoData::Error(errno)) => self.error(errno),
            Err(NoData::Later(cause)) => self.later(cause),
        }
    }

    /// Replies to LSEEK with the resulting offset.
    pub fn lseek(self, offset: u64) -> Replied {
        self.put(&abi::LseekOut { offset }, Granted::Nothing)
    }

    /// Replies to IOCTL with its result, and with data that `fill` writes as in [`Reply::data`].
    pub fn ioctl(self, result: i32, fill: impl FnOnce(&mut [u8]) -> Result<usize, i32>) -> Replied {
        let head = size_of::<abi::IoctlOut>();
        let Some(room) = self.payload.len().checked_sub(head).map(|room| room.min(self.limit)) else {
            return self.error(EIO);
        };
        match fill(&mut self.payload[head..head + room]) {
            Ok(len) if len <= room => {
                let out = abi::IoctlOut { result, flags: 0, in_iovs: 0, out_iovs: 0 };
                self.payload[..head].copy_from_slice(out.as_bytes());
                self.done(Content::Payload(head + len), Granted::Nothing)
            }
            Ok(_) => self.error(EIO),
            Err(errno) => self.error(errno),
        }
    }

    /// Replies to COPY_FILE_RANGE with the number of bytes copied. `reply64` is that of the request.
    ///
    /// The older form of the reply has 32 bits. For it the server must copy at most `u32::MAX` bytes, rounded down to
    /// whole pages so that the caller continues aligned. A larger number is sent as `u32::MAX`.
    pub fn copied(self, bytes: u64, reply64: bool) -> Replied {
        if reply64 {
            self.put(&abi::CopyFileRangeOut { bytes_copied: bytes }, Granted::Nothing)
        } else {
            self.written(u32::try_from(bytes).unwrap_or(u32::MAX))
        }
    }

    /// Replies to POLL with the `POLL*` bits that are ready.
    pub fn poll(self, revents: u32) -> Replied {
        self.put(&abi::PollOut { revents, padding: 0 }, Granted::Nothing)
    }

    /// Replies to GETLK with the conflicting lock, or one of type `F_UNLCK`.
    pub fn lock(self, lock: &abi::FileLock) -> Replied {
        self.put(lock, Granted::Nothing)
    }

    /// Replies to BMAP.
    pub fn bmap(self, block: u64) -> Replied {
        self.put(&abi::BmapOut { block }, Granted::Nothing)
    }

    /// Begins a reply to READDIR with up to `max` bytes of entries.
    pub fn dir(self, max: usize) -> DirBuf<'b> {
        let max = max.min(self.limit);
        DirBuf { reply: self, max, len: 0 }
    }

    /// Begins a reply to READDIRPLUS with up to `max` bytes of entries with attributes.
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

/// Appends a record: a head, a name, and zeros up to the next multiple of 8. Returns false if it does not fit.
fn push_record(room: &mut [u8], len: &mut usize, head: &[u8], name: &[u8]) -> bool {
    let named = head.len() + name.len();
    let total = abi::record_align(named);
    let Some(record) = len.checked_add(total).and_then(|end| room.get_mut(*len..end)) else { return false };
    record[..head.len()].copy_from_slice(head);
    record[head.len()..named].copy_from_slice(name);
    // Data that an earlier reply left in the buffer must not leak.
    record[named..].fill(0);
    *len += total;
    true
}

fn dirent(ino: u64, offset: u64, d_type: u32, name: &[u8]) -> abi::Dirent {
    let namelen = u32::try_from(name.len()).unwrap_or(u32::MAX);
    abi::Dirent { ino, off: offset, namelen, typ: d_type }
}

/// A reply to READDIR that is being built.
#[derive(Debug)]
pub struct DirBuf<'b> {
    reply: Reply<'b>,
    max: usize,
    len: usize,
}

impl DirBuf<'_> {
    /// Adds an entry. Returns true if it does not fit; it is not added then. `offset` is where reading continues after the
    /// entry and must not be 0. `d_type` is one of `DT_*`.
    #[must_use]
    pub fn push(&mut self, ino: u64, offset: u64, d_type: u32, name: &[u8]) -> bool {
        let head = dirent(ino, offset, d_type, name);
        !push_record(&mut self.reply.payload[..self.max], &mut self.len, head.as_bytes(), name)
    }

    /// Returns whether an entry with a name of this many bytes fits.
    #[must_use]
    pub fn fits(&self, name_len: usize) -> bool {
        self.len + abi::record_align(size_of::<abi::Dirent>() + name_len) <= self.max
    }

    /// Returns whether no entry has been pushed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sends the entries. A reply without entries means the end of the directory.
    pub fn finish(self) -> Replied {
        self.reply.done(Content::Payload(self.len), Granted::Nothing)
    }

    /// Sends an errno instead.
    pub fn error(self, errno: i32) -> Replied {
        self.reply.error(errno)
    }
}

/// A reply to READDIRPLUS that is being built.
#[derive(Debug)]
pub struct DirPlusBuf<'b> {
    reply: Reply<'b>,
    max: usize,
    len: usize,
    /// Bytes reserved by [`DirPlusBuf::grant`], whether or not the entries have been pushed.
    granted: usize,
}

impl DirPlusBuf<'_> {
    /// Adds an entry. Returns true if it does not fit; it is not added then. Once sent, the kernel holds one lookup of the
    /// entry's node, unless the node id is 0 (attributes unknown) or the name is `.` or `..`. Call [`DirPlusBuf::fits`]
    /// before counting a lookup.
    #[must_use]
    pub fn push(&mut self, entry: &EntryOut, ino: u64, offset: u64, d_type: u32, name: &[u8]) -> bool {
        let head = abi::DirentPlus { entry: *entry, dirent: dirent(ino, offset, d_type, name) };
        !push_record(&mut self.reply.payload[..self.max], &mut self.len, head.as_bytes(), name)
    }

    /// Returns whether an entry with a name of this many bytes fits.
    #[must_use]
    pub fn fits(&self, name_len: usize) -> bool {
        self.len + abi::record_align(size_of::<abi::DirentPlus>() + name_len) <= self.max
    }

    /// Reserves space for an entry with a name of this many bytes. Returns false if there is not enough. For callers that
    /// collect all entries before they push any.
    #[must_use]
    pub fn grant(&mut self, name_len: usize) -> bool {
        let total = self.granted + abi::record_align(size_of::<abi::DirentPlus>() + name_len);
        let granted = total <= self.max;
        if granted {
            self.granted = total;
        }
        granted
    }

    /// Returns whether no entry has been pushed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sends the entries. A reply without entries means the end of the directory.
    pub fn finish(self) -> Replied {
        self.reply.done(Content::Payload(self.len), Granted::Entries)
    }

    /// Sends an errno instead. The caller must undo the lookups that it has counted for entries it has pushed.
    pub fn error(self, errno: i32) -> Replied {
        self.reply.error(errno)
    }
}
