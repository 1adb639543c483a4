//! Originals whose copies are read: kept in the kernel's memory, so that opening them asks no disk.
//!
//! Each is an `O_PATH` descriptor. That keeps the file's inode and the names that lead to it where the kernel finds them, but
//! counts as no open: it hinders neither leases nor a filesystem that is to become read-only, as long as the file has a name.

use canopy_branch::fs::{beneath, stat};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Resource;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// So many originals are kept in memory at most: some 2 KiB each, of the kernel's.
const MOST: u64 = 16 << 10;
/// The share of the process's descriptors for them: one in so many.
const SHARE: u64 = 16;

/// How many are kept, and whether any may have lost its last name.
pub(super) struct Originals {
    count: Arc<AtomicUsize>,
    most: usize,
    doubted: AtomicBool,
}

/// One that is kept.
pub(super) struct Original {
    fd: OwnedFd,
    count: Arc<AtomicUsize>,
}

impl Drop for Original {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Originals {
    fn default() -> Originals {
        let descriptors = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = (descriptors / SHARE).min(MOST) as usize;
        Originals { count: Arc::default(), most, doubted: AtomicBool::new(false) }
    }
}

impl Originals {
    pub(super) fn keep(&self, file: BorrowedFd<'_>) -> Result<Original, Errno> {
        let fd = beneath::reopen(file, OFlags::PATH)?;
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(Original { fd, count: Arc::clone(&self.count) })
    }

    pub(super) fn are_too_many(&self) -> bool {
        self.count.load(Ordering::Relaxed) > self.most
    }

    /// Notes that any may have lost its last name.
    pub(super) fn doubt(&self) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.doubted.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn are_doubted(&self) -> bool {
        self.doubted.load(Ordering::Relaxed)
    }

    pub(super) fn looked_over(&self) {
        self.doubted.store(false, Ordering::Relaxed);
    }
}

impl Original {
    /// Returns whether the file has a name. Asks no disk: the kernel has it in memory.
    pub(super) fn has_name(&self) -> bool {
        stat::of(self.fd.as_fd()).is_ok_and(|attr| attr.nlink > 0)
    }
}
