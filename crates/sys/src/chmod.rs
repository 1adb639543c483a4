//! chmod of a file behind an `O_PATH` descriptor: fchmodat2(2), which rustix does not wrap.

use crate::errno::last_errno;
use rustix::fd::{AsFd, AsRawFd};
use rustix::fs::Mode;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number on all architectures except MIPS and Alpha, where this number is no system call (`ENOSYS`).
const SYS_FCHMODAT2: libc::c_long = 452;

/// Whether the kernel lacks the call.
static MISSING: AtomicBool = AtomicBool::new(false);

/// Makes [`chmod`] fail with `ENOSYS`, as before Linux 6.6. For tests.
pub fn pretend_missing(pretend: bool) {
    MISSING.store(pretend, Ordering::Relaxed);
}

/// Changes the permission bits of the file behind a descriptor, for which `O_PATH` is enough.
///
/// # Errors
/// Those of fchmod(2); `ENOSYS` before Linux 6.6. `EOPNOTSUPP` for a symlink.
pub fn chmod(file: impl AsFd, mode: Mode) -> Result<(), Errno> {
    if MISSING.load(Ordering::Relaxed) {
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
        MISSING.store(true, Ordering::Relaxed);
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
