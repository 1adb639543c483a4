//! Errors of mounting.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// The reason why mounting failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point cannot be used.
    #[error("mountpoint {path}: {error}")]
    Mountpoint {
        /// The mount point, as in the [`MountSpec`](super::MountSpec).
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// /dev/fuse cannot be opened.
    #[error("cannot open /dev/fuse: {0}")]
    Device(io::Error),
    /// An option cannot be passed to the kernel.
    #[error("an option contains a NUL byte")]
    Option,
    /// mount(2) failed.
    #[error("mounting on {path}: {error}")]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The process may not mount, and there is no `fusermount3`.
    #[error("not permitted to mount, and no fusermount3 or fusermount was found")]
    NoHelper,
    /// fusermount3 failed.
    #[error("{program} failed: {message}")]
    Helper {
        /// The program that was run.
        program: String,
        /// What it printed, or why it could not be run.
        message: String,
    },
}

impl MountError {
    /// Returns whether a set-uid helper may succeed instead. On some systems only root can open `/dev/fuse`.
    pub(super) fn is_refusal(&self) -> bool {
        let (MountError::Device(error) | MountError::Mount { error, .. }) = self else { return false };
        error.kind() == io::ErrorKind::PermissionDenied
    }

    /// Returns the errno to report.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            MountError::Mountpoint { error, .. }
            | MountError::Device(error)
            | MountError::Mount { error, .. } => error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
            MountError::Option => Errno::INVAL.raw_os_error(),
            MountError::NoHelper | MountError::Helper { .. } => Errno::PERM.raw_os_error(),
        }
    }
}
