//! Newtypes for the integers that the kernel and the pool exchange.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// A node: what the kernel holds a reference to. Never reused within the life of a pool, so that a
/// stale NFS handle can never name another file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of the pool (`FUSE_ROOT_ID` in include/uapi/linux/fuse.h).
    pub const ROOT: NodeId = NodeId(1);
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// An open file or directory, from its open to its release. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HandleId(pub u64);

/// Who asks: the identity that new files belong to. An id of -1 was not told; see `caller`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// Process id in the daemon's namespace; 0 when unknown.
    pub pid: u32,
    /// Permission bits to leave out where the parent directory has no default ACL.
    pub umask: u32,
}

/// Identity of a branch, unique for the life of the process: a branch keeps it while it stays in the list and
/// its path leads to the same directory, and it is never given to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct BranchId(pub u32);

impl BranchId {
    pub(crate) fn next() -> BranchId {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        BranchId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for BranchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "branch {}", self.0)
    }
}
