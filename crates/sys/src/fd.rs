//! Operations on file descriptors: close(2) with its error, and close_range(2).

use crate::errno::last_errno;
use rustix::io::Errno;
use std::os::fd::{IntoRawFd, OwnedFd};

/// Closes a descriptor. It is closed even when this returns an error.
///
/// # Errors
/// An error that the filesystem has deferred until close: `EIO`, `ENOSPC` or `EDQUOT` on network filesystems.
pub fn close(fd: OwnedFd) -> Result<(), Errno> {
    // SAFETY: the descriptor was owned, and nothing else can use it after `into_raw_fd`.
    match unsafe { libc::close(fd.into_raw_fd()) } {
        0 => Ok(()),
        _ => match last_errno() {
            // Linux has closed it nevertheless.
            Errno::INTR => Ok(()),
            errno => Err(errno),
        },
    }
}

/// Marks every descriptor from `first` on as close-on-exec (close_range(2), Linux 5.11), so that a process that
/// re-executes itself does not pass on descriptors it has inherited.
///
/// # Errors
/// `ENOSYS` and `EINVAL` on older kernels.
pub fn set_cloexec_from(first: u32) -> Result<(), Errno> {
    // SAFETY: this sets a flag on descriptors and closes none, so their owners are not affected.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 {
        return Ok(());
    }
    Err(last_errno())
}
