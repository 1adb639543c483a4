//! Files that the kernel reads and writes by itself (passthrough, ABI 7.40, Linux 6.9).

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use canopy_sys::fuse::dev;

/// Registers backing files with the connection of one session. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Backing {
    device: Arc<OwnedFd>,
}

/// Why a file cannot back another.
#[derive(Debug, thiserror::Error)]
pub enum BackingError {
    /// No `CAP_SYS_ADMIN`, or passthrough was not agreed upon. It will not get better.
    #[error("passthrough is not permitted")]
    Permission,
    /// The file's own filesystem is stacked too deep for the agreed `max_stack_depth`.
    #[error("the branch's filesystem is stacked too deep for passthrough")]
    TooDeep,
    /// The kernel is older than 6.9. It will not get better.
    #[error("the kernel has no passthrough")]
    Unsupported,
    /// A file that cannot serve: not regular, or of a filesystem without read and write iterators.
    #[error("this file cannot be used for passthrough: {0}")]
    File(io::Error),
}

impl BackingError {
    /// Whether no other file of this session will be accepted either.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, BackingError::Permission | BackingError::Unsupported)
    }
}

impl Backing {
    pub(crate) fn new(device: Arc<OwnedFd>) -> Backing {
        Backing { device }
    }

    /// Registers `file`, which stays open inside the kernel whatever becomes of the descriptor.
    ///
    /// It serves every open of the node it is used for, so it must be open for reading and writing both.
    ///
    /// # Errors
    /// See [`BackingError`].
    pub fn open(&self, file: BorrowedFd<'_>) -> Result<BackingId, BackingError> {
        match dev::backing_open(self.device.as_fd(), file) {
            Ok(id) => Ok(BackingId { device: Arc::clone(&self.device), id }),
            Err(error) => Err(match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                Some(rustix::io::Errno::PERM) => BackingError::Permission,
                Some(rustix::io::Errno::LOOP) => BackingError::TooDeep,
                Some(rustix::io::Errno::NOTTY) => BackingError::Unsupported,
                _ => BackingError::File(error),
            }),
        }
    }
}

/// A registered backing file. Dropping it takes the registration back; files open in passthrough keep working, but no
/// further open can name the id.
pub struct BackingId {
    device: Arc<OwnedFd>,
    id: u32,
}

impl BackingId {
    /// The number for [`Reply::opened`](crate::reply::Reply::opened) and its kin; never 0.
    #[must_use]
    pub fn raw(&self) -> u32 {
        self.id
    }
}

impl Drop for BackingId {
    fn drop(&mut self) {
        if let Err(error) = dev::backing_close(self.device.as_fd(), self.id) {
            // Expected once the connection has gone.
            tracing::debug!(%error, id = self.id, "taking back a backing file failed");
        }
    }
}

impl fmt::Debug for BackingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BackingId({})", self.id)
    }
}
