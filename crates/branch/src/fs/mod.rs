//! System calls on the filesystem of one branch. Nothing here knows of branches as a set.

pub mod acl;
pub mod beneath;
pub mod block_device;
pub mod disk;
pub mod filesystem_id;
pub mod generation;
pub mod magic;
pub mod packed;
pub mod pinned;
pub mod reserved;
pub mod stat;
pub mod walk;
pub mod xattr;
