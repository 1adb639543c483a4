//! Errors of a session.

use rustix::io::Errno;

/// The reason why a session did not start or has failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The kernel's version is too old (`EPROTO`).
    #[error("the kernel speaks FUSE {major}.{minor}, at least 7.31 is needed")]
    Version {
        /// The kernel's major version.
        major: u32,
        /// The kernel's minor version.
        minor: u32,
    },
    /// The filesystem was unmounted or the connection aborted before INIT was answered.
    #[error("unmounted before the session began")]
    Disconnected,
    /// The kernel refused the reply to INIT.
    #[error("the kernel refused the reply to INIT: {0}")]
    Refused(Errno),
    /// The device cannot be read.
    #[error("reading from the FUSE device failed: {0}")]
    Read(Errno),
    /// A thread could not be started.
    #[error("cannot start the session's threads: {0}")]
    Start(#[source] std::io::Error),
    /// A thread ended with a panic.
    #[error("a session thread died")]
    Thread,
}

impl SessionError {
    /// Returns the errno to report.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            SessionError::Version { .. } => Errno::PROTO.raw_os_error(),
            SessionError::Disconnected => Errno::NOTCONN.raw_os_error(),
            SessionError::Refused(errno) | SessionError::Read(errno) => errno.raw_os_error(),
            SessionError::Start(error) => error.raw_os_error().unwrap_or(Errno::NOMEM.raw_os_error()),
            SessionError::Thread => Errno::IO.raw_os_error(),
        }
    }
}
