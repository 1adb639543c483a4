//! Why nothing was mounted.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// Why nothing was mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point cannot be used.
    #[error("mountpoint {path}: {error}")]
    Mountpoint {
        /// As it was given.
        path: PathBuf,
        /// What is wrong with it.
        error: io::Error,
    },
    /// /dev/fuse cannot be opened.
    #[error("cannot open /dev/fuse: {0}")]
    Device(io::Error),
    /// An option cannot be handed to the kernel.
    #[error("an option contains a NUL byte")]
    Option,
    /// mount(2) failed.
    #[error("mounting on {path}: {error}")]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// Neither permitted to mount nor a `fusermount3` to ask.
    #[error("not permitted to mount, and no fusermount3 or fusermount was found")]
    NoHelper,
    /// fusermount3 failed.
    #[error("{program} failed: {message}")]
    Helper {
        /// Which program was run.
        program: String,
        /// What it printed, or how it ended.
        message: String,
    },
}

impl MountError {
    /// Whether a set-uid helper may succeed where we did not. `/dev/fuse` is for root alone on some systems.
    pub(super) fn is_refusal(&self) -> bool {
        let (MountError::Device(error) | MountError::Mount { error, .. }) = self else { return false };
        error.kind() == io::ErrorKind::PermissionDenied
    }

    /// The errno to report.
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
