//! System calls that rustix does not wrap: the only room with `unsafe` code.
//!
//! Every function here is safe to call; every `unsafe` block says why.

pub mod close;
pub mod creds;
pub mod descriptors;
pub mod detached_mount;
pub mod fanotify;
pub mod file_handle;
pub mod fitrim;
pub mod fuse_dev;
pub mod fuse_uring;
pub mod glob;
pub mod heap;
pub mod inode_flags;
pub mod ioprio;
pub mod landlock;
pub mod lease;
pub mod mountinfo;
pub mod page_buf;
pub mod reflink;
pub mod sched;
pub mod xattr;
