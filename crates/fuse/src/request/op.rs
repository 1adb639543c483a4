//! A request and its operation.

use std::ffi::CStr;

use super::attr::Setattr;
use super::file::{CopyRange, Create, FileIo, Lock, Tmpfile, WriteIo};
use super::forget::Forgets;
use super::header::{Extensions, Header, NodeId};
use super::name::Name;
use crate::abi;
use crate::flags::{IoctlFlags, OpenInFlags, PollFlags, ReleaseFlags, SetxattrFlags};

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The caller and the node.
    pub header: Header,
    /// The operation.
    pub op: Op<'a>,
    /// Empty except in requests that create files.
    pub ext: Extensions<'a>,
}

/// An operation with its parameters. Handles are the numbers that the server chose when the file was opened.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Negotiation. It never reaches a handler.
    Init(abi::InitIn),
    /// Look up `name` in the directory. The reply is an entry, which counts as one lookup of its node.
    Lookup {
        /// The name in the directory, which is the header's node.
        name: Name<'a>,
    },
    /// The kernel releases `nlookup` lookups of the node. It expects no reply.
    Forget {
        /// How many lookups the kernel releases.
        nlookup: u64,
    },
    /// Several FORGETs at once. The kernel expects no reply.
    BatchForget(Forgets<'a>),
    /// stat(2) and fstat(2). The reply is [`Reply::attr`](crate::reply::Reply::attr).
    Getattr {
        /// The handle, if the caller uses an open file.
        handle: Option<u64>,
    },
    /// chmod(2), chown(2), truncate(2), utimensat(2), and combinations of these.
    Setattr(Setattr),
    /// statx(2) (7.39).
    Statx {
        /// The handle, if the caller uses an open file.
        handle: Option<u64>,
        /// `AT_STATX_*`.
        sx_flags: u32,
        /// The requested fields, `STATX_*`.
        mask: u32,
    },
    /// Read the target of a symbolic link.
    Readlink,
    /// Create a symbolic link.
    Symlink {
        /// The name in the directory, which is the header's node.
        name: Name<'a>,
        /// The target, which the server does not resolve.
        target: &'a CStr,
    },
    /// Create a file that is no directory or symbolic link.
    Mknod {
        /// The name in the directory, which is the header's node.
        name: Name<'a>,
        /// Permission bits, and the file type in MKNOD.
        mode: u32,
        /// The device number, in the form of [`abi::decode_dev`].
        rdev: u32,
        /// The caller's umask, already applied unless `DONT_MASK` was negotiated.
        umask: u32,
    },
    /// Create a directory. `mode` does not include the file type.
    Mkdir {
        /// The name in the directory, which is the header's node.
        name: Name<'a>,
        /// Permission bits, and the file type in MKNOD.
        mode: u32,
        /// The caller's umask, already applied unless `DONT_MASK` was negotiated.
        umask: u32,
    },
    /// Remove `name`, which is not a directory.
    Unlink {
        /// The name in the directory, which is the header's node.
        name: Name<'a>,
    },
    /// Remove the empty directory `name`.
    Rmdir {
        /// The name in the directory, which is the header's node.
        name: Name<'a>,
    },
    /// RENAME and RENAME2. `flags` are `RENAME_*`, or 0 for RENAME.
    Rename {
        /// The name in the directory, which is the header's node.
        name: Name<'a>,
        /// The directory of the new name.
        newdir: NodeId,
        /// The new name.
        newname: Name<'a>,
        /// Flags of the system call.
        flags: u32,
    },
    /// Create a hard link: `name` in the directory becomes another name of the node `old`.
    Link {
        /// The node that gets another name.
        old: NodeId,
        /// The name in the directory, which is the header's node.
        name: Name<'a>,
    },
    /// open(2). `flags` are `O_*` without those of creation.
    Open {
        /// Flags of the system call.
        flags: u32,
        /// Further flags (`FUSE_OPEN_*`).
        open_flags: OpenInFlags,
    },
    /// Read from an open file.
    Read(FileIo),
    /// Write to an open file.
    Write(WriteIo<'a>),
    /// The last descriptor of an open file is closed. `flags` are those of open(2).
    Release {
        /// The handle.
        handle: u64,
        /// Flags of the system call.
        flags: u32,
        /// Further flags (`FUSE_RELEASE_*`).
        release_flags: ReleaseFlags,
        /// The lock owner, whose POSIX locks end.
        lock_owner: u64,
    },
    /// A descriptor of an open file was closed.
    Flush {
        /// The handle.
        handle: u64,
        /// The lock owner, whose POSIX locks end.
        lock_owner: u64,
    },
    /// fsync(2), or fdatasync(2) with `datasync`.
    Fsync {
        /// The handle.
        handle: u64,
        /// Whether only data must reach the disk, not timestamps.
        datasync: bool,
    },
    /// opendir(3). `flags` are `O_*`.
    Opendir {
        /// Flags of the system call.
        flags: u32,
        /// Further flags (`FUSE_OPEN_*`).
        open_flags: OpenInFlags,
    },
    /// Read a directory. `offset` is that of the last entry the kernel has, or 0.
    Readdir(FileIo),
    /// Like READDIR, with the attributes of each name. Each entry counts as one lookup of its node.
    Readdirplus(FileIo),
    /// The last descriptor of an open directory is closed.
    Releasedir {
        /// The handle.
        handle: u64,
        /// Flags of the system call.
        flags: u32,
        /// Further flags (`FUSE_RELEASE_*`).
        release_flags: ReleaseFlags,
        /// The lock owner, whose POSIX locks end.
        lock_owner: u64,
    },
    /// Like FSYNC, for a directory.
    Fsyncdir {
        /// The handle.
        handle: u64,
        /// Whether only data must reach the disk, not timestamps.
        datasync: bool,
    },
    /// Create a file and open it. The reply is [`Reply::created`](crate::reply::Reply::created).
    Create(Create<'a>),
    /// Like CREATE, for a file without a name (`O_TMPFILE`).
    Tmpfile(Tmpfile),
    /// statfs(2).
    Statfs,
    /// Set an extended attribute. `flags` are `XATTR_CREATE` and `XATTR_REPLACE`.
    Setxattr {
        /// The name of the extended attribute.
        name: &'a CStr,
        /// The value to store.
        value: &'a [u8],
        /// Flags of the system call.
        flags: u32,
        /// Further flags (`FUSE_SETXATTR_*`).
        setxattr_flags: SetxattrFlags,
    },
    /// Read an extended attribute. `size` 0 asks for the length of the value.
    Getxattr {
        /// The name of the extended attribute.
        name: &'a CStr,
        /// In bytes.
        size: u32,
    },
    /// List the extended attributes. `size` 0 asks for the length of the list.
    Listxattr {
        /// In bytes.
        size: u32,
    },
    /// Remove an extended attribute.
    Removexattr {
        /// The name of the extended attribute.
        name: &'a CStr,
    },
    /// access(2).
    Access {
        /// `R_OK`, `W_OK` and `X_OK`.
        mask: u32,
    },
    /// Test a POSIX lock (`F_GETLK` of fcntl(2)).
    Getlk(Lock),
    /// Acquire or release a POSIX or flock(2) lock, without waiting.
    Setlk(Lock),
    /// Like SETLK, but waits.
    Setlkw(Lock),
    /// The caller of the request `unique` has been interrupted. It needs no reply.
    Interrupt {
        /// The request that was interrupted.
        unique: u64,
    },
    /// ioctl(2).
    Ioctl {
        /// The handle.
        handle: u64,
        /// Flags of the system call.
        flags: IoctlFlags,
        /// The command, as ioctl(2) takes it.
        cmd: u32,
        /// The argument, as ioctl(2) takes it.
        arg: u64,
        /// The length of `data`.
        in_size: u32,
        /// The most bytes of data that the reply can have.
        out_size: u32,
        /// The caller's data.
        data: &'a [u8],
    },
    /// fallocate(2).
    Fallocate {
        /// The handle.
        handle: u64,
        /// The offset in the file, in bytes.
        offset: u64,
        /// In bytes.
        length: u64,
        /// `FALLOC_FL_*`.
        mode: u32,
    },
    /// lseek(2) with `SEEK_DATA` or `SEEK_HOLE`.
    Lseek {
        /// The handle.
        handle: u64,
        /// The offset in the file, in bytes.
        offset: u64,
        /// `SEEK_DATA` or `SEEK_HOLE`.
        whence: u32,
    },
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRange(CopyRange),
    /// poll(2). The reply is [`Reply::poll`](crate::reply::Reply::poll).
    Poll {
        /// The handle.
        handle: u64,
        /// The number for a later wake-up notification.
        kernel_handle: u64,
        /// Flags of the system call.
        flags: PollFlags,
        /// The `POLL*` bits that the caller waits for.
        events: u32,
    },
    /// Map a block of the file to a block of the underlying device.
    Bmap {
        /// In units of `blocksize`.
        block: u64,
        /// In bytes.
        blocksize: u32,
    },
    /// syncfs(2) (7.34).
    Syncfs,
    /// The filesystem is being unmounted.
    Destroy,
    /// The data that a retrieve notification has asked for. The kernel expects no reply.
    NotifyReply {
        /// The offset in the file, in bytes.
        offset: u64,
        /// The file's data.
        data: &'a [u8],
    },
    /// Map part of a file into the DAX window (virtiofs only).
    SetupMapping(abi::SetupMappingIn),
    /// Remove mappings from the DAX window.
    RemoveMapping {
        /// How many mappings there are.
        count: u32,
        /// An array of `fuse_removemapping_one`.
        mappings: &'a [u8],
    },
    /// It never reaches a handler, because it occurs only on `/dev/cuse`.
    CuseInit(abi::CuseInitIn),
    /// An unknown opcode. It never reaches a handler: the reply is `ENOSYS`.
    Unknown(u32),
}
