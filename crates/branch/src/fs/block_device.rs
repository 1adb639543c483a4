//! Whether the disk below a filesystem is present.
//!
//! A filesystem whose disk was pulled still shows what it has in memory: while it is mounted its root can be read,
//! and everything else fails. So the disk itself is read, past every cache.

use canopy_base::error::is_illness;
use rustix::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The largest logical block size of disks, in bytes.
const BLOCK: usize = 4096;
/// The unit of sizes in /sys, in bytes.
const SECTOR: u64 = 512;

/// Reads a few blocks of the disk below a directory. Of several disks (btrfs), one that answers is enough. `Ok` also
/// where the disk cannot be found: filesystems without a disk, no /sys, no node in /dev, no permission to open it.
///
/// Errors: `ENODEV` for a disk that is missing or has lost its capacity; otherwise the error of reading it, if no
/// block could be read. Takes as long as the disk does.
pub fn answers(dir: BorrowedFd<'_>) -> Result<(), Errno> {
    let dev = rustix::fs::fstat(dir)?.st_dev;
    let mut answer = Ok(());
    for disk in numbers(dev, dir) {
        answer = disk.map_or(Err(Errno::NODEV), disk_answers);
        if answer.is_ok() {
            break;
        }
    }
    answer
}

/// Returns the device numbers of the disks below a directory that is on the device `dev`; `None` for a disk that is
/// missing. Does not touch the directory.
pub fn numbers(dev: u64, dir: BorrowedFd<'_>) -> Vec<Option<u64>> {
    if rustix::fs::major(dev) == 0 { btrfs_disks(dir) } else { vec![Some(dev)] }
}

/// Returns the disks of a btrfs, whose files have a device number of their own; `None` for a disk that is missing.
/// Other filesystems have none.
fn btrfs_disks(dir: BorrowedFd<'_>) -> Vec<Option<u64>> {
    let Some(source) = source(dir) else { return Vec::new() };
    let resolved = fs::canonicalize(&source).unwrap_or(source);
    let Some(name) = resolved.file_name() else { return Vec::new() };
    let number = |disk: &OsStr| {
        let number = fs::read_to_string(Path::new("/sys/class/block").join(disk).join("dev")).ok()?;
        let (major, minor) = number.trim().split_once(':')?;
        Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
    };
    let mounted = fs::read_dir("/sys/fs/btrfs").into_iter().flatten().flatten();
    let lists = mounted.map(|one| one.path().join("devices"));
    let own = lists.into_iter().find(|list| list.join(name).symlink_metadata().is_ok());
    let disks = own.and_then(|list| fs::read_dir(list).ok()).into_iter().flatten().flatten();
    disks.map(|disk| number(&disk.file_name())).collect()
}

/// Returns the source of the mount that a directory is on, from /proc/self/mountinfo (proc_pid_mountinfo(5)).
fn source(dir: BorrowedFd<'_>) -> Option<PathBuf> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", dir.as_raw_fd())).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(id))?;
    line.split_once(" - ")?.1.split(' ').nth(1).map(PathBuf::from)
}

/// As `answers`, for one disk, by its device number.
fn disk_answers(dev: u64) -> Result<(), Errno> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let about = |what: &str| fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{what}"));
    // A disk is listed for as long as it exists, mounted or not.
    let size = match about("size") {
        Err(error)
            if error.kind() == ErrorKind::NotFound && fs::exists("/sys/dev/block").unwrap_or(false) =>
        {
            return Err(Errno::NODEV);
        }
        size => size.unwrap_or_default(),
    };
    if size.trim() == "0" {
        return Err(Errno::NODEV);
    }
    let read = open(dev, OFlags::DIRECT).and_then(|disk| {
        let Some(disk) = disk else { return Ok(()) };
        // One block may be bad. And before reading, the kernel writes dirty pages of that block and reports errors of
        // earlier writes, once (block/fops.c, blkdev_read_iter).
        let blocks = size.trim().parse::<u64>().unwrap_or_default() * SECTOR / BLOCK as u64;
        let mut answer = Ok(());
        for place in [blocks / 2, blocks.saturating_sub(1), 0] {
            answer = read_block(&disk, place);
            if answer.is_ok() {
                break;
            }
        }
        answer
    });
    read.or_else(|errno| if is_illness(errno) { Err(errno) } else { Ok(()) })
}

/// Reads a block of the disk with this device number, past every cache; which block depends on `place`. `None` where
/// the disk cannot be found or opened.
pub(crate) fn read_somewhere(dev: u64, place: u64) -> Option<Result<(), Errno>> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let size = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/size")).ok()?;
    let blocks = size.trim().parse::<u64>().ok()? * SECTOR / BLOCK as u64;
    let disk = open(dev, OFlags::DIRECT).ok()??;
    Some(read_block(&disk, place % blocks.max(1)))
}

/// Reads a block of a disk that was opened with `O_DIRECT`.
///
/// Errors: `ENODEV` beyond the end, as of a disk that has lost its capacity; otherwise that of reading.
fn read_block(disk: &OwnedFd, block: u64) -> Result<(), Errno> {
    // O_DIRECT wants memory on block boundaries.
    let mut buffer = vec![0_u8; 2 * BLOCK];
    let start = buffer.as_ptr().align_offset(BLOCK).min(BLOCK);
    match rustix::io::pread(disk, &mut buffer[start..start + BLOCK], block * BLOCK as u64)? {
        0 => Err(Errno::NODEV),
        _ => Ok(()),
    }
}

/// Opens the disk with this device number for reading; `None` where /sys or /dev do not have it.
fn open(dev: u64, flags: OFlags) -> Result<Option<OwnedFd>, Errno> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let uevent = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent")).unwrap_or_default();
    let Some(node) = uevent.lines().find_map(|line| line.strip_prefix("DEVNAME=")) else { return Ok(None) };
    let flags = flags | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let disk = rustix::fs::open(format!("/dev/{node}"), flags, Mode::empty())?;
    Ok((rustix::fs::fstat(&disk)?.st_rdev == dev).then_some(disk))
}

/// Reads the beginning of the disk with this device number, as its filesystem has it in memory.
///
/// Errors: `ENODEV` where the disk cannot be found, and those of opening and reading it.
pub fn beginning<const BYTES: usize>(dev: u64) -> Result<[u8; BYTES], Errno> {
    let disk = open(dev, OFlags::empty())?.ok_or(Errno::NODEV)?;
    let mut bytes = [0; BYTES];
    match rustix::io::pread(&disk, &mut bytes, 0)? {
        read if read == BYTES => Ok(bytes),
        _ => Err(Errno::IO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd as _;

    #[test]
    fn a_disk_that_cannot_be_found_is_no_error() {
        for dir in ["/proc", "/dev/shm", "/"] {
            let dir = fs::File::open(dir).unwrap();
            assert_eq!(answers(dir.as_fd()), Ok(()));
        }
        // The highest device number (MINORBITS in include/linux/kdev_t.h).
        let no_such = rustix::fs::makedev(4095, 1_048_575);
        let expected = if fs::exists("/sys/dev/block").unwrap() { Err(Errno::NODEV) } else { Ok(()) };
        assert_eq!(disk_answers(no_such), expected);
    }
}
