//! Copies that files are read from, whole or while they are being made.

use super::figures::Counts;
use canopy_branch::cached::Version;
use canopy_branch::fs::stat;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A copy that is being made, from its beginning on.
#[derive(Default)]
pub(crate) struct Spool {
    file: OnceLock<OwnedFd>,
    /// So many bytes are those of the original.
    upto: AtomicU64,
}

impl Spool {
    /// Notes how far the copy is, which nobody else writes.
    pub(crate) fn grows(&self, copy: BorrowedFd<'_>) {
        if self.file.get().is_none()
            && let Ok(file) = rustix::io::fcntl_dupfd_cloexec(copy, 0)
        {
            let _ = self.file.set(file);
        }
        // Its size, since it is written from its beginning on.
        if let Ok(attr) = stat::of(copy) {
            self.upto.store(attr.size, Ordering::Release);
        }
    }

    /// Sends readers back to the original. Called before anybody can write that.
    pub(crate) fn give_up(&self) {
        self.upto.store(0, Ordering::Release);
    }

    pub(crate) fn upto(&self) -> u64 {
        self.upto.load(Ordering::Acquire)
    }
}

/// What a copy is read from.
#[derive(Clone)]
pub(crate) enum CopyData {
    Whole(Arc<OwnedFd>),
    Growing(Arc<Spool>),
}

/// A copy of an open file.
#[derive(Clone)]
pub(crate) struct OpenCopy {
    pub(crate) data: CopyData,
    /// The state of the original that it is a copy of.
    pub(crate) version: Version,
    pub(crate) counts: Arc<Counts>,
}

impl OpenCopy {
    /// Returns whether the original is still in that state.
    pub(crate) fn is_right(&self, original: &impl AsFd) -> bool {
        stat::of(original.as_fd()).is_ok_and(|attr| Version::of(&attr) == self.version)
    }

    /// Returns the file to read from at an offset, and the offset up to which it is the original.
    pub(crate) fn at(&self, offset: u64) -> Option<(BorrowedFd<'_>, u64)> {
        let (file, upto) = match &self.data {
            CopyData::Whole(file) => (file.as_fd(), u64::MAX),
            CopyData::Growing(spool) => (spool.file.get()?.as_fd(), spool.upto()),
        };
        (offset < upto).then_some((file, upto))
    }
}
