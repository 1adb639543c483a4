//! ioctl(2) commands of filesystems that rustix does not have.

pub mod fitrim;
pub mod inode_flags;
pub mod reflink;
