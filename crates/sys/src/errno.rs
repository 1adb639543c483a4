//! Numbers of errors: those that the C library keeps for a thread, and those that come from elsewhere.

use rustix::io::Errno;

/// The highest number that the kernel uses for an error (`MAX_ERRNO` in linux/err.h).
const MAX: i32 = 4095;

/// Returns the errno with this number; EIO for a number that is none. [`Errno::from_raw_os_error`] panics then, so a number
/// that another process or a filesystem has given goes through here.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "checked")]
pub fn from_raw(raw: i32) -> Errno {
    if (1..=MAX).contains(&raw) { Errno::from_raw_os_error(raw) } else { Errno::IO }
}

/// Returns the errno of the system call that has just failed on this thread.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_no_errors_are_eio() {
        for (raw, errno) in [(2, Errno::NOENT), (MAX, Errno::from_raw_os_error(MAX))] {
            assert_eq!(from_raw(raw), errno);
        }
        for raw in [0, -2, MAX + 1, i32::MIN, i32::MAX] {
            assert_eq!(from_raw(raw), Errno::IO, "{raw}");
        }
    }
}
