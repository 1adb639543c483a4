//! Requests, decoded in place.
//!
//! A [`Request`] borrows names and data from the buffer it was read into. What the kernel sends is checked as if it
//! came from a stranger: a request that does not hold together is [`Malformed`], never a panic.

mod attr;
mod decode;
mod dir;
mod file;
mod owned;
mod xattr;

use std::ffi::{CStr, OsStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

pub use attr::{SetTime, Setattr, Timestamp};
pub use dir::{ForgetItem, Forgets};
pub use file::{CopyRange, Create, FileIo, Lock, Tmpfile, WriteIo};
pub use owned::Owned;

use crate::abi;
use crate::flags::{FsyncFlags, InitFlags, IoctlFlags, OpenInFlags, PollFlags, ReleaseFlags, SetxattrFlags};
use crate::opcode::Opcode;

/// What the kernel calls a file or directory: chosen by the server in LOOKUP, alive until FORGET has given back every
/// lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of the mount (`FUSE_ROOT_ID`); never looked up, never forgotten.
    pub const ROOT: NodeId = NodeId(1);
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who asks, about what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Names the request until it is answered; bit 63 marks one that is sent again.
    pub unique: u64,
    /// As it stands on the wire; see [`Opcode`] for those known here.
    pub opcode: u32,
    pub node: NodeId,
    /// Of the caller, in the user namespace of the mount; [`abi::INVALID_ID`] when not mapped.
    pub uid: u32,
    pub gid: u32,
    /// 0 when the kernel asks on its own behalf.
    pub pid: u32,
    /// Length of the extension blocks, in units of 8 bytes.
    pub total_extlen: u16,
}

/// One component of a path: not empty, without `/`. It may be `.` or `..`.
///
/// It is longer than the branch allows more often than one would think; `ENAMETOOLONG` is the handler's to give.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name<'a>(&'a CStr);

impl<'a> Name<'a> {
    /// Checks a name.
    ///
    /// # Errors
    /// When it is empty or contains `/`.
    pub fn new(name: &'a CStr) -> Result<Name<'a>, Malformed> {
        let bytes = name.to_bytes();
        if bytes.is_empty() || bytes.contains(&b'/') { Err(Malformed::Name) } else { Ok(Name(name)) }
    }

    /// The bytes of the name, without the final NUL.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0.to_bytes()
    }

    /// The name the way system calls take it, without a copy.
    #[must_use]
    pub fn as_cstr(self) -> &'a CStr {
        self.0
    }

    #[must_use]
    pub fn as_os_str(self) -> &'a OsStr {
        OsStr::from_bytes(self.0.to_bytes())
    }

    /// Whether it is `.` or `..`.
    #[must_use]
    pub fn is_dot(self) -> bool {
        matches!(self.as_bytes(), b"." | b"..")
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What comes after a request that creates something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions<'a> {
    /// The caller's supplementary groups that matter: the parent's group when the caller is in it and the parent is
    /// sgid (`FUSE_CREATE_SUPP_GROUP`).
    pub groups: Option<Groups<'a>>,
}

/// Group ids of an extension block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups<'a>(&'a [u8]);

impl Iterator for Groups<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let (gid, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*gid))
    }
}

/// The parts of the agreement that change how requests look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Requests that came with a later minor version are unknown.
    pub minor: u32,
    /// SETXATTR has its longer header.
    pub setxattr_ext: bool,
}

impl Dialect {
    /// What follows from an agreed version and flags.
    #[must_use]
    pub fn new(minor: u32, flags: InitFlags) -> Dialect {
        Dialect { minor, setxattr_ext: flags.contains(InitFlags::SETXATTR_EXT) }
    }
}

/// Why a request was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Shorter than a header; there is nobody to answer.
    #[error("shorter than a request header")]
    NoHeader,
    #[error("the length in the header is not the length of the request")]
    Length,
    #[error("too short for its operation")]
    Short,
    #[error("data of another length than announced")]
    DataLength,
    #[error("a name that is empty, not terminated or has a slash")]
    Name,
    #[error("extension blocks that do not fit")]
    Extension,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub header: Header,
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
        name: Name<'a>,
    },
    /// The kernel gives back `nlookup` lookups of the node. No answer.
    Forget {
        nlookup: u64,
    },
    /// Several FORGETs at once. No answer.
    BatchForget(Forgets<'a>),
    Getattr {
        handle: Option<u64>,
    },
    Setattr(Setattr),
    /// 7.39. `sx_flags` are `AT_STATX_*`, `mask` is made of `STATX_*`.
    Statx {
        handle: Option<u64>,
        sx_flags: u32,
        mask: u32,
    },
    Readlink,
    Symlink {
        name: Name<'a>,
        target: &'a CStr,
    },
    /// `mode` with its file type; `rdev` in the form of [`abi::decode_dev`].
    Mknod {
        name: Name<'a>,
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    Mkdir {
        name: Name<'a>,
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: Name<'a>,
    },
    Rmdir {
        name: Name<'a>,
    },
    /// RENAME and RENAME2; `flags` are `RENAME_*`, 0 for the former.
    Rename {
        name: Name<'a>,
        newdir: NodeId,
        newname: Name<'a>,
        flags: u32,
    },
    /// A new `name` in this directory for the node `old`.
    Link {
        old: NodeId,
        name: Name<'a>,
    },
    /// `flags` are `O_*` without those of creation.
    Open {
        flags: u32,
        open_flags: OpenInFlags,
    },
    Read(FileIo),
    Write(WriteIo<'a>),
    Release {
        handle: u64,
        flags: u32,
        release_flags: ReleaseFlags,
        lock_owner: u64,
    },
    Flush {
        handle: u64,
        lock_owner: u64,
    },
    Fsync {
        handle: u64,
        datasync: bool,
    },
    Opendir {
        flags: u32,
        open_flags: OpenInFlags,
    },
    /// `offset` is the one pushed with the last entry the reader has seen, or 0.
    Readdir(FileIo),
    Readdirplus(FileIo),
    Releasedir {
        handle: u64,
        flags: u32,
        release_flags: ReleaseFlags,
        lock_owner: u64,
    },
    Fsyncdir {
        handle: u64,
        datasync: bool,
    },
    /// The answer is made with [`Reply::created`](crate::reply::Reply::created).
    Create(Create<'a>),
    /// As CREATE; the name is what the kernel made up and means nothing.
    Tmpfile(Tmpfile),
    Statfs,
    /// `flags` are `XATTR_CREATE` and `XATTR_REPLACE`.
    Setxattr {
        name: &'a CStr,
        value: &'a [u8],
        flags: u32,
        setxattr_flags: SetxattrFlags,
    },
    /// `size` 0 asks for the length of the value.
    Getxattr {
        name: &'a CStr,
        size: u32,
    },
    /// `size` 0 asks for the length of the list.
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a CStr,
    },
    /// `mask` is made of `R_OK`, `W_OK` and `X_OK`.
    Access {
        mask: u32,
    },
    Getlk(Lock),
    Setlk(Lock),
    /// As SETLK, but waits.
    Setlkw(Lock),
    /// The caller of the request `unique` has been interrupted. No answer is needed.
    Interrupt {
        unique: u64,
    },
    Ioctl {
        handle: u64,
        flags: IoctlFlags,
        cmd: u32,
        arg: u64,
        in_size: u32,
        out_size: u32,
        data: &'a [u8],
    },
    /// `mode` is made of `FALLOC_FL_*`.
    Fallocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    Lseek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRange(CopyRange),
    Poll {
        handle: u64,
        kernel_handle: u64,
        flags: PollFlags,
        events: u32,
    },
    Bmap {
        block: u64,
        blocksize: u32,
    },
    /// 7.34.
    Syncfs,
    Destroy,
    /// Data the server asked for with a retrieve notification. No answer.
    NotifyReply {
        offset: u64,
        data: &'a [u8],
    },
    SetupMapping(abi::SetupMappingIn),
    /// The mappings, as an array of `fuse_removemapping_one`.
    RemoveMapping {
        count: u32,
        mappings: &'a [u8],
    },
    /// Never reaches a handler: it belongs to `/dev/cuse`.
    CuseInit(abi::CuseInitIn),
    /// Never reaches a handler: it is answered with `ENOSYS`.
    Unknown(u32),
}

impl Header {
    /// The opcode, if it is known here.
    #[must_use]
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_u32(self.opcode)
    }

    /// Whether the kernel waits for an answer. An unknown opcode is taken to want one.
    #[must_use]
    pub fn wants_answer(&self) -> bool {
        self.opcode().is_none_or(Opcode::wants_answer)
    }
}

/// FSYNC's and FSYNCDIR's only flag.
fn datasync(flags: u32) -> bool {
    FsyncFlags::from_bits_retain(flags).contains(FsyncFlags::FDATASYNC)
}
