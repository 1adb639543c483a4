//! Which filesystem a directory is on: the one answer for all who add up sizes, or tell disks apart.
//!
//! The device number of stat(2) is no answer: each subvolume of a btrfs has one of its own, and they share its space.
//! Directories of one filesystem with project quotas (XFS, ext4) have one device number, and each its own space.

use super::magic::{BTRFS, EXT, F2FS, XFS};
use super::stat;
use canopy_sys::ioctl::btrfs;
use canopy_sys::ioctl::inode_flags::{FlagIoctl, flag_ioctl};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Mode, OFlags};

/// A filesystem, and the project in it whose quota statvfs(3) may show.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FilesystemId {
    /// Equal for everything that lies on the same filesystem.
    pub filesystem: u64,
    /// 0 outside of projects.
    pub project: u32,
}

impl FilesystemId {
    /// Identifies the filesystem of a directory, which may be an `O_PATH` descriptor. Where that cannot be asked more, or
    /// for a file, the device number decides.
    pub fn of(dir: BorrowedFd<'_>) -> FilesystemId {
        let kind = rustix::fs::fstatfs(dir).map_or(0, |stat| stat.f_type as u64 & u64::from(u32::MAX));
        let plain = FilesystemId::by_device(stat::of(dir).map_or(0, |attr| attr.dev));
        if !matches!(kind, BTRFS | EXT | F2FS | XFS) {
            return plain;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(opened) = rustix::fs::openat(dir, c".", flags, Mode::empty()) else { return plain };
        match kind {
            BTRFS => {
                let filesystem = btrfs::filesystem_id(opened.as_fd())
                    .map_or(plain.filesystem, |uuid| (uuid >> 64) as u64 ^ uuid as u64);
                FilesystemId { filesystem, project: 0 }
            }
            _ => FilesystemId { project: project(opened.as_fd()), ..plain },
        }
    }

    /// Identifies a filesystem that has no subvolumes, by its device number.
    pub fn by_device(dev: u64) -> FilesystemId {
        FilesystemId { filesystem: dev, project: 0 }
    }
}

/// Returns the project that a directory hands down to what is made in it: only then do filesystems show the project's
/// quota as their size.
fn project(dir: BorrowedFd<'_>) -> u32 {
    const INHERITS: u32 = 0x200;
    let mut attributes = [0; 28];
    if flag_ioctl(dir, FlagIoctl::GetXattr, &mut attributes).is_err() {
        return 0;
    }
    let word =
        |at: usize| attributes.as_chunks::<4>().0.get(at).map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    // struct fsxattr: fsx_xflags, fsx_extsize, fsx_nextents, fsx_projid.
    if word(0) & INHERITS == 0 { 0 } else { word(3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_one_filesystem_have_one_id_and_others_another() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("below")).unwrap();
        let id = |path: &std::path::Path| {
            FilesystemId::of(rustix::fs::open(path, OFlags::PATH, Mode::empty()).unwrap().as_fd())
        };
        assert_eq!(id(dir.path()), id(&dir.path().join("below")));
        assert_ne!(id(dir.path()), id("/proc".as_ref()));
    }
}
