//! Read leases: hearing of whoever wants to open a file for writing (fcntl(2), `F_SETLEASE`).

use crate::errno::last_errno;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

/// Missing in `libc` (include/uapi/asm-generic/fcntl.h).
const F_SETSIG: libc::c_int = 10;

fn fcntl(file: BorrowedFd<'_>, command: libc::c_int, argument: libc::c_int) -> Result<libc::c_int, Errno> {
    // SAFETY: the commands below take and return plain integers; the descriptor is open for as long as it is borrowed.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
        -1 => Err(last_errno()),
        value => Ok(value),
    }
}

/// Takes a read lease on a regular file that is open for reading alone. Nobody then opens it for writing or truncates it
/// before the lease is given up; who tries breaks it, and waits (`/proc/sys/fs/lease-break-time`, 45 s at most).
///
/// Errors: `EAGAIN` while anybody has it open for writing, by whatever descriptor or mapping; `EACCES` unless it is the
/// thread's own file, by its fsuid, or the thread has CAP_LEASE; `EINVAL` where the filesystem has no leases.
pub fn take(file: BorrowedFd<'_>) -> Result<(), Errno> {
    // A break is told by a signal too, and SIGIO, the usual one, ends a process. This one is ignored unless asked for.
    fcntl(file, F_SETSIG, libc::SIGURG)?;
    fcntl(file, libc::F_SETLEASE, libc::F_RDLCK).map(|_| ())
}

/// Does the lease hold? Not any more once somebody waits to write.
pub fn holds(file: BorrowedFd<'_>) -> bool {
    fcntl(file, libc::F_GETLEASE, 0) == Ok(libc::F_RDLCK)
}

/// Lets everybody in who waits. Closing the file does so too.
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
    fn a_lease_tells_of_writers_before_and_after() {
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
        assert!(!holds(reader.as_fd()), "and no signal has ended this process");
        release(reader.as_fd());
        OpenOptions::new().write(true).open(&path).unwrap();
    }
}
