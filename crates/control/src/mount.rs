//! The mount of a pool, as far as commands use it: the control interface of its files, and the ioctl that moves them.
//!
//! Paths are relative to the pool's root. A test has a double of the kernel instead of a mount.

use crate::LARGEST_VALUE;
use canopy_branch::fs::beneath;
use canopy_sys::ioctl::relocate::{Relocation, relocate};
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::fmt::Debug;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What commands ask of a mounted pool.
pub trait Mount: Debug + Send + Sync {
    /// getxattr(2).
    ///
    /// # Errors
    /// As for the system call.
    fn getxattr(&self, path: &Path, name: &str) -> Result<Vec<u8>, Errno>;

    /// setxattr(2).
    ///
    /// # Errors
    /// As for the system call.
    fn setxattr(&self, path: &Path, name: &str, value: &[u8]) -> Result<(), Errno>;

    /// listxattr(2): names that each end with NUL.
    ///
    /// # Errors
    /// As for the system call.
    fn listxattr(&self, path: &Path) -> Result<Vec<u8>, Errno>;

    /// Makes the pool look a path up.
    ///
    /// # Errors
    /// Those of lstat(2).
    fn look_up(&self, path: &Path) -> Result<(), Errno>;

    /// Moves, copies or drops an entry of a directory. No component of the directory's path may be a symlink.
    ///
    /// # Errors
    /// Those of [`relocate`]; `LOOP` for a symlink.
    fn relocate(&self, dir: &Path, relocation: &Relocation<'_>) -> Result<(), Errno>;
}

/// A pool at a mountpoint.
#[derive(Clone, Debug)]
pub(crate) struct Mounted(pub(crate) PathBuf);

impl Mount for Mounted {
    fn getxattr(&self, path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
        let mut value = vec![0; LARGEST_VALUE];
        let length = rustix::fs::getxattr(self.0.join(path), name, value.as_mut_slice())?;
        value.truncate(length);
        Ok(value)
    }

    fn setxattr(&self, path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
        rustix::fs::setxattr(self.0.join(path), name, value, XattrFlags::empty())
    }

    fn listxattr(&self, path: &Path) -> Result<Vec<u8>, Errno> {
        let mut names = vec![0; LARGEST_VALUE];
        let length = rustix::fs::listxattr(self.0.join(path), names.as_mut_slice())?;
        names.truncate(length);
        Ok(names)
    }

    fn look_up(&self, path: &Path) -> Result<(), Errno> {
        rustix::fs::lstat(self.0.join(path)).map(drop)
    }

    fn relocate(&self, dir: &Path, relocation: &Relocation<'_>) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.0, flags, Mode::empty())?;
        // Users may put a symlink in place of a directory meanwhile.
        let dir = beneath::open(root.as_fd(), dir.as_os_str().as_bytes(), flags)?;
        relocate(dir.as_fd(), relocation)
    }
}
