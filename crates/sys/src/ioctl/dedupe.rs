//! `FIDEDUPERANGE` (ioctl_fideduperange(2)): two files share the blocks of a range that is equal in both.

use crate::errno::last_errno;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `_IOWR(0x94, 54, struct file_dedupe_range)`.
const FIDEDUPERANGE: u64 = 0xc018_9436;
/// The status of ranges that differ.
const FILE_DEDUPE_RANGE_DIFFERS: i32 = 1;

/// `struct file_dedupe_range` with one `struct file_dedupe_range_info`.
#[repr(C)]
struct DedupeRange {
    src_offset: u64,
    src_length: u64,
    dest_count: u16,
    reserved1: u16,
    reserved2: u32,
    dest_fd: i64,
    dest_offset: u64,
    bytes_deduped: u64,
    status: i32,
    reserved: u32,
}

const _: () = assert!(size_of::<DedupeRange>() == 56);

/// Makes `target` share the blocks that `source` has at the same place, if the content is equal. The kernel compares, while
/// nobody can write either. Returns how many bytes are shared now, which may be fewer; `None` if the range differs. With a
/// length of 0, it shows whether the filesystem has such a call.
///
/// # Errors
/// `EOPNOTSUPP`, `EINVAL` and `ENOTTY` when the filesystem does not support it, `EPERM` for the file of another user, `EXDEV`
/// between two filesystems, `ETXTBSY` for a file that the kernel swaps to.
pub fn share_equal(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    at: u64,
    len: u64,
) -> Result<Option<u64>, Errno> {
    let mut range = DedupeRange {
        src_offset: at,
        src_length: len,
        dest_count: 1,
        reserved1: 0,
        reserved2: 0,
        dest_fd: target.as_raw_fd().into(),
        dest_offset: at,
        bytes_deduped: 0,
        status: 0,
        reserved: 0,
    };
    // SAFETY: FIDEDUPERANGE reads and writes one file_dedupe_range and as many file_dedupe_range_info as `dest_count` says
    // through the pointer: one, which follows it (56 bytes, asserted above).
    let result = unsafe { libc::ioctl(source.as_raw_fd(), FIDEDUPERANGE as _, &raw mut range) };
    if result < 0 {
        return Err(last_errno());
    }
    match range.status {
        0 => Ok(Some(range.bytes_deduped)),
        FILE_DEDUPE_RANGE_DIFFERS => Ok(None),
        status => Err(crate::errno::from_raw(status.wrapping_neg())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn equal_ranges_are_shared_where_the_filesystem_can() {
        let [one, two] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        match share_equal(one.as_fd(), two.as_fd(), 0, 0) {
            Ok(shared) => assert_eq!(shared, Some(0)),
            Err(errno) => assert!(matches!(errno, Errno::OPNOTSUPP | Errno::INVAL | Errno::NOTTY), "{errno}"),
        }
    }
}
