//! Passthrough (ABI 7.40, Linux 6.9): backing files, which the kernel reads and writes without asking the server.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use canopy_sys::fuse::dev;

/// Registers backing files with a session's connection. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Backing {
    device: Arc<OwnedFd>,
}

/// The reason why a file cannot be a backing file.
#[derive(Debug, thiserror::Error)]
pub enum BackingError {
    /// The process has no `CAP_SYS_ADMIN`, or passthrough was not negotiated. All further files fail too.
    #[error("passthrough is not permitted")]
    Permission,
    /// The file's filesystem is itself stacked too deep for the negotiated `max_stack_depth`.
    #[error("the branch's filesystem is stacked too deep for passthrough")]
    TooDeep,
    /// The kernel is older than 6.9. All further files fail too.
    #[error("the kernel has no passthrough")]
    Unsupported,
    /// The file is not regular, or its filesystem has no read and write iterators.
    #[error("this file cannot be used for passthrough: {0}")]
    File(io::Error),
}

impl BackingError {
    /// Returns whether all further files of this session will fail too.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, BackingError::Permission | BackingError::Unsupported)
    }
}

impl Backing {
    pub(crate) fn new(device: Arc<OwnedFd>) -> Backing {
        Backing { device }
    }

    /// Registers `file`. The kernel keeps it open even when the descriptor is closed.
    ///
    /// It is used for every open of a node, so it must be open for both reading and writing.
    ///
    /// # Errors
    /// See [`BackingError`].
    pub fn open(&self, file: BorrowedFd<'_>) -> Result<BackingId, BackingError> {
        match dev::backing_open(self.device.as_fd(), file) {
            Ok(id) => Ok(BackingId { device: Arc::clone(&self.device), id }),
            Err(error) => Err(match error.raw_os_error().map(canopy_sys::errno::from_raw) {
                Some(rustix::io::Errno::PERM) => BackingError::Permission,
                Some(rustix::io::Errno::LOOP) => BackingError::TooDeep,
                Some(rustix::io::Errno::NOTTY) => BackingError::Unsupported,
                _ => BackingError::File(error),
            }),
        }
    }

    /// Takes over the registration of another process on the same connection.
    #[must_use]
    pub fn adopt(&self, id: u32) -> BackingId {
        BackingId { device: Arc::clone(&self.device), id }
    }

    /// Ends a registration of another process on the same connection, if there is one with this id.
    pub fn end(&self, id: u32) {
        let _ = dev::backing_close(self.device.as_fd(), id);
    }
}

/// A registered backing file. Dropping it ends the registration: no further open can use the id, but files that are open
/// with passthrough keep working.
pub struct BackingId {
    device: Arc<OwnedFd>,
    id: u32,
}

impl BackingId {
    /// Returns the id for [`Reply::opened`](crate::reply::Reply::opened) and
    /// [`Reply::created`](crate::reply::Reply::created). It is never 0.
    #[must_use]
    pub fn raw(&self) -> u32 {
        self.id
    }
}

impl Drop for BackingId {
    fn drop(&mut self) {
        if let Err(error) = dev::backing_close(self.device.as_fd(), self.id) {
            // Expected once the connection has ended.
            tracing::debug!(%error, id = self.id, "cannot unregister a backing file");
        }
    }
}

impl fmt::Debug for BackingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BackingId({})", self.id)
    }
}
