//! Filesystems with case-insensitive directories.
//!
//! Events there carry either the name that was used or the name that is stored. A kernel that has cached that `A` is
//! missing gets an event for `a` when that is created, but none for `A`. Such a filesystem therefore counts as one
//! that cannot be watched, as a whole: there is no event when a single directory becomes case-insensitive (chattr
//! +F).

use canopy_branch::branch::Branch;
use canopy_branch::fs::block_device;
use canopy_sys::ioctl::inode_flags::{FS_CASEFOLD_FL, FlagIoctl, flag_ioctl, xfs_ignores_case};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;

/// Filesystem types (include/uapi/linux/magic.h).
pub(crate) const EXT: u64 = 0xef53;
pub(crate) const XFS: u64 = 0x5846_5342;
pub(crate) const TMPFS: u64 = 0x0102_1994;

/// Returns why some directory of the branch may be case-insensitive; `None` if none is. `dir` is the branch's root,
/// not open as `O_PATH`.
pub(crate) fn why_case_insensitive(branch: &Branch, dir: BorrowedFd<'_>) -> Option<String> {
    let reason = || Some("directories on it may ignore case".to_owned());
    match branch.kind {
        EXT if kernel_supports("ext4") => match block_device::beginning::<2048>(branch.dev) {
            Ok(disk) if ext4_has_casefold(&disk) => reason(),
            Ok(_) => None,
            Err(why) => Some(format!("cannot read from its disk whether its directories ignore case: {why}")),
        },
        XFS if xfs_ignores_case(dir).unwrap_or(false) => reason(),
        TMPFS if kernel_supports("tmpfs") && tmpfs_has_casefold(dir).unwrap_or(false) => reason(),
        _ => None,
    }
}

/// Returns whether this kernel may support case-insensitive directories: unless it lists its features and this is not
/// among them.
fn kernel_supports(kind: &str) -> bool {
    let features = format!("/sys/fs/{kind}/features");
    match kind {
        // A kernel that supports it lists it (Linux 6.13).
        "tmpfs" => fs::exists(format!("{features}/casefold")).unwrap_or(false),
        _ => {
            fs::exists(format!("{features}/casefold")).unwrap_or(true)
                || !fs::exists(features).unwrap_or(false)
        }
    }
}

/// Checks the incompatible features in the superblock (fs/ext4/ext4.h).
fn ext4_has_casefold(disk: &[u8; 2048]) -> bool {
    const SUPERBLOCK: usize = 1024;
    const MAGIC: usize = SUPERBLOCK + 0x38;
    const INCOMPATIBLE: usize = SUPERBLOCK + 0x60;
    const CASEFOLD: u32 = 0x20000;
    let word = |at: usize| u32::from_le_bytes([disk[at], disk[at + 1], disk[at + 2], disk[at + 3]]);
    word(MAGIC) & 0xffff == EXT as u32 && word(INCOMPATIBLE) & CASEFOLD != 0
}

/// Tries to set the flag on a file, which always fails: with ENOTDIR if directories could have the flag (mm/shmem.c).
fn tmpfs_has_casefold(dir: BorrowedFd<'_>) -> Result<bool, Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, c".", flags, Mode::empty())?;
    let mut buffer = [0; 28];
    buffer[..4].copy_from_slice(&FS_CASEFOLD_FL.to_ne_bytes());
    Ok(flag_ioctl(file.as_fd(), FlagIoctl::SetFlags, &mut buffer) == Err(Errno::NOTDIR))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read as _;
    use std::process::Command;

    #[test]
    fn casefold_is_read_from_an_ext4_superblock() {
        let home = tempfile::tempdir().unwrap();
        for (features, folds) in [("casefold", true), ("^casefold", false), ("^casefold,^has_journal", false)]
        {
            let image = home.path().join(features);
            File::create(&image).unwrap().set_len(16 << 20).unwrap();
            let made = Command::new("mkfs.ext4").args(["-q", "-F", "-O", features]).arg(&image).status();
            assert!(made.unwrap().success(), "{features}");
            let mut disk = [0; 2048];
            File::open(&image).unwrap().read_exact(&mut disk).unwrap();
            assert_eq!(ext4_has_casefold(&disk), folds, "{features}");
            // Without the magic number it is no ext4.
            disk[1024 + 0x38] = 0;
            assert!(!ext4_has_casefold(&disk));
        }
    }

    #[test]
    fn only_xfs_answers_the_xfs_ioctl() {
        let dir = File::open("/proc").unwrap();
        assert!(xfs_ignores_case(dir.as_fd()).is_err());
    }
}
