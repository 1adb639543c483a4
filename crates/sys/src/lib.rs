//! System calls that rustix does not wrap: the only room with `unsafe` code.
//!
//! Every function here is safe to call; every `unsafe` block says why.

pub mod buf;
pub mod close;
pub mod creds;
pub mod descriptors;
pub mod device;
pub mod fanotify;
pub mod file_handle;
pub mod glob;
pub mod heap;
pub mod inode_flags;
pub mod ioprio;
pub mod landlock;
pub mod lease;
pub mod mountinfo;
pub mod mounts;
pub mod reflink;
pub mod sched;
pub mod trim;
pub mod uring;
pub mod xattr;
