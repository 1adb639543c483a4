//! System calls that rustix does not wrap: the only room with `unsafe` code.
//!
//! Every function here is safe to call; every `unsafe` block says why.

pub mod creds;
pub mod detached_mount;
pub mod fanotify;
pub mod fd;
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

/// The errno of the system call that has just failed on this thread.
fn last_errno() -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(rustix::io::Errno::IO)
}
