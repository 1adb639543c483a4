//! What can be done to file descriptors: close(2) with its error, and close_range(2).

use crate::errno::last_errno;
use rustix::io::Errno;
use std::os::fd::{IntoRawFd, OwnedFd};

/// Closes a descriptor and gives the error that the filesystem kept for this moment (`EIO`, `ENOSPC`,
/// `EDQUOT` on network filesystems). The descriptor is closed in either case.
pub fn close(fd: OwnedFd) -> Result<(), Errno> {
    // SAFETY: the descriptor was owned, and nobody can use it after `into_raw_fd`.
    match unsafe { libc::close(fd.into_raw_fd()) } {
        0 => Ok(()),
        _ => match last_errno() {
            // Linux has closed it all the same.
            Errno::INTR => Ok(()),
            errno => Err(errno),
        },
    }
}

/// Marks every descriptor from `first` on as close-on-exec (close_range(2), Linux 5.11). For a process that
/// executes itself anew and must not carry on what its own caller had left open.
///
/// Errors: `ENOSYS` and `EINVAL` on older kernels.
pub fn set_cloexec_from(first: u32) -> Result<(), Errno> {
    // SAFETY: sets a flag on descriptors and closes none, so nobody's ownership is touched.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 {
        return Ok(());
    }
    Err(last_errno())
}
