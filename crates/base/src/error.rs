//! The errors of the pool's operations, and the errno of each.

use crate::ids::{BranchId, NodeId};
use rustix::io::Errno;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed: in words (`Display`) and as an errno ([`Error::errno`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// A system call on a branch failed.
    #[error("{0}")]
    Branch(Errno),
    /// The operation would have to wait for something else than a disk. It has changed nothing, holds nothing, and is to be
    /// tried again.
    #[error("waits for {0}")]
    Wait(Cause),
    /// No branch could be chosen.
    #[error("every branch was refused: {0}")]
    Refused(#[from] Refusal),
    /// The kernel named a node that has been forgotten, or whose file is missing from its branch.
    #[error("the node is no longer known")]
    Stale,
    /// The kernel named a handle that is not open.
    #[error("the handle is not open")]
    BadHandle,
    /// No branch holds the name.
    #[error("no branch holds the name")]
    Absent,
    /// Some branch already holds the name.
    #[error("a branch already holds the name")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// Anything but a directory was needed.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries on some branch.
    #[error("a branch holds entries in the directory")]
    NotEmpty,
    /// A copy is on a branch that the pool may not change; if only the others were removed, the name would stay.
    #[error("a copy is on a read-only branch")]
    ReadOnlyCopy,
    /// A path-preserving policy forbids creating the target directory on the branch of the source.
    #[error("the target directory does not exist on the branch of the source")]
    CrossBranch,
    /// The caller lacks a privilege that the branch's filesystem would demand.
    #[error("not permitted")]
    NotPermitted,
    /// An argument is out of range, or a flag is unknown.
    #[error("invalid argument")]
    Invalid,
    /// The pool has no such operation.
    #[error("not supported")]
    Unsupported,
    /// The ioctl is not known to be safe to forward.
    #[error("this ioctl is not forwarded")]
    UnknownIoctl,
    /// Extended attributes are disabled, or the attribute does not exist.
    #[error("no such attribute")]
    NoAttribute,
    /// The value does not fit into the caller's buffer.
    #[error("the buffer is too small")]
    BufferTooSmall,
}

impl Error {
    /// Returns the errno that the client sees.
    pub fn errno(self) -> Errno {
        match self {
            Error::Branch(errno) => errno,
            // For those who do not try again.
            Error::Wait(Cause::Lease { .. } | Cause::Move(_)) => Errno::AGAIN,
            Error::Wait(Cause::Walk(_)) => Errno::TIMEDOUT,
            Error::Refused(Refusal::NotFound) => Errno::NOENT,
            Error::Refused(Refusal::NoSpace) => Errno::NOSPC,
            Error::Refused(Refusal::ReadOnly) => Errno::ROFS,
            Error::Stale => Errno::STALE,
            Error::BadHandle => Errno::BADF,
            Error::Absent => Errno::NOENT,
            Error::Exists => Errno::EXIST,
            Error::NotDirectory => Errno::NOTDIR,
            Error::IsDirectory => Errno::ISDIR,
            Error::NotEmpty => Errno::NOTEMPTY,
            Error::ReadOnlyCopy => Errno::ROFS,
            Error::CrossBranch => Errno::XDEV,
            Error::NotPermitted => Errno::PERM,
            Error::Invalid => Errno::INVAL,
            Error::Unsupported => Errno::NOSYS,
            Error::UnknownIoctl => Errno::NOTTY,
            Error::NoAttribute => Errno::NODATA,
            Error::BufferTooSmall => Errno::RANGE,
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Error::Branch(errno)
    }
}

/// What a call on a branch fails with.
pub trait Failure {
    fn errno(&self) -> Errno;
}

impl Failure for Errno {
    fn errno(&self) -> Errno {
        *self
    }
}

impl Failure for Error {
    fn errno(&self) -> Errno {
        Error::errno(*self)
    }
}

/// What an operation would have to wait for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, thiserror::Error)]
pub enum Cause {
    /// A process holds a lease on a file that it has opened by its path on a branch. `write`: the operation wants to write.
    #[error("a lease on inode {ino} of device {dev}")]
    Lease { dev: u64, ino: u64, write: bool },
    /// A file is being moved or copied.
    #[error("the move of {0}")]
    Move(NodeId),
    /// A branch is searched for an inode number.
    #[error("the search of branch {branch}", branch = .0.0)]
    Walk(BranchId),
}

/// Why no branch could be chosen. The variants are in rising rank: of several reasons, the highest is reported.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, thiserror::Error)]
pub enum Refusal {
    /// ENOENT: no branch holds the path, or there is no branch.
    #[error("no branch holds the path")]
    NotFound,
    /// ENOSPC: a branch was below its minfreespace, or had no free inode.
    #[error("every usable branch is below its minfreespace or out of inodes")]
    NoSpace,
    /// EROFS: a branch was excluded by its mode, is unhealthy, or is mounted read-only.
    #[error("no branch may be written to")]
    ReadOnly,
}

impl Refusal {
    /// Returns the one with the higher rank.
    #[must_use]
    pub fn worse(self, other: Refusal) -> Refusal {
        self.max(other)
    }
}

/// Returns true for the errors of a branch without room: no blocks, no inodes, or none for this owner.
pub fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT)
}

/// Returns true for errors that are the branch's own, and not caused by what the client asked. A full branch is
/// healthy.
pub fn is_illness(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::IO
            | Errno::ROFS
            | Errno::NODEV
            | Errno::NXIO
            | Errno::NOMEDIUM
            | Errno::REMOTEIO
            | Errno::SHUTDOWN
            | Errno::NOTCONN
            | Errno::HOSTDOWN
            // EFSCORRUPTED and EFSBADCRC of ext4, XFS and others.
            | Errno::UCLEAN
            | Errno::BADMSG
    )
}
