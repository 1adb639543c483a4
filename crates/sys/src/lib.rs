//! System calls that rustix does not wrap, how names are shown, and directories of our own.
//!
//! Apart from the preload library, this is the only crate with `unsafe` code. All its functions are safe to call, and
//! each `unsafe` block says why it is sound.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod creds;
pub mod detached_mount;
pub mod errno;
pub mod fanotify;
pub mod fd;
pub mod file_handle;
pub mod fuse;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod glob;
pub mod ioctl;
pub mod lease;
pub mod memory;
pub mod mountinfo;
pub mod own_dir;
pub mod page_buf;
pub mod process;
pub mod shown;
pub mod thread;
pub mod truncate;
pub mod xattr;
