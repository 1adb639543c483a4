//! ioctl(2) commands of filesystems that rustix does not wrap.

pub mod fitrim;
pub mod inode_flags;
pub mod reflink;
pub mod relocate;
