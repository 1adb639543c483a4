//! Leases: making sure that no process writes a file while it is copied.

use crate::fs::{beneath, stat};
use canopy_sys::{creds, lease};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::time::Duration;

/// How often a lease is tried: a file that was closed a moment ago may still count as open.
pub const TRIES: u32 = 10;

const BETWEEN_TRIES: Duration = Duration::from_millis(2);

/// A file that no process writes, as long as [`LeasedFile::check`] succeeds. Copies are made of these only.
pub struct LeasedFile {
    pub file: OwnedFd,
    pub leased: bool,
}

impl LeasedFile {
    /// Takes a lease on a file that is open for reading only.
    ///
    /// Errors: `EBUSY` while any process has it open for writing, `EOPNOTSUPP` if the file cannot be leased.
    pub fn hold(file: OwnedFd) -> Result<LeasedFile, Errno> {
        take_lease(&file, TRIES).map(|()| LeasedFile { file, leased: true })
    }

    /// As `hold`, for a copy whose original stays: where files cannot be leased, it assumes that nobody writes.
    pub fn hold_if_possible(file: OwnedFd) -> Result<LeasedFile, Errno> {
        match take_lease(&file, TRIES) {
            Err(Errno::OPNOTSUPP) => Ok(LeasedFile { file, leased: false }),
            other => other.map(|()| LeasedFile { file, leased: true }),
        }
    }

    /// As `hold`, without waiting for a file that was closed a moment ago.
    pub fn hold_now(file: OwnedFd) -> Result<LeasedFile, Errno> {
        take_lease(&file, 1).map(|()| LeasedFile { file, leased: true })
    }

    /// Fails with `EBUSY` once another process wants to write the file. That process waits until this is dropped.
    pub fn check(&self) -> Result<(), Errno> {
        if !self.leased || lease::holds(self.file.as_fd()) { Ok(()) } else { Err(Errno::BUSY) }
    }
}

fn take_lease(file: &OwnedFd, mut tries: u32) -> Result<(), Errno> {
    let owner = stat::of(file.as_fd())?;
    // The kernel grants leases to a file's owner, and to CAP_LEASE, which the daemon does not have.
    let _as_owner = creds::assume(owner.uid, owner.gid, 0).map_err(|_| Errno::OPNOTSUPP)?;
    loop {
        tries -= 1;
        match lease::take(file.as_fd()) {
            Err(Errno::AGAIN) if tries > 0 => std::thread::sleep(BETWEEN_TRIES),
            Err(Errno::AGAIN) => return Err(Errno::BUSY),
            other => return other.map_err(|_| Errno::OPNOTSUPP),
        }
    }
}

impl AsFd for LeasedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for LeasedFile {
    fn drop(&mut self) {
        lease::release(self.file.as_fd());
    }
}

/// Returns true if some process has the file open for writing or has a writable mapping, or if the kernel does not
/// say.
pub fn is_written(fd: impl AsFd) -> bool {
    readable(fd).and_then(LeasedFile::hold).is_err()
}

/// As [`is_written`], without waiting for a file that was closed a moment ago.
pub fn is_written_now(fd: impl AsFd) -> bool {
    readable(fd).and_then(LeasedFile::hold_now).is_err()
}

/// Reopens a file for reading, without changes of its access time where the daemon may.
pub fn readable(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    match beneath::reopen(&fd, flags | OFlags::NOATIME) {
        Err(Errno::PERM) => beneath::reopen(&fd, flags),
        other => other,
    }
}

/// Returns the error for a file that could not be opened to be moved. Nobody waits for the end of a lease there: its holder uses
/// the file, and a mover has other files.
pub fn leased_by_another(errno: Errno) -> Errno {
    if errno == Errno::AGAIN { Errno::NOLCK } else { errno }
}

/// Reopens a file with flags of open(2) for a handle that was opened with them, whatever the file's mode is now.
pub fn reopen_as_owner(file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let refused = match beneath::reopen(file, flags) {
        Err(Errno::ACCESS) => Errno::ACCESS,
        other => return other,
    };
    // A daemon without privileges, which owns the file.
    let mode = Mode::from_raw_mode(stat::of(file)?.mode & 0o7777);
    rustix::fs::fchmod(file, mode | Mode::RUSR | Mode::WUSR).map_err(|_| refused)?;
    let opened = beneath::reopen(file, flags);
    rustix::fs::fchmod(file, mode)?;
    opened
}
