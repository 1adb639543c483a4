pub mod buf;
pub mod close;
pub mod creds;
pub mod device;
pub mod glob;
pub mod inode_flags;
