//! getxattrat(2), setxattrat(2), listxattrat(2) and removexattrat(2) (Linux 6.13). Neither rustix nor the C library wraps
//! them.
//!
//! The directory may be open with `O_PATH`. An empty name does not stand for the descriptor itself: as fgetxattr(2), the
//! kernel then accepts no `O_PATH` descriptor (fs/xattr.c).

use crate::errno::last_errno;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The numbers on all architectures except MIPS, where these numbers are no system calls (`ENOSYS`).
pub(crate) const SYS_SETXATTRAT: libc::c_long = 463;
pub(crate) const SYS_GETXATTRAT: libc::c_long = 464;
pub(crate) const SYS_LISTXATTRAT: libc::c_long = 465;
pub(crate) const SYS_REMOVEXATTRAT: libc::c_long = 466;

/// include/uapi/linux/xattr.h
#[repr(C, align(8))]
struct XattrArgs {
    value: u64,
    size: u32,
    flags: u32,
}

/// Whether the kernel lacks the calls.
static MISSING: AtomicBool = AtomicBool::new(false);

/// Whether a symlink as the name itself is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Links {
    Follow,
    Keep,
}

impl Links {
    fn flags(self) -> libc::c_int {
        match self {
            Links::Follow => 0,
            Links::Keep => libc::AT_SYMLINK_NOFOLLOW,
        }
    }
}

/// Reads an extended attribute of a name in a directory, for which an `O_PATH` descriptor is enough. Symlinks are not
/// followed. Returns the attribute's size if the buffer is empty.
///
/// # Errors
/// Those of getxattr(2); `ENOSYS` before Linux 6.13.
pub fn getxattrat(dir: impl AsFd, name: &CStr, attribute: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
    let size = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
    let args = XattrArgs { value: buffer.as_mut_ptr() as u64, size, flags: 0 };
    unless_missing(|| {
        // SAFETY: both strings end with a NUL, `args` has the given size, and it points at no more than `size` bytes
        // of a buffer that is borrowed exclusively.
        unsafe {
            libc::syscall(
                SYS_GETXATTRAT,
                dir.as_fd().as_raw_fd(),
                name.as_ptr(),
                Links::Keep.flags(),
                attribute.as_ptr(),
                &raw const args,
                size_of::<XattrArgs>(),
            )
        }
    })
}

/// Sets an extended attribute of a name in a directory. `flags` are those of setxattr(2).
///
/// # Errors
/// Those of setxattr(2); `ENOSYS` before Linux 6.13.
pub fn setxattrat(
    dir: impl AsFd,
    name: &CStr,
    links: Links,
    attribute: &CStr,
    value: &[u8],
    flags: u32,
) -> Result<(), Errno> {
    let size = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
    let args = XattrArgs { value: value.as_ptr() as u64, size, flags };
    unless_missing(|| {
        // SAFETY: both strings end with a NUL, `args` has the given size, and it points at `size` bytes, which the
        // kernel only reads.
        unsafe {
            libc::syscall(
                SYS_SETXATTRAT,
                dir.as_fd().as_raw_fd(),
                name.as_ptr(),
                links.flags(),
                attribute.as_ptr(),
                &raw const args,
                size_of::<XattrArgs>(),
            )
        }
    })
    .map(drop)
}

/// Lists the extended attributes of a name in a directory, each with its terminating NUL. Symlinks are not followed.
/// Returns the size of the list if the buffer is empty.
///
/// # Errors
/// Those of listxattr(2); `ENOSYS` before Linux 6.13.
pub fn listxattrat(dir: impl AsFd, name: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
    unless_missing(|| {
        // SAFETY: the string ends with a NUL, and the buffer is borrowed exclusively.
        unsafe {
            libc::syscall(
                SYS_LISTXATTRAT,
                dir.as_fd().as_raw_fd(),
                name.as_ptr(),
                Links::Keep.flags(),
                buffer.as_mut_ptr(),
                buffer.len(),
            )
        }
    })
}

/// Removes an extended attribute of a name in a directory.
///
/// # Errors
/// Those of removexattr(2); `ENOSYS` before Linux 6.13.
pub fn removexattrat(dir: impl AsFd, name: &CStr, links: Links, attribute: &CStr) -> Result<(), Errno> {
    unless_missing(|| {
        // SAFETY: both strings end with a NUL.
        unsafe {
            libc::syscall(
                SYS_REMOVEXATTRAT,
                dir.as_fd().as_raw_fd(),
                name.as_ptr(),
                links.flags(),
                attribute.as_ptr(),
            )
        }
    })
    .map(drop)
}

/// Makes one of the calls, unless the kernel turned out to have none of them.
fn unless_missing(call: impl FnOnce() -> libc::c_long) -> Result<usize, Errno> {
    if MISSING.load(Ordering::Relaxed) {
        return Err(Errno::NOSYS);
    }
    usize::try_from(call()).map_err(|_| {
        let errno = last_errno();
        // No filesystem returns this: FUSE turns it into EOPNOTSUPP.
        if errno == Errno::NOSYS {
            MISSING.store(true, Ordering::Relaxed);
        }
        errno
    })
}

/// Makes the calls fail with `ENOSYS`, as before Linux 6.13. For tests.
pub fn pretend_missing(pretend: bool) {
    MISSING.store(pretend, Ordering::Relaxed);
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

    #[test]
    fn attributes_are_set_listed_and_removed_relative_to_a_directory() {
        let tmp = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = tmp.path().join("file");
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("file", tmp.path().join("link")).unwrap();
        let dir = rustix::fs::open(tmp.path(), OFlags::PATH, Mode::empty()).unwrap();
        let set = |name, links, flags| setxattrat(&dir, name, links, c"user.note", b"value", flags);
        match set(c"file", Links::Keep, 0) {
            Err(Errno::NOSYS) => return,
            done => assert_eq!(done, Ok(())),
        }
        let create = XattrFlags::CREATE.bits();
        assert_eq!(set(c"file", Links::Keep, create), Err(Errno::EXIST));
        assert_eq!(set(c"link", Links::Follow, create), Err(Errno::EXIST));
        // Symlinks have no attributes in this namespace.
        assert_eq!(set(c"link", Links::Keep, 0), Err(Errno::PERM));
        let mut buffer = [0; 64];
        let size = listxattrat(&dir, c"file", &mut []).unwrap();
        let length = listxattrat(&dir, c"file", &mut buffer).unwrap();
        assert!(length == size && buffer[..length].split(|&byte| byte == 0).any(|name| name == b"user.note"));
        assert_eq!(listxattrat(&dir, c"file", &mut buffer[..1]), Err(Errno::RANGE));
        assert_eq!(removexattrat(&dir, c"link", Links::Follow, c"user.note"), Ok(()));
        assert_eq!(removexattrat(&dir, c"file", Links::Keep, c"user.note"), Err(Errno::NODATA));
        assert_eq!(removexattrat(&dir, c"none", Links::Keep, c"user.note"), Err(Errno::NOENT));
    }
}
