//! `BTRFS_IOC_FS_INFO`: which btrfs a subvolume belongs to. Each subvolume has a device number of its own.

use crate::errno::last_errno;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `_IOR(0x94, 31, struct btrfs_ioctl_fs_info_args)` in include/uapi/linux/btrfs.h.
const FS_INFO: u64 = 0x8400_941f;
/// The size of that structure in words.
const WORDS: usize = 128;
/// Where the filesystem's UUID is in it, in words: after `max_id` and `num_devices`.
const FSID: usize = 2;

/// Returns the UUID of the btrfs that holds an open file or directory.
///
/// # Errors
/// `ENOTTY` on another filesystem; `EBADF` for an `O_PATH` descriptor.
pub fn filesystem_id(fd: BorrowedFd<'_>) -> Result<u128, Errno> {
    let mut words = [0u64; WORDS];
    // SAFETY: the argument points to 1024 initialised bytes, the size of the structure, which the kernel reads and writes.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), FS_INFO as _, words.as_mut_ptr()) };
    match result {
        0 => Ok(u128::from(words[FSID]) << 64 | u128::from(words[FSID + 1])),
        _ => Err(last_errno()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn another_filesystem_has_none() {
        let proc = std::fs::File::open("/proc").unwrap();
        assert_eq!(filesystem_id(proc.as_fd()), Err(Errno::NOTTY));
    }
}
