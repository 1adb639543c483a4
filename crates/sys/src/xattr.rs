//! getxattrat(2). Neither rustix nor the C library wraps it.

use crate::errno::last_errno;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number on all architectures except MIPS, where this number is no system call (`ENOSYS`).
const SYS_GETXATTRAT: libc::c_long = 464;

/// include/uapi/linux/xattr.h
#[repr(C, align(8))]
struct XattrArgs {
    value: u64,
    size: u32,
    flags: u32,
}

/// Whether the kernel lacks the call.
static MISSING: AtomicBool = AtomicBool::new(false);

/// Reads an extended attribute of a name in a directory, for which an `O_PATH` descriptor is enough. Symlinks are not
/// followed.
///
/// # Errors
/// Those of getxattr(2); `ENOSYS` before Linux 6.13.
pub fn getxattrat(dir: impl AsFd, name: &CStr, attribute: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
    if MISSING.load(Ordering::Relaxed) {
        return Err(Errno::NOSYS);
    }
    let size = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
    let args = XattrArgs { value: buffer.as_mut_ptr() as u64, size, flags: 0 };
    // SAFETY: both strings end with a NUL, `args` has the given size, and it points at no more than `size` bytes of a
    // buffer that is borrowed exclusively.
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
        // No filesystem returns this: FUSE turns it into EOPNOTSUPP.
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
    fn an_attribute_is_read_relative_to_a_directory() {
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
