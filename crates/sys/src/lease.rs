//! Leases: they show whether another process wants to open a file (fcntl(2), `F_SETLEASE`).

use crate::errno::last_errno;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

/// Missing from `libc` (include/uapi/asm-generic/fcntl.h).
const F_SETSIG: libc::c_int = 10;

fn fcntl(file: BorrowedFd<'_>, command: libc::c_int, argument: libc::c_int) -> Result<libc::c_int, Errno> {
    // SAFETY: the commands used here take and return plain integers. The descriptor is open while it is borrowed.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
        -1 => Err(last_errno()),
        value => Ok(value),
    }
}

/// Takes a read lease on a regular file that is open for reading only. While the lease holds, no process can open the
/// file for writing or truncate it. An attempt breaks the lease and waits until it is released, for 45 seconds at most
/// (`/proc/sys/fs/lease-break-time`).
///
/// # Errors
/// `EAGAIN` while the file is open for writing by any descriptor or mapping; `EACCES` unless the thread's fsuid owns the
/// file or the thread has `CAP_LEASE`; `EINVAL` when the filesystem has no leases.
pub fn take(file: BorrowedFd<'_>) -> Result<(), Errno> {
    // The kernel also reports a break with a signal. The default, SIGIO, would kill the process; SIGURG is ignored.
    fcntl(file, F_SETSIG, libc::SIGURG)?;
    fcntl(file, libc::F_SETLEASE, libc::F_RDLCK).map(|_| ())
}

/// Takes a write lease on a regular file that is open once, for reading: no other descriptor or mapping has it. An attempt
/// to open the file breaks the lease, and waits as for [`take`]. `O_PATH` descriptors do not count.
///
/// # Errors
/// Those of [`take`]; `EAGAIN` while another descriptor has the file open.
pub fn take_alone(file: BorrowedFd<'_>) -> Result<(), Errno> {
    fcntl(file, F_SETSIG, libc::SIGURG)?;
    fcntl(file, libc::F_SETLEASE, libc::F_WRLCK).map(|_| ())
}

/// As [`holds`], for the lease of [`take_alone`].
pub fn holds_alone(file: BorrowedFd<'_>) -> bool {
    fcntl(file, libc::F_GETLEASE, 0) == Ok(libc::F_WRLCK)
}

/// Returns whether the lease still holds. It ends as soon as another process waits to write.
pub fn holds(file: BorrowedFd<'_>) -> bool {
    fcntl(file, libc::F_GETLEASE, 0) == Ok(libc::F_RDLCK)
}

/// Releases the lease, so that waiting processes continue. Closing the file has the same effect.
pub fn release(file: BorrowedFd<'_>) {
    let _ = fcntl(file, libc::F_SETLEASE, libc::F_UNLCK);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;

    #[test]
    fn a_lease_on_a_file_alone_is_refused_by_readers_and_broken_by_later_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "x").unwrap();
        let (own, reader) = (File::open(&path).unwrap(), File::open(&path).unwrap());
        assert_eq!(take_alone(own.as_fd()), Err(Errno::AGAIN));
        drop(reader);
        let _pinned = rustix::fs::open(&path, OFlags::PATH, Mode::empty()).unwrap();
        take_alone(own.as_fd()).unwrap();
        assert!(holds_alone(own.as_fd()) && !holds(own.as_fd()));
        let nonblocking = OFlags::RDONLY | OFlags::NONBLOCK;
        assert_eq!(rustix::fs::open(&path, nonblocking, Mode::empty()).unwrap_err(), Errno::AGAIN);
        assert!(!holds_alone(own.as_fd()));
    }

    #[test]
    fn a_lease_is_refused_by_writers_and_broken_by_later_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        let another = File::open(&path).unwrap();
        assert_eq!(take(reader.as_fd()), Err(Errno::AGAIN));
        drop(writer);
        take(reader.as_fd()).unwrap();
        assert!(holds(reader.as_fd()) && !holds(another.as_fd()));
        let nonblocking = OFlags::WRONLY | OFlags::NONBLOCK;
        assert_eq!(rustix::fs::open(&path, nonblocking, Mode::empty()).unwrap_err(), Errno::AGAIN);
        assert!(!holds(reader.as_fd()), "the lease is broken, and no signal has killed the process");
        release(reader.as_fd());
        OpenOptions::new().write(true).open(&path).unwrap();
    }
}
