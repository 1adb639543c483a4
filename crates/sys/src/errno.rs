//! The errno that the C library keeps for a thread.

use rustix::io::Errno;

/// Returns the errno of the system call that has just failed on this thread.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
