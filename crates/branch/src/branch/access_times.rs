//! When a read updates a file's access time: as the pool's options say, rather than the branch's own mount.
//!
//! The kernel goes by the flags of the mount that a file was opened on, also for passthrough reads. Files are
//! therefore opened for reading on a private copy of the branch's mount that has the pool's flags. Everything else
//! uses the branch's mount itself, so that the mount stays busy. The copy does not show filesystems mounted below the
//! branch. A file that the copy does not show is read through the branch's own mount, with that mount's flags.

use crate::fs::beneath::{self, ProcPath};
use crate::fs::stat;
use arc_swap::ArcSwapOption;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// How files on a branch are opened for reading.
#[derive(Debug)]
pub enum AtimePolicy {
    /// On this private copy of the branch's mount.
    PrivateMount(OwnedFd),
    /// With `O_NOATIME`: no access time changes, as far as the daemon may set that flag, and only for reads by the
    /// daemon.
    NoAtime,
}

/// How files on a branch are opened for reading, if not with the flags of its own mount.
#[derive(Debug, Default)]
pub struct Times(pub(crate) ArcSwapOption<AtimePolicy>);

impl Times {
    /// Applies to files that are opened from now on.
    pub fn set(&self, reads: Option<AtimePolicy>) {
        self.0.store(reads.map(Arc::new));
    }
}

/// Opens the file behind `fd` once more, on a copy of the branch's mount.
pub(crate) fn on_copy(
    branch: &Path,
    copy: BorrowedFd<'_>,
    fd: BorrowedFd<'_>,
    flags: OFlags,
) -> Option<OwnedFd> {
    let path = rustix::fs::readlink(ProcPath::of(fd).as_bytes(), Vec::new()).ok()?;
    let path = Path::new(OsStr::from_bytes(path.as_bytes())).strip_prefix(branch).ok()?.to_owned();
    let flags = (flags - (OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC)) | OFlags::NOFOLLOW;
    // The name may lead to a FIFO by now, or to a file with a lease.
    let flags = if flags.contains(OFlags::PATH) { flags } else { flags | OFlags::NONBLOCK };
    let opened = beneath::open(copy, path.as_os_str().as_bytes(), flags).ok()?;
    // The name may lead to another file by now, or something may be mounted there.
    let key = |fd: BorrowedFd<'_>| stat::of(fd).ok().map(|attr| attr.key());
    (key(opened.as_fd())? == key(fd)?).then_some(opened)
}
