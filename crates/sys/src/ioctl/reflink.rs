//! `FICLONERANGE` (ioctl_ficlonerange(2)): two files share blocks. rustix has only `FICLONE`, for whole files.

use crate::errno::last_errno;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `_IOW(0x94, 13, struct file_clone_range)`.
const FICLONERANGE: u64 = 0x4020_940d;

/// `struct file_clone_range`.
#[repr(C)]
struct CloneRange {
    src_fd: i64,
    src_offset: u64,
    src_length: u64,
    dest_offset: u64,
}

const _: () = assert!(size_of::<CloneRange>() == 32);

/// Makes a range of `target` share the blocks of a range of `source`, completely or not at all.
///
/// # Errors
/// `EOPNOTSUPP` and `ENOTTY` when the filesystem does not support it, `EXDEV` between two filesystems, `EINVAL` for
/// ranges that overlap, or that neither consist of whole blocks nor end at the end of the source.
pub fn clone_range(
    (source, from): (BorrowedFd<'_>, u64),
    (target, to): (BorrowedFd<'_>, u64),
    len: u64,
) -> Result<(), Errno> {
    let range =
        CloneRange { src_fd: source.as_raw_fd().into(), src_offset: from, src_length: len, dest_offset: to };
    // SAFETY: FICLONERANGE reads one file_clone_range (32 bytes, asserted above) through the pointer.
    let result = unsafe { libc::ioctl(target.as_raw_fd(), FICLONERANGE as _, &raw const range) };
    if result < 0 {
        return Err(last_errno());
    }
    Ok(())
}
