//! Changing and linking the file behind a descriptor, for which `O_PATH` is enough: by the descriptor itself where the
//! kernel can, otherwise through `/proc`, which takes some 3 us longer.

use super::beneath::ProcPath;
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, Mode, Timestamps};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once utimensat(2) turns out not to know `AT_EMPTY_PATH` (Linux before 5.8).
static NO_EMPTY_PATH: AtomicBool = AtomicBool::new(false);

/// Makes every later change go through `/proc`, as on kernels that cannot change a file by an `O_PATH` descriptor. For
/// tests.
pub fn pretend_older_kernel(pretend: bool) {
    NO_EMPTY_PATH.store(pretend, Ordering::Relaxed);
    canopy_sys::fd::pretend_no_fchmodat2(pretend);
    canopy_sys::xattr::pretend_missing(pretend);
}

/// Changes the permission bits.
pub fn chmod(file: BorrowedFd<'_>, mode: Mode) -> Result<(), Errno> {
    match canopy_sys::fd::chmod(file, mode) {
        Err(Errno::NOSYS) => rustix::fs::chmod(ProcPath::of(file).as_bytes(), mode),
        other => other,
    }
}

/// Changes the times of access and modification.
pub fn set_times(file: BorrowedFd<'_>, times: &Timestamps) -> Result<(), Errno> {
    if !NO_EMPTY_PATH.load(Ordering::Relaxed) {
        match rustix::fs::utimensat(file, c"", times, AtFlags::EMPTY_PATH) {
            Err(Errno::INVAL) => {}
            other => return other,
        }
    }
    let path = ProcPath::of(file);
    let changed = rustix::fs::utimensat(rustix::fs::CWD, path.as_bytes(), times, AtFlags::empty());
    // The times were not what the kernel found invalid.
    if changed.is_ok() {
        NO_EMPTY_PATH.store(true, Ordering::Relaxed);
    }
    changed
}

/// Gives the file another name. A symlink is linked itself.
pub fn link(file: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    if !NO_EMPTY_PATH.load(Ordering::Relaxed) {
        match rustix::fs::linkat(file, c"", dir, name, AtFlags::EMPTY_PATH) {
            // Also without CAP_DAC_READ_SEARCH, as in a user namespace.
            Err(Errno::NOENT) => {}
            other => return other,
        }
    }
    // Following this link leads directly to the file, even if that is itself a symlink.
    let path = ProcPath::of(file);
    rustix::fs::linkat(rustix::fs::CWD, path.as_bytes(), dir, name, AtFlags::SYMLINK_FOLLOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::stat;
    use rustix::fd::AsFd;
    use rustix::fs::{OFlags, Timespec};

    #[test]
    fn files_and_symlinks_change_by_descriptor_and_through_proc() {
        let tmp = tempfile::tempdir().unwrap();
        let (file, link) = (tmp.path().join("file"), tmp.path().join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        let pin = |path| rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).unwrap();
        let (file, link) = (pin(&file), pin(&link));
        let dir = rustix::fs::open(tmp.path(), OFlags::PATH, Mode::empty()).unwrap();
        for (older, mode, second) in [(false, 0o6751, 77), (true, 0o640, 78)] {
            pretend_older_kernel(older);
            chmod(file.as_fd(), Mode::from_raw_mode(mode)).unwrap();
            let at = Timespec { tv_sec: second, tv_nsec: 5 };
            for fd in [&file, &link] {
                set_times(fd.as_fd(), &Timestamps { last_access: at, last_modification: at }).unwrap();
                assert_eq!(stat::of(fd.as_fd()).unwrap().mtime, stat::Time { sec: second, nsec: 5 });
            }
            assert_eq!(stat::of(file.as_fd()).unwrap().mode & 0o7777, mode);
            for (fd, name) in [(&file, b"file again"), (&link, b"link again")] {
                super::link(fd.as_fd(), dir.as_fd(), name).unwrap();
                let (linked, given) = (stat::at(&dir, name).unwrap(), stat::of(fd.as_fd()).unwrap());
                assert_eq!((linked.key(), linked.nlink), (given.key(), 2));
                assert_eq!(super::link(fd.as_fd(), dir.as_fd(), name), Err(Errno::EXIST));
                rustix::fs::unlinkat(&dir, &name[..], AtFlags::empty()).unwrap();
            }
        }
        pretend_older_kernel(false);
    }
}
