//! The parameters of requests about open files.

use super::body::Body;
use super::header::NodeId;
use super::malformed::Malformed;
use super::name::Name;
use crate::abi;
use crate::flags::{LkFlags, OpenInFlags, ReadFlags, WriteFlags};

/// The parameters of CREATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create<'a> {
    /// The new name.
    pub name: Name<'a>,
    /// `O_*`.
    pub flags: u32,
    /// Permission bits and file type.
    pub mode: u32,
    /// The caller's umask, already applied unless `DONT_MASK` was negotiated.
    pub umask: u32,
    /// Further flags (`FUSE_OPEN_*`).
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

/// The parameters of TMPFILE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tmpfile {
    /// `O_*`.
    pub flags: u32,
    /// Permission bits and file type.
    pub mode: u32,
    /// The caller's umask, already applied unless `DONT_MASK` was negotiated.
    pub umask: u32,
    /// Further flags (`FUSE_OPEN_*`).
    pub open_flags: OpenInFlags,
}

impl Tmpfile {
    pub(super) fn decode(body: &mut Body<'_>) -> Result<Tmpfile, Malformed> {
        let raw: abi::CreateIn = body.fixed()?;
        // The name is meaningless: that of an anonymous dentry, "/" (fs/namei.c vfs_tmpfile).
        body.last_string()?;
        let open_flags = OpenInFlags::from_bits_retain(raw.open_flags);
        Ok(Tmpfile { flags: raw.flags, mode: raw.mode, umask: raw.umask, open_flags })
    }
}

/// The parameters of READ, READDIR and READDIRPLUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIo {
    /// The handle.
    pub handle: u64,
    /// In bytes; for directories, the position of the first entry to return.
    pub offset: u64,
    /// The most bytes to reply with.
    pub size: u32,
    /// Further flags (`FUSE_READ_*`).
    pub read_flags: ReadFlags,
    /// The current `O_*` flags of the open file.
    pub flags: u32,
    /// The lock owner, for mandatory locks.
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

/// The parameters of WRITE. The data is page-aligned, so that it can be written with `O_DIRECT` without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteIo<'a> {
    /// The handle.
    pub handle: u64,
    /// In bytes.
    pub offset: u64,
    /// The data to write.
    pub data: &'a [u8],
    /// Further flags (`FUSE_WRITE_*`).
    pub write_flags: WriteFlags,
    /// The current `O_*` flags of the open file.
    pub flags: u32,
    /// The lock owner, for mandatory locks.
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

/// The parameters of GETLK, SETLK and SETLKW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The handle.
    pub handle: u64,
    /// The lock owner, which identifies a process or a file description.
    pub owner: u64,
    /// Range, type and process.
    pub lock: abi::FileLock,
    /// Flags (`FUSE_LK_*`).
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

/// The parameters of COPY_FILE_RANGE, which copies from the request's node to `node_out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// The handle of the source file.
    pub handle_in: u64,
    /// The offset in the source file, in bytes.
    pub offset_in: u64,
    /// The node of the target file.
    pub node_out: NodeId,
    /// The handle of the target file.
    pub handle_out: u64,
    /// The offset in the target file, in bytes.
    pub offset_out: u64,
    /// In bytes; may exceed 4 GiB.
    pub len: u64,
    /// Flags of copy_file_range(2).
    pub flags: u64,
    /// Whether the reply has 64 bits, for [`Reply::copied`](crate::reply::Reply::copied).
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
