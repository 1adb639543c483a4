//! `BTRFS_IOC_FS_INFO`: which btrfs a subvolume belongs to, and how often it has changed. Each subvolume has a device number of its
//! own, and `BTRFS_IOC_GET_SUBVOL_INFO` tells when it has changed last.

use crate::errno::last_errno;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `_IOR(0x94, 31, struct btrfs_ioctl_fs_info_args)` in include/uapi/linux/btrfs.h.
const FS_INFO: u64 = 0x8400_941f;
/// The size of that structure in words.
const WORDS: usize = 128;
/// Where the filesystem's UUID is in it, in words: after `max_id` and `num_devices`.
const FSID: usize = 2;
/// Where the flags are, which say what is asked for, and the generation.
const FLAGS: usize = 6;
const GENERATION: usize = 7;
/// `BTRFS_FS_INFO_FLAG_GENERATION`
const WITH_GENERATION: u64 = 1 << 1;

/// `_IOR(0x94, 60, struct btrfs_ioctl_get_subvol_info_args)` in include/uapi/linux/btrfs.h.
const SUBVOL_INFO: u64 = 0x81f8_943c;
/// The size of that structure in words.
const SUBVOL_WORDS: usize = 63;
/// Where the number of the subvolume is in it, its UUID, and the transaction and time of its last change, in words.
const TREE_ID: usize = 0;
const UUID: usize = 37;
const CHANGED: usize = 43;
const CHANGED_AT: usize = 47;

/// Returns the UUID of the btrfs that holds an open file or directory.
///
/// # Errors
/// `ENOTTY` on another filesystem; `EBADF` for an `O_PATH` descriptor.
pub fn filesystem_id(fd: BorrowedFd<'_>) -> Result<u128, Errno> {
    fs_info(fd, 0).map(|words| fsid(&words))
}

fn fsid(words: &[u64; WORDS]) -> u128 {
    u128::from(words[FSID]) << 64 | u128::from(words[FSID + 1])
}

fn fs_info(fd: BorrowedFd<'_>, flags: u64) -> Result<[u64; WORDS], Errno> {
    let mut words = [0u64; WORDS];
    words[FLAGS] = flags;
    // SAFETY: the argument points to 1024 initialised bytes, the size of the structure, which the kernel reads and writes.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), FS_INFO as _, words.as_mut_ptr()) };
    if result == 0 { Ok(words) } else { Err(last_errno()) }
}

/// Which state a subvolume is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubvolumeState {
    pub filesystem: u128,
    /// The number of the latest transaction on the whole filesystem. One that begins raises it.
    pub generation: u64,
    /// The number and the UUID of the subvolume.
    pub tree: u64,
    pub uuid: u128,
    /// The transaction of its latest change, and when that was, in seconds and nanoseconds.
    pub changed: u64,
    pub changed_at: (u64, u32),
}

/// Returns which state the subvolume of an open file or directory is in (Linux 5.9).
///
/// # Errors
/// `ENOTTY` on another filesystem; `EBADF` for an `O_PATH` descriptor; `EOPNOTSUPP` on an older kernel.
pub fn subvolume_state(fd: BorrowedFd<'_>) -> Result<SubvolumeState, Errno> {
    let info = fs_info(fd, WITH_GENERATION)?;
    if info[FLAGS] & WITH_GENERATION == 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let mut words = [0u64; SUBVOL_WORDS];
    // SAFETY: the argument points to 504 initialised bytes, the size of the structure, which the kernel writes.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), SUBVOL_INFO as _, words.as_mut_ptr()) };
    if result != 0 {
        return Err(last_errno());
    }
    Ok(SubvolumeState {
        filesystem: fsid(&info),
        generation: info[GENERATION],
        tree: words[TREE_ID],
        uuid: u128::from(words[UUID]) << 64 | u128::from(words[UUID + 1]),
        changed: words[CHANGED],
        changed_at: (words[CHANGED_AT], words[CHANGED_AT + 1] as u32),
    })
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
