//! The `ioctl`s of `/dev/fuse` (include/uapi/linux/fuse.h, "Device ioctls"), which rustix does not have.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

/// `FUSE_DEV_IOC_MAGIC`.
const MAGIC: u32 = 229;

/// Builds an ioctl number (include/uapi/asm-generic/ioctl.h).
const fn ioc(direction: u32, number: u32, size: usize) -> u64 {
    ((direction << 30) | ((size as u32) << 16) | (MAGIC << 8) | number) as u64
}

const WRITE: u32 = 1;
const READ: u32 = 2;

const CLONE: u64 = ioc(READ, 0, size_of::<u32>());
const BACKING_OPEN: u64 = ioc(WRITE, 1, size_of::<BackingMap>());
const BACKING_CLOSE: u64 = ioc(WRITE, 2, size_of::<u32>());

/// `struct fuse_backing_map`: the file to register, flags (none are defined up to ABI 7.45) and reserved space.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

const _: () = assert!(size_of::<BackingMap>() == 16);

/// Opens `/dev/fuse` for reading and writing, close-on-exec.
///
/// # Errors
/// `ENOENT` or `ENODEV` when the kernel has no FUSE, `EACCES` when the process may not open the device.
pub fn open() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens another descriptor of the connection that `session` belongs to (`FUSE_DEV_IOC_CLONE`).
///
/// Each clone has its own list of requests in progress, so threads with a clone each do not contend for its lock.
/// A request must be answered on the descriptor it was read from.
///
/// # Errors
/// `EINVAL` when `session` is not mounted yet or is not a FUSE device; the errors of [`open`].
pub fn clone(session: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let fresh = open()?;
    let source: u32 = session.as_raw_fd().cast_unsigned();
    // SAFETY: FUSE_DEV_IOC_CLONE reads one u32 through the pointer, which points at a live local.
    let result = unsafe { libc::ioctl(fresh.as_raw_fd(), CLONE as _, &raw const source) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(fresh) }
}

/// Registers `file` with the connection and returns its backing id (`FUSE_DEV_IOC_BACKING_OPEN`), which is never 0.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN` or without negotiated passthrough, `ELOOP` when the file's filesystem is itself
/// stacked too deep, `ENOTTY` before Linux 6.9, `EBADF`, `EOPNOTSUPP` for a file that is not regular.
pub fn backing_open(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<u32> {
    let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: FUSE_DEV_IOC_BACKING_OPEN reads one fuse_backing_map (16 bytes, asserted above) through the pointer.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), BACKING_OPEN as _, &raw const map) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result.cast_unsigned()) }
}

/// Releases a backing id (`FUSE_DEV_IOC_BACKING_CLOSE`). Files that are open with passthrough keep their backing file.
///
/// # Errors
/// `ENOENT` for an id that is not registered, `EPERM` as for [`backing_open`].
pub fn backing_close(device: BorrowedFd<'_>, id: u32) -> io::Result<()> {
    // SAFETY: FUSE_DEV_IOC_BACKING_CLOSE reads one u32 through the pointer, which points at a live local.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), BACKING_CLOSE as _, &raw const id) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctl_numbers_match_the_kernel() {
        // _IOR(229, 0, uint32_t), _IOW(229, 1, 16 bytes), _IOW(229, 2, uint32_t)
        assert_eq!(CLONE, 0x8004_e500);
        assert_eq!(BACKING_OPEN, 0x4010_e501);
        assert_eq!(BACKING_CLOSE, 0x4004_e502);
    }

    #[test]
    fn a_descriptor_of_another_device_is_refused() {
        let file = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert!(clone(file.as_fd()).is_err());
        assert!(backing_open(file.as_fd(), file.as_fd()).is_err());
        assert!(backing_close(file.as_fd(), 1).is_err());
    }
}
