//! When a read changes the time of the last access: where the pool says it, rather than the branch's own mount.
//!
//! The kernel goes by the mount that a file was opened on, also for a file that is read past the daemon. So what is read is
//! opened on a private copy of the branch's mount, with the flags of the pool. Everything else stays on the mount itself,
//! which is in use as ever. The copy shows nothing that is mounted below the branch; what it does not show as the branch
//! does is read as the branch's mount says.

use crate::fs::beneath::{self, ProcPath};
use crate::fs::stat;
use arc_swap::ArcSwapOption;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// How a branch is read.
#[derive(Debug)]
pub enum AtimePolicy {
    /// On this copy of its mount.
    PrivateMount(OwnedFd),
    /// Such that no time changes, as far as the caller may have that (`O_NOATIME`) and reads by the daemon.
    NoAtime,
}

/// How a branch is read, if not as its own mount says.
#[derive(Debug, Default)]
pub struct Times(pub(crate) ArcSwapOption<AtimePolicy>);

impl Times {
    /// Holds for what is opened from now on.
    pub(crate) fn set(&self, reads: Option<AtimePolicy>) {
        self.0.store(reads.map(Arc::new));
    }
}

/// The very same thing, opened on a copy of the branch's mount.
pub(crate) fn on_copy(
    branch: &Path,
    copy: BorrowedFd<'_>,
    fd: BorrowedFd<'_>,
    flags: OFlags,
) -> Option<OwnedFd> {
    let path = rustix::fs::readlink(ProcPath::of(fd).as_bytes(), Vec::new()).ok()?;
    let path = Path::new(OsStr::from_bytes(path.as_bytes())).strip_prefix(branch).ok()?.to_owned();
    let flags = (flags - (OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC)) | OFlags::NOFOLLOW;
    let opened = beneath::open(copy, path.as_os_str().as_bytes(), flags).ok()?;
    // Another may have its name by now, or something be mounted there.
    let key = |fd: BorrowedFd<'_>| stat::of(fd).ok().map(|attr| attr.key());
    (key(opened.as_fd())? == key(fd)?).then_some(opened)
}
