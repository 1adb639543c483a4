//! System calls on the filesystem of one branch. Nothing here knows of branches as a set.

pub(crate) mod acl;
pub(crate) mod beneath;
pub mod block_device;
pub mod disk;
pub(crate) mod filesystem_id;
pub mod generation;
pub(crate) mod magic;
pub(crate) mod pinned;
pub(crate) mod reserved;
pub(crate) mod stat;
pub(crate) mod walk;
pub(crate) mod xattr;
