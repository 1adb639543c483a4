//! Requests about open files.

use super::body::Body;
use super::header::NodeId;
use super::malformed::Malformed;
use super::name::Name;
use crate::abi;
use crate::flags::{LkFlags, OpenInFlags, ReadFlags, WriteFlags};

/// CREATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create<'a> {
    /// The new name.
    pub name: Name<'a>,
    /// `O_*`.
    pub flags: u32,
    /// Permission bits and file type.
    pub mode: u32,
    /// Of the caller; already applied unless `DONT_MASK` was agreed upon.
    pub umask: u32,
    /// What the kernel asks for besides (`FUSE_OPEN_*`).
    pub open_flags: OpenInFlags,
}

impl<'a> Create<'a> {
    pub(super) fn decode(body: &mut Body<'a>) -> Result<Create<'a>, Malformed> {
        let raw: abi::CreateIn = body.fixed()?;
        let name = body.last_name()?;
        let open_flags = OpenInFlags::from_bits_retain(raw.open_flags);
        Ok(Create { name, flags: raw.flags, mode: raw.mode, umask: raw.umask, open_flags })
    }
}

/// TMPFILE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tmpfile {
    /// `O_*`.
    pub flags: u32,
    /// Permission bits and file type.
    pub mode: u32,
    /// Of the caller; already applied unless `DONT_MASK` was agreed upon.
    pub umask: u32,
    /// What the kernel asks for besides (`FUSE_OPEN_*`).
    pub open_flags: OpenInFlags,
}

impl Tmpfile {
    pub(super) fn decode(body: &mut Body<'_>) -> Result<Tmpfile, Malformed> {
        let raw: abi::CreateIn = body.fixed()?;
        // A name comes along and says nothing: that of a dentry without one, "/" (fs/namei.c vfs_tmpfile).
        body.last_string()?;
        let open_flags = OpenInFlags::from_bits_retain(raw.open_flags);
        Ok(Tmpfile { flags: raw.flags, mode: raw.mode, umask: raw.umask, open_flags })
    }
}

/// READ, READDIR and READDIRPLUS: up to `size` bytes from `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIo {
    /// The open file, as the server numbered it.
    pub handle: u64,
    /// In bytes; for directories the position of the entry to begin with.
    pub offset: u64,
    /// Most bytes to answer with.
    pub size: u32,
    /// What the kernel tells besides (`FUSE_READ_*`).
    pub read_flags: ReadFlags,
    /// The open file's `O_*` flags at this moment.
    pub flags: u32,
    /// Who reads or writes, where mandatory locks matter.
    pub lock_owner: Option<u64>,
}

impl FileIo {
    pub(super) fn decode(body: &mut Body<'_>) -> Result<FileIo, Malformed> {
        let raw: abi::ReadIn = body.fixed()?;
        let read_flags = ReadFlags::from_bits_retain(raw.read_flags);
        let lock_owner = read_flags.contains(ReadFlags::LOCKOWNER).then_some(raw.lock_owner);
        Ok(FileIo {
            handle: raw.fh,
            offset: raw.offset,
            size: raw.size,
            read_flags,
            flags: raw.flags,
            lock_owner,
        })
    }
}

/// WRITE. The data starts on a page boundary, so that it can be written with `O_DIRECT` from where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteIo<'a> {
    /// The open file, as the server numbered it.
    pub handle: u64,
    /// From the beginning of the file, in bytes.
    pub offset: u64,
    /// What is written, borrowed from the request.
    pub data: &'a [u8],
    /// What the kernel tells besides (`FUSE_WRITE_*`).
    pub write_flags: WriteFlags,
    /// The open file's `O_*` flags at this moment.
    pub flags: u32,
    /// Who reads or writes, where mandatory locks matter.
    pub lock_owner: Option<u64>,
}

impl<'a> WriteIo<'a> {
    pub(super) fn decode(body: &mut Body<'a>) -> Result<WriteIo<'a>, Malformed> {
        let raw: abi::WriteIn = body.fixed()?;
        let data = body.data(raw.size)?;
        let write_flags = WriteFlags::from_bits_retain(raw.write_flags);
        let lock_owner = write_flags.contains(WriteFlags::LOCKOWNER).then_some(raw.lock_owner);
        Ok(WriteIo { handle: raw.fh, offset: raw.offset, data, write_flags, flags: raw.flags, lock_owner })
    }
}

/// GETLK, SETLK and SETLKW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The open file, as the server numbered it.
    pub handle: u64,
    /// Who takes the lock: unique to a process or a descriptor.
    pub owner: u64,
    /// Range, type and process.
    pub lock: abi::FileLock,
    /// Flags of the call.
    pub flags: LkFlags,
}

impl Lock {
    pub(super) fn decode(body: &mut Body<'_>) -> Result<Lock, Malformed> {
        let raw: abi::LkIn = body.fixed()?;
        Ok(Lock {
            handle: raw.fh,
            owner: raw.owner,
            lock: raw.lk,
            flags: LkFlags::from_bits_retain(raw.lk_flags),
        })
    }
}

/// COPY_FILE_RANGE: from the request's node to `node_out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// The open file to copy from.
    pub handle_in: u64,
    /// Where to copy from, in bytes.
    pub offset_in: u64,
    /// The node to copy to.
    pub node_out: NodeId,
    /// The open file to copy to.
    pub handle_out: u64,
    /// Where to copy to, in bytes.
    pub offset_out: u64,
    /// In bytes; can be larger than 4 GiB.
    pub len: u64,
    /// Flags of the call.
    pub flags: u64,
    /// The answer has room for 64 bits; to be handed to [`Reply::copied`](crate::reply::Reply::copied).
    pub reply64: bool,
}

impl CopyRange {
    pub(super) fn decode(body: &mut Body<'_>, reply64: bool) -> Result<CopyRange, Malformed> {
        let raw: abi::CopyFileRangeIn = body.fixed()?;
        Ok(CopyRange {
            handle_in: raw.fh_in,
            offset_in: raw.off_in,
            node_out: NodeId(raw.nodeid_out),
            handle_out: raw.fh_out,
            offset_out: raw.off_out,
            len: raw.len,
            flags: raw.flags,
            reply64,
        })
    }
}
