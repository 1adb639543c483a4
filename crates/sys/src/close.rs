//! close(2) that tells what it has to say.

use rustix::io::Errno;
use std::os::fd::{IntoRawFd, OwnedFd};

/// Closes a descriptor and gives the error that the filesystem kept for this moment (`EIO`, `ENOSPC`,
/// `EDQUOT` on network filesystems). The descriptor is closed in either case.
pub fn close(fd: OwnedFd) -> Result<(), Errno> {
    // SAFETY: the descriptor was owned, and nobody can use it after `into_raw_fd`.
    match unsafe { libc::close(fd.into_raw_fd()) } {
        0 => Ok(()),
        _ => match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
            // Linux has closed it all the same.
            Errno::INTR => Ok(()),
            errno => Err(errno),
        },
    }
}
