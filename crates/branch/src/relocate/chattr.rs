//! What chattr(1) and xfs_io(8) set on an inode, outside of its extended attributes: flags, the project, and hints for the
//! allocation.

use crate::fs::beneath;
use canopy_sys::ioctl::inode_flags::{FS_APPEND_FL, FS_IMMUTABLE_FL, FlagIoctl, flag_ioctl};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Flags that say how data are stored. Most filesystems take them for an empty file only.
const LAYOUT: u32 = COMPRESSED | NOT_COMPRESSED | JOURNALED | NOT_COPIED_ON_WRITE | DIRECT_ACCESS;
const COMPRESSED: u32 = 0x4;
const NOT_COMPRESSED: u32 = 0x400;
const JOURNALED: u32 = 0x4000;
const NOT_COPIED_ON_WRITE: u32 = 0x0080_0000;
const DIRECT_ACCESS: u32 = 0x0200_0000;

/// What is made in such a directory belongs to its project.
const PROJECT_INHERITED: u32 = 0x2000_0000;

/// The flags that chattr(1) lets a user change (`FS_FL_USER_MODIFIABLE` in include/uapi/linux/fs.h, and what filesystems have
/// added), but for the two that forbid further changes of the copy. The others, such as ext4's extents flag, describe
/// the file's own layout. The flag of directories that ignore case is missing: the names that exist decide about it.
const MODIFIABLE: u32 = (0x0003_80ff | LAYOUT | PROJECT_INHERITED) & !(FS_IMMUTABLE_FL | FS_APPEND_FL);

/// Which of the flags are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moment {
    /// The target is new and has no data.
    BeforeData,
    /// Everything else has been copied.
    Last,
}

/// Copies what chattr(1) has set, as far as the target's filesystem has it.
pub(super) fn copy(source: BorrowedFd<'_>, target: BorrowedFd<'_>, is_dir: bool, moment: Moment) {
    let (Ok(source), Ok(target)) = (open(source, is_dir), open(target, is_dir)) else { return };
    copy_flags(source.as_fd(), target.as_fd(), moment);
    copy_hints(source.as_fd(), target.as_fd());
}

fn open(file: BorrowedFd<'_>, is_dir: bool) -> Result<OwnedFd, Errno> {
    let kind = if is_dir { OFlags::DIRECTORY } else { OFlags::empty() };
    beneath::reopen(file, OFlags::RDONLY | OFlags::NONBLOCK | kind)
}

fn copy_flags(source: BorrowedFd<'_>, target: BorrowedFd<'_>, moment: Moment) {
    let (mut wanted, mut present) = ([0u8; 28], [0u8; 28]);
    if flag_ioctl(source, FlagIoctl::GetFlags, &mut wanted).is_err()
        || flag_ioctl(target, FlagIoctl::GetFlags, &mut present).is_err()
    {
        return;
    }
    let word = |buffer: &[u8; 28]| u32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
    let copied = if moment == Moment::BeforeData { LAYOUT } else { MODIFIABLE };
    let chosen = word(&wanted) & copied;
    let kept = word(&present) & !copied;
    let put = |flags: u32| {
        let mut buffer = present;
        buffer[..4].copy_from_slice(&flags.to_ne_bytes());
        flag_ioctl(target, FlagIoctl::SetFlags, &mut buffer)
    };
    if kept | chosen == word(&present) || put(kept | chosen).is_ok() {
        return;
    }
    // The target's filesystem lacks one of the flags: set those that it supports.
    let mut flags = kept;
    for bit in (0..u32::BITS).map(|shift| 1 << shift).filter(|bit| chosen & bit != 0) {
        if put(flags | bit).is_ok() {
            flags |= bit;
        }
    }
}

/// The project of a file, and what XFS keeps beside it (`struct fsxattr` in include/uapi/linux/fs.h).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Extended {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copied_extent_size: u32,
    padding: [u8; 8],
}

/// Those flags of it that `FS_IOC_GETFLAGS` does not show and users set: whether the sizes of extents are given, and inherited,
/// and what of a directory concerns defragmentation, streams and symlinks.
const HINTS: u32 = 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x0001_0000;
/// `FS_XFLAG_PROJINHERIT`
const HANDS_PROJECT_DOWN: u32 = 0x200;

impl Extended {
    fn of(file: BorrowedFd<'_>) -> Result<Self, Errno> {
        let mut bytes = [0; 28];
        flag_ioctl(file, FlagIoctl::GetXattr, &mut bytes)?;
        let (words, padding) = bytes.split_at(20);
        let word = |index: usize| words.as_chunks::<4>().0.get(index).map_or(0, |it| u32::from_ne_bytes(*it));
        let mut rest = [0; 8];
        rest.copy_from_slice(padding);
        Ok(Self {
            flags: word(0),
            extent_size: word(1),
            extents: word(2),
            project: word(3),
            copied_extent_size: word(4),
            padding: rest,
        })
    }

    fn put(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let words = [self.flags, self.extent_size, self.extents, self.project, self.copied_extent_size];
        let mut bytes = [0; 28];
        for (place, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.to_ne_bytes();
        }
        bytes[20..].copy_from_slice(&self.padding);
        flag_ioctl(file, FlagIoctl::SetXattr, &mut bytes)
    }
}

fn copy_hints(source: BorrowedFd<'_>, target: BorrowedFd<'_>) {
    let (Ok(wanted), Ok(present)) = (Extended::of(source), Extended::of(target)) else { return };
    let of_project = Extended { project: wanted.project, ..present };
    let all = Extended {
        flags: present.flags & !HINTS | wanted.flags & HINTS,
        extent_size: wanted.extent_size,
        copied_extent_size: wanted.copied_extent_size,
        ..of_project
    };
    if all != present && all.put(target).is_err() && of_project != present {
        let _ = of_project.put(target);
    }
}

/// Lets a file or directory get a name in `dir`, by `naming`, although it belongs to another project than what is made there.
///
/// A directory that hands its project down takes no file of another one, not even from itself (`EXDEV`), but keeps those that
/// it had before. So the file changes its project for as long as this takes.
pub(super) fn named_in<T>(
    dir: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    is_dir: bool,
    naming: impl Fn() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let named = naming();
    if !matches!(named, Err(Errno::XDEV)) {
        return named;
    }
    let (Ok(dir), Ok(file)) = (open(dir, true), open(file, is_dir)) else { return named };
    let (Ok(around), Ok(own)) = (Extended::of(dir.as_fd()), Extended::of(file.as_fd())) else { return named };
    if around.flags & HANDS_PROJECT_DOWN == 0 || around.project == own.project {
        return named;
    }
    Extended { project: around.project, ..own }.put(file.as_fd())?;
    let named = naming();
    if let Err(errno) = own.put(file.as_fd()) {
        tracing::warn!(
            "a copy belongs to the project of its directory, not to the one of its original: {errno}"
        );
    }
    named
}

/// Gives a file the project of another one, as far as its filesystem has projects.
pub(super) fn copy_project(source: BorrowedFd<'_>, target: BorrowedFd<'_>) {
    let (Ok(source), Ok(target)) = (open(source, false), open(target, false)) else { return };
    let (Ok(wanted), Ok(present)) = (Extended::of(source.as_fd()), Extended::of(target.as_fd())) else {
        return;
    };
    if wanted.project != present.project {
        let _ = Extended { project: wanted.project, ..present }.put(target.as_fd());
    }
}
