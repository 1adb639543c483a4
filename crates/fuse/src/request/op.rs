//! A request, and what it asks for.

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
    /// Who asks, and about which node.
    pub header: Header,
    /// What is asked for.
    pub op: Op<'a>,
    /// Empty except with requests that create.
    pub ext: Extensions<'a>,
}

/// What is asked for. Handles are the numbers the server gave when the file was opened.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Negotiation. Never reaches a handler.
    Init(abi::InitIn),
    /// Find `name` in the directory. The answer is an entry, which counts as one lookup of its node.
    Lookup {
        /// The entry, in the directory that the header names.
        name: Name<'a>,
    },
    /// The kernel gives back `nlookup` lookups of the node. No answer.
    Forget {
        /// How many lookups the kernel gives back.
        nlookup: u64,
    },
    /// Several FORGETs at once. No answer.
    BatchForget(Forgets<'a>),
    /// stat(2) and fstat(2): the answer is made with [`Reply::attr`](crate::reply::Reply::attr).
    Getattr {
        /// The open file, as the server numbered it.
        handle: Option<u64>,
    },
    /// chmod(2), chown(2), truncate(2), utimensat(2), and whatever combines them.
    Setattr(Setattr),
    /// 7.39. `sx_flags` are `AT_STATX_*`, `mask` is made of `STATX_*`.
    Statx {
        /// The open file, as the server numbered it.
        handle: Option<u64>,
        /// `AT_STATX_*`.
        sx_flags: u32,
        /// What is asked for, as bits.
        mask: u32,
    },
    /// The target of a symbolic link.
    Readlink,
    /// A symbolic link `name` to `target`.
    Symlink {
        /// The entry, in the directory that the header names.
        name: Name<'a>,
        /// What the link says; not resolved by the server.
        target: &'a CStr,
    },
    /// `mode` with its file type; `rdev` in the form of [`abi::decode_dev`].
    Mknod {
        /// The entry, in the directory that the header names.
        name: Name<'a>,
        /// Permission bits, and the file type where the operation has one.
        mode: u32,
        /// The device number, in the form of [`abi::decode_dev`].
        rdev: u32,
        /// Of the caller; already applied unless `DONT_MASK` was agreed upon.
        umask: u32,
    },
    /// A directory `name`; `mode` without the file type.
    Mkdir {
        /// The entry, in the directory that the header names.
        name: Name<'a>,
        /// Permission bits, and the file type where the operation has one.
        mode: u32,
        /// Of the caller; already applied unless `DONT_MASK` was agreed upon.
        umask: u32,
    },
    /// Remove `name`, which is not a directory.
    Unlink {
        /// The entry, in the directory that the header names.
        name: Name<'a>,
    },
    /// Remove the empty directory `name`.
    Rmdir {
        /// The entry, in the directory that the header names.
        name: Name<'a>,
    },
    /// RENAME and RENAME2; `flags` are `RENAME_*`, 0 for the former.
    Rename {
        /// The entry, in the directory that the header names.
        name: Name<'a>,
        /// The directory of the new name.
        newdir: NodeId,
        /// The new name.
        newname: Name<'a>,
        /// Flags of the call, as its manual page has them.
        flags: u32,
    },
    /// A new `name` in this directory for the node `old`.
    Link {
        /// The node that gets another name.
        old: NodeId,
        /// The entry, in the directory that the header names.
        name: Name<'a>,
    },
    /// `flags` are `O_*` without those of creation.
    Open {
        /// Flags of the call, as its manual page has them.
        flags: u32,
        /// What the kernel asks for besides (`FUSE_OPEN_*`).
        open_flags: OpenInFlags,
    },
    /// Read from an open file.
    Read(FileIo),
    /// Write to an open file.
    Write(WriteIo<'a>),
    /// The last descriptor of an open file is gone. `flags` are those of open(2).
    Release {
        /// The open file, as the server numbered it.
        handle: u64,
        /// Flags of the call, as its manual page has them.
        flags: u32,
        /// What the kernel asks for besides (`FUSE_RELEASE_*`).
        release_flags: ReleaseFlags,
        /// Whose POSIX locks end with this.
        lock_owner: u64,
    },
    /// A descriptor of an open file was closed.
    Flush {
        /// The open file, as the server numbered it.
        handle: u64,
        /// Whose POSIX locks end with this.
        lock_owner: u64,
    },
    /// fsync(2), or fdatasync(2) with `datasync`.
    Fsync {
        /// The open file, as the server numbered it.
        handle: u64,
        /// The data is enough; times need not reach the disk.
        datasync: bool,
    },
    /// opendir(3); `flags` are `O_*`.
    Opendir {
        /// Flags of the call, as its manual page has them.
        flags: u32,
        /// What the kernel asks for besides (`FUSE_OPEN_*`).
        open_flags: OpenInFlags,
    },
    /// `offset` is the one pushed with the last entry the reader has seen, or 0.
    Readdir(FileIo),
    /// As READDIR, with the attributes of each name; each counts as one lookup of its node.
    Readdirplus(FileIo),
    /// The last descriptor of an open directory is gone.
    Releasedir {
        /// The open file, as the server numbered it.
        handle: u64,
        /// Flags of the call, as its manual page has them.
        flags: u32,
        /// What the kernel asks for besides (`FUSE_RELEASE_*`).
        release_flags: ReleaseFlags,
        /// Whose POSIX locks end with this.
        lock_owner: u64,
    },
    /// As FSYNC, of a directory.
    Fsyncdir {
        /// The open file, as the server numbered it.
        handle: u64,
        /// The data is enough; times need not reach the disk.
        datasync: bool,
    },
    /// The answer is made with [`Reply::created`](crate::reply::Reply::created).
    Create(Create<'a>),
    /// As CREATE; the name is what the kernel made up and means nothing.
    Tmpfile(Tmpfile),
    /// statfs(2).
    Statfs,
    /// `flags` are `XATTR_CREATE` and `XATTR_REPLACE`.
    Setxattr {
        /// The entry, in the directory that the header names.
        name: &'a CStr,
        /// The value to store.
        value: &'a [u8],
        /// Flags of the call, as its manual page has them.
        flags: u32,
        /// What the kernel asks for besides (`FUSE_SETXATTR_*`).
        setxattr_flags: SetxattrFlags,
    },
    /// `size` 0 asks for the length of the value.
    Getxattr {
        /// The entry, in the directory that the header names.
        name: &'a CStr,
        /// In bytes.
        size: u32,
    },
    /// `size` 0 asks for the length of the list.
    Listxattr {
        /// In bytes.
        size: u32,
    },
    /// Remove an extended attribute.
    Removexattr {
        /// The entry, in the directory that the header names.
        name: &'a CStr,
    },
    /// `mask` is made of `R_OK`, `W_OK` and `X_OK`.
    Access {
        /// What is asked for, as bits.
        mask: u32,
    },
    /// Test a POSIX lock: `F_GETLK` of fcntl(2).
    Getlk(Lock),
    /// Take or give back a POSIX or flock(2) lock, without waiting.
    Setlk(Lock),
    /// As SETLK, but waits.
    Setlkw(Lock),
    /// The caller of the request `unique` has been interrupted. No answer is needed.
    Interrupt {
        /// The request that was interrupted.
        unique: u64,
    },
    /// ioctl(2): `cmd` with `in_size` bytes of `data`, and room for `out_size` bytes of an answer.
    Ioctl {
        /// The open file, as the server numbered it.
        handle: u64,
        /// Flags of the call, as its manual page has them.
        flags: IoctlFlags,
        /// The command, as ioctl(2) takes it.
        cmd: u32,
        /// The argument, as ioctl(2) takes it.
        arg: u64,
        /// Bytes of `data`.
        in_size: u32,
        /// Bytes of the answer that the caller takes.
        out_size: u32,
        /// What the caller gave.
        data: &'a [u8],
    },
    /// `mode` is made of `FALLOC_FL_*`.
    Fallocate {
        /// The open file, as the server numbered it.
        handle: u64,
        /// From the beginning of the file, in bytes.
        offset: u64,
        /// In bytes.
        length: u64,
        /// Permission bits, and the file type where the operation has one.
        mode: u32,
    },
    /// lseek(2) with `SEEK_DATA` or `SEEK_HOLE`.
    Lseek {
        /// The open file, as the server numbered it.
        handle: u64,
        /// From the beginning of the file, in bytes.
        offset: u64,
        /// `SEEK_DATA` or `SEEK_HOLE`.
        whence: u32,
    },
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRange(CopyRange),
    /// poll(2); the answer is made with [`Reply::poll`](crate::reply::Reply::poll).
    Poll {
        /// The open file, as the server numbered it.
        handle: u64,
        /// What a later wake-up notification names.
        kernel_handle: u64,
        /// Flags of the call, as its manual page has them.
        flags: PollFlags,
        /// The `POLL*` bits that are waited for.
        events: u32,
    },
    /// The number of `block` on the device below.
    Bmap {
        /// In units of `blocksize`.
        block: u64,
        /// In bytes.
        blocksize: u32,
    },
    /// 7.34.
    Syncfs,
    /// The filesystem is unmounted.
    Destroy,
    /// Data the server asked for with a retrieve notification. No answer.
    NotifyReply {
        /// From the beginning of the file, in bytes.
        offset: u64,
        /// What the caller gave.
        data: &'a [u8],
    },
    /// Map part of a file into the DAX window (virtiofs only).
    SetupMapping(abi::SetupMappingIn),
    /// The mappings, as an array of `fuse_removemapping_one`.
    RemoveMapping {
        /// How many mappings there are.
        count: u32,
        /// One after the other.
        mappings: &'a [u8],
    },
    /// Never reaches a handler: it belongs to `/dev/cuse`.
    CuseInit(abi::CuseInitIn),
    /// Never reaches a handler: it is answered with `ENOSYS`.
    Unknown(u32),
}
