//! ioctl(2) commands of filesystems that rustix does not wrap.

pub mod ata_power;
pub mod btrfs;
pub mod dedupe;
pub mod extents;
pub mod fitrim;
pub mod inode_flags;
pub mod reflink;
pub mod relocate;
