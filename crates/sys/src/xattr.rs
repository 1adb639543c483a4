//! getxattrat(2), for which neither rustix nor the C library has a function.

use crate::errno::last_errno;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The same on all architectures but MIPS, whose numbers are others altogether: there it is missing.
const SYS_GETXATTRAT: libc::c_long = 464;

/// include/uapi/linux/xattr.h
#[repr(C, align(8))]
struct XattrArgs {
    value: u64,
    size: u32,
    flags: u32,
}

/// The kernel has it not.
static MISSING: AtomicBool = AtomicBool::new(false);

/// Reads an attribute of what is under a name in a directory, for which an `O_PATH` descriptor will do. A symlink is not
/// followed.
///
/// Errors: those of getxattr(2); `ENOSYS` before Linux 6.13.
pub fn getxattrat(dir: impl AsFd, name: &CStr, attribute: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
    if MISSING.load(Ordering::Relaxed) {
        return Err(Errno::NOSYS);
    }
    let size = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
    let args = XattrArgs { value: buffer.as_mut_ptr() as u64, size, flags: 0 };
    // SAFETY: both texts end with a NUL, `args` is as large as is said, and it names `size` bytes at most of a buffer
    // that nobody else has meanwhile.
    let length = unsafe {
        libc::syscall(
            SYS_GETXATTRAT,
            dir.as_fd().as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            attribute.as_ptr(),
            &raw const args,
            size_of::<XattrArgs>(),
        )
    };
    usize::try_from(length).map_err(|_| {
        let errno = last_errno();
        // Never told by a filesystem: fuse takes it for EOPNOTSUPP.
        if errno == Errno::NOSYS {
            MISSING.store(true, Ordering::Relaxed);
        }
        errno
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, XattrFlags};

    #[test]
    fn an_attribute_is_read_by_directory_and_name() {
        let tmp = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = tmp.path().join("file");
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("file", tmp.path().join("link")).unwrap();
        rustix::fs::setxattr(&file, c"user.note", b"value", XattrFlags::empty()).unwrap();
        let dir = rustix::fs::open(tmp.path(), OFlags::PATH, Mode::empty()).unwrap();
        let mut buffer = [0; 8];
        let mut get = |name, attribute, size: usize| getxattrat(&dir, name, attribute, &mut buffer[..size]);
        match get(c"file", c"user.note", 8) {
            Err(Errno::NOSYS) => return,
            length => assert_eq!(length, Ok(5)),
        }
        assert_eq!(get(c"file", c"user.note", 0), Ok(5));
        assert_eq!(get(c"file", c"user.note", 4), Err(Errno::RANGE));
        assert_eq!(get(c"file", c"user.none", 8), Err(Errno::NODATA));
        assert_eq!(get(c"none", c"user.note", 8), Err(Errno::NOENT));
        assert_eq!(get(c"link", c"user.note", 8), Err(Errno::NODATA));
        assert_eq!(&buffer[..5], b"value");
    }
}
