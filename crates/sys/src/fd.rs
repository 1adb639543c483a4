//! Operations on file descriptors: close(2) with its error, close_range(2), and fchmodat2(2).

use crate::errno::last_errno;
use rustix::fd::{AsFd, AsRawFd};
use rustix::fs::Mode;
use rustix::io::Errno;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Returns whether this process has a descriptor with this number.
#[must_use]
pub fn is_open(number: RawFd) -> bool {
    // SAFETY: asks for a flag of a descriptor that may not exist.
    number >= 0 && unsafe { libc::fcntl(number, libc::F_GETFD) } != -1
}

/// Takes over a descriptor that this process has from another, whose table of descriptors it shares or that started it;
/// `None` if there is none with this number. The caller knows that nothing else in this process owns it.
#[must_use]
pub fn take_over(number: RawFd) -> Option<OwnedFd> {
    if !is_open(number) {
        return None;
    }
    // SAFETY: the descriptor is open. That it has no other owner is the caller's word; were it wrong, a descriptor
    // would be closed twice, which breaks files and no memory.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// A descriptor of this process: its number, and the file that it leads to. A number alone says little, as it is used again
/// once its descriptor was closed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KnownFd {
    pub number: RawFd,
    device: u64,
    inode: u64,
}

impl KnownFd {
    /// Returns the descriptor that has this number now; `None` if none has.
    ///
    /// No filesystem is asked: the file may be in the very pool that this process is about to serve, or on a branch that does
    /// not answer.
    #[must_use]
    pub fn now(number: RawFd) -> Option<KnownFd> {
        // SAFETY: all bytes zero are a valid `statx`.
        let mut stat: libc::statx = unsafe { std::mem::zeroed() };
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        // SAFETY: reads the empty path, writes into `stat` only, and fails for a number without a descriptor.
        let result = unsafe { libc::statx(number, c"".as_ptr(), flags, libc::STATX_INO, &raw mut stat) };
        let device = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
        (result == 0).then_some(KnownFd { number, device, inode: stat.stx_ino })
    }
}

/// Returns the numbers of all open descriptors of this process.
///
/// # Errors
/// `ENOENT` where /proc is not mounted.
pub fn numbers() -> std::io::Result<Vec<RawFd>> {
    let listed = std::fs::read_dir("/proc/self/fd")?;
    let mut numbers: Vec<RawFd> =
        listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // One of them was the descriptor of this very listing.
    numbers.retain(|&number| is_open(number));
    numbers.sort_unstable();
    Ok(numbers)
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

/// Sets whether a descriptor with this number is closed when this process executes another program.
///
/// # Errors
/// `EBADF` if there is none.
pub fn set_cloexec(number: RawFd, closes: bool) -> Result<(), Errno> {
    let flags = if closes { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: sets a flag of a descriptor that may not exist.
    match unsafe { libc::fcntl(number, libc::F_SETFD, flags) } {
        -1 => Err(last_errno()),
        _ => Ok(()),
    }
}

/// The number on all architectures except MIPS and Alpha, where this number is no system call (`ENOSYS`).
pub(crate) const SYS_FCHMODAT2: libc::c_long = 452;

/// Set once the kernel turns out not to have fchmodat2(2).
static NO_FCHMODAT2: AtomicBool = AtomicBool::new(false);

/// Makes [`chmod`] fail with `ENOSYS`, as before Linux 6.6. For tests.
pub fn pretend_no_fchmodat2(pretend: bool) {
    NO_FCHMODAT2.store(pretend, Ordering::Relaxed);
}

/// Changes the permission bits of the file behind a descriptor, for which `O_PATH` is enough.
///
/// # Errors
/// Those of fchmod(2); `ENOSYS` before Linux 6.6. `EOPNOTSUPP` for a symlink.
pub fn chmod(file: impl AsFd, mode: Mode) -> Result<(), Errno> {
    if NO_FCHMODAT2.load(Ordering::Relaxed) {
        return Err(Errno::NOSYS);
    }
    let (file, flags) = (file.as_fd().as_raw_fd(), libc::AT_EMPTY_PATH);
    // SAFETY: the empty string ends with a NUL.
    let result =
        unsafe { libc::syscall(SYS_FCHMODAT2, file, c"".as_ptr(), libc::c_uint::from(mode.bits()), flags) };
    if result == 0 {
        return Ok(());
    }
    let errno = last_errno();
    if errno == Errno::NOSYS {
        NO_FCHMODAT2.store(true, Ordering::Relaxed);
    }
    Err(errno)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::OFlags;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_that_is_only_pinned_changes_its_mode() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("file");
        std::fs::write(&path, "").unwrap();
        let pinned = rustix::fs::open(&path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).unwrap();
        match chmod(&pinned, Mode::from_raw_mode(0o4751)) {
            Err(Errno::NOSYS) => return,
            done => assert_eq!(done, Ok(())),
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o4751);
    }
}
