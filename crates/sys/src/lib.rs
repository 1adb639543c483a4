//! System calls that rustix does not wrap: the only room with `unsafe` code.
//!
//! Every function here is safe to call; every `unsafe` block says why.

pub mod creds;
pub mod detached_mount;
mod errno;
pub mod fanotify;
pub mod fd;
pub mod file_handle;
pub mod fuse;
pub mod glob;
pub mod heap;
pub mod ioctl;
pub mod ioprio;
pub mod lease;
pub mod mountinfo;
pub mod page_buf;
pub mod sched;
pub mod xattr;
