//! Descriptors that must not reach a program that is executed.

use rustix::io::Errno;

/// Marks every descriptor from `first` on as close-on-exec (close_range(2), Linux 5.11). For a process that
/// executes itself anew and must not carry on what its own caller had left open.
///
/// Errors: `ENOSYS` and `EINVAL` on older kernels.
pub fn close_on_exec_from(first: u32) -> Result<(), Errno> {
    // SAFETY: sets a flag on descriptors and closes none, so nobody's ownership is touched.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
