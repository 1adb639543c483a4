//! System calls for FUSE beyond read(2) and write(2): the ioctls of its device and its io_uring commands.

pub mod dev;
mod entry_memory;
pub mod uring;
