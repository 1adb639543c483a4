//! What the kernel and the pool exchange to name nodes, files and callers.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// A node, to which the kernel holds references. Ids are not reused in the life of a pool, so a stale NFS handle
/// never names another file.
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

/// A known name and its node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    pub parent: NodeId,
    pub name: Box<[u8]>,
    pub node: NodeId,
    pub is_dir: bool,
}

/// An open file or directory, from its open to its release. Ids are not reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HandleId(pub u64);

/// Stands for an id that a request does not carry.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// The client that sent a request; new files belong to it. An id of -1 is unknown; see `ops::caller`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// Process id in the daemon's pid namespace; 0 when unknown.
    pub pid: u32,
    /// Permission bits to clear where the parent directory has no default ACL.
    pub umask: u32,
}

/// Identity of a branch, unique in the life of the process and never reused. A branch keeps it while it stays in the
/// list and its path leads to the same directory.
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
