//! What the kernel and the pool exchange to name nodes and files.

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

/// Identity of a branch, unique in the life of the process and never reused. A branch keeps it while it stays in the
/// list and its path leads to the same directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct BranchId(pub u32);

impl BranchId {
    pub fn next() -> BranchId {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        BranchId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for BranchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "branch {}", self.0)
    }
}
