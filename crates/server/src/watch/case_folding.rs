//! Filesystems on which a name may stand for others that differ from it in case.
//!
//! What happens there is told by the name that was used, or by the one that is stored. Who has been told that `A` is
//! missing hears of `a` when that is made, and not of `A`. So such a filesystem counts as one that cannot be watched, whole:
//! single directories are made so (chattr +F) without an event.

use canopy_pool::block_device;
use canopy_pool::branch::Branch;
use canopy_sys::ioctl::inode_flags::{FS_CASEFOLD_FL, FlagIoctl, flag_ioctl, xfs_ignores_case};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;

/// Their types (include/uapi/linux/magic.h).
pub(crate) const EXT: u64 = 0xef53;
pub(crate) const XFS: u64 = 0x5846_5342;
pub(crate) const TMPFS: u64 = 0x0102_1994;

/// Why names in some directory of the branch may not be told apart by their case; `None` if they are, everywhere.
/// `dir` is its root, really open.
pub(crate) fn ignored(branch: &Branch, dir: BorrowedFd<'_>) -> Option<String> {
    let ignored = || Some("directories on it may ignore case".to_owned());
    match branch.kind {
        EXT if may_ignore("ext4") => match block_device::beginning::<2048>(branch.dev) {
            Ok(disk) if ext_folds(&disk) => ignored(),
            Ok(_) => None,
            Err(why) => {
                Some(format!("whether its directories ignore case cannot be read from its disk: {why}"))
            }
        },
        XFS if xfs_ignores_case(dir).unwrap_or(false) => ignored(),
        TMPFS if may_ignore("tmpfs") && tmpfs_folds(dir).unwrap_or(false) => ignored(),
        _ => None,
    }
}

/// Is that to be had from this kernel? Not where it says what it has, and that this is not among it.
fn may_ignore(kind: &str) -> bool {
    let features = format!("/sys/fs/{kind}/features");
    match kind {
        // Since it can, it tells so (Linux 6.13).
        "tmpfs" => fs::exists(format!("{features}/casefold")).unwrap_or(false),
        _ => {
            fs::exists(format!("{features}/casefold")).unwrap_or(true)
                || !fs::exists(features).unwrap_or(false)
        }
    }
}

/// By the features that a filesystem cannot be used without, in the superblock (fs/ext4/ext4.h).
fn ext_folds(disk: &[u8; 2048]) -> bool {
    const SUPERBLOCK: usize = 1024;
    const MAGIC: usize = SUPERBLOCK + 0x38;
    const INCOMPATIBLE: usize = SUPERBLOCK + 0x60;
    const CASEFOLD: u32 = 0x20000;
    let word = |at: usize| u32::from_le_bytes([disk[at], disk[at + 1], disk[at + 2], disk[at + 3]]);
    word(MAGIC) & 0xffff == EXT as u32 && word(INCOMPATIBLE) & CASEFOLD != 0
}

/// A file is no directory, so it never gets the flag; where directories could, that is why (mm/shmem.c).
fn tmpfs_folds(dir: BorrowedFd<'_>) -> Result<bool, Errno> {
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
    fn an_ext4_that_may_hold_directories_without_case_is_told_by_its_superblock() {
        let home = tempfile::tempdir().unwrap();
        for (features, folds) in [("casefold", true), ("^casefold", false), ("^casefold,^has_journal", false)]
        {
            let image = home.path().join(features);
            File::create(&image).unwrap().set_len(16 << 20).unwrap();
            let made = Command::new("mkfs.ext4").args(["-q", "-F", "-O", features]).arg(&image).status();
            assert!(made.unwrap().success(), "{features}");
            let mut disk = [0; 2048];
            File::open(&image).unwrap().read_exact(&mut disk).unwrap();
            assert_eq!(ext_folds(&disk), folds, "{features}");
            // What only looks like one.
            disk[1024 + 0x38] = 0;
            assert!(!ext_folds(&disk));
        }
    }

    #[test]
    fn a_filesystem_that_is_no_xfs_does_not_answer_as_one() {
        let dir = File::open("/proc").unwrap();
        assert!(xfs_ignores_case(dir.as_fd()).is_err());
    }
}
