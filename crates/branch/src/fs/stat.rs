//! File attributes: what statx(2) reports, and what the pool reports to clients.

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, Statx, StatxFlags};
use rustix::io::Errno;

/// Seconds and nanoseconds since the epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Time {
    pub sec: i64,
    pub nsec: u32,
}

/// Identifies a file on its filesystem, as distinct from every earlier file with the same inode number: the birth
/// time does the work of an inode generation, and statx(2) returns it anyway.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileKey {
    pub dev: u64,
    pub ino: u64,
    pub birth: (i64, u32),
}

/// Attributes as statx(2) reports them; `ino` is the branch's number until the pool replaces it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attr {
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// Birth time, where `mask` has `STATX_BTIME`.
    pub btime: Time,
    /// Type and permission bits.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: (u32, u32),
    /// The device that holds the file; not reported to clients.
    pub dev: u64,
    pub blksize: u32,
    /// `STATX_ATTR_*` (immutable, append-only, ...), and which of them the branch supports.
    pub attributes: u64,
    pub attributes_mask: u64,
    /// `STATX_*`: which fields are valid.
    pub mask: u32,
}

const S_IFMT: u32 = 0o170_000;
pub const S_IFDIR: u32 = 0o040_000;
pub const S_IFREG: u32 = 0o100_000;
pub const S_IFLNK: u32 = 0o120_000;
pub const S_ISUID: u32 = 0o4000;
pub const S_ISGID: u32 = 0o2000;
pub const S_IXGRP: u32 = 0o010;

impl Attr {
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }
    pub fn is_regular(&self) -> bool {
        self.mode & S_IFMT == S_IFREG
    }
    /// It belongs to the daemon's user, and nobody else can change it.
    pub fn is_daemons_alone(&self) -> bool {
        self.uid == rustix::process::geteuid().as_raw() && self.mode & 0o022 == 0
    }
    /// chattr(1) has made the file immutable (`STATX_ATTR_IMMUTABLE`).
    pub fn is_immutable(&self) -> bool {
        self.attributes & 0x10 != 0
    }
    /// Turns the attributes into those of a symlink whose target has `length` bytes.
    pub fn show_as_symlink(&mut self, length: usize) {
        self.mode = S_IFLNK | self.mode & 0o7777 | 0o777;
        self.size = length as u64;
        self.blocks = 0;
    }

    /// chattr(1) has made the file append-only (`STATX_ATTR_APPEND`).
    pub fn is_append_only(&self) -> bool {
        self.attributes & 0x20 != 0
    }
    pub fn is_symlink(&self) -> bool {
        self.mode & S_IFMT == S_IFLNK
    }
    /// Returns the file type as in getdents64(2).
    pub fn dirent_type(&self) -> u8 {
        ((self.mode & S_IFMT) >> 12) as u8
    }
    pub fn key(&self) -> FileKey {
        FileKey { dev: self.dev, ino: self.ino, birth: (self.btime.sec, self.btime.nsec) }
    }
}

impl From<Statx> for Attr {
    fn from(x: Statx) -> Self {
        let time = |t: rustix::fs::StatxTimestamp| Time { sec: t.tv_sec, nsec: t.tv_nsec };
        Attr {
            ino: x.stx_ino,
            size: x.stx_size,
            blocks: x.stx_blocks,
            atime: time(x.stx_atime),
            mtime: time(x.stx_mtime),
            ctime: time(x.stx_ctime),
            btime: if x.stx_mask & StatxFlags::BTIME.bits() != 0 {
                time(x.stx_btime)
            } else {
                Time::default()
            },
            mode: u32::from(x.stx_mode),
            nlink: x.stx_nlink,
            uid: x.stx_uid,
            gid: x.stx_gid,
            rdev: (x.stx_rdev_major, x.stx_rdev_minor),
            dev: rustix::fs::makedev(x.stx_dev_major, x.stx_dev_minor),
            blksize: x.stx_blksize,
            attributes: x.stx_attributes.bits(),
            attributes_mask: x.stx_attributes_mask.bits(),
            mask: x.stx_mask,
        }
    }
}

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// Returns the attributes of the file behind a descriptor (`O_PATH` is enough).
pub fn of(fd: BorrowedFd<'_>) -> Result<Attr, Errno> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, WANTED).map(Attr::from)
}

/// As [`of`], and the id of the mount that the descriptor was opened on (Linux 5.8).
pub fn with_mount(fd: BorrowedFd<'_>) -> Result<(Attr, Option<u64>), Errno> {
    let found = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, WANTED | StatxFlags::MNT_ID)?;
    let mount = (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id);
    Ok((found.into(), mount))
}

/// Returns the attributes of the file `name` in a directory; does not follow a symlink.
pub fn at(dir: impl AsFd, name: &[u8]) -> Result<Attr, Errno> {
    rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, WANTED).map(Attr::from)
}
