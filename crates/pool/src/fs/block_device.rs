//! Whether the disk below a filesystem is there.
//!
//! A filesystem whose disk was pulled goes on showing what it has in memory: its root can be read for as long as it is
//! mounted, and everything else is an error. So the disk itself is asked, past every cache.

use crate::error::is_illness;
use rustix::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The largest logical block that disks have, in bytes.
const BLOCK: usize = 4096;
/// In which /sys counts, in bytes.
const SECTOR: u64 = 512;

/// Reads a few blocks of the disk below a directory. One of several that answers is enough (btrfs). `Ok` also where it
/// cannot be told: filesystems without a disk, no /sys, no node in /dev, no right to open it.
///
/// Errors: `ENODEV` for a disk that is not there or has no capacity left; else what reading it has answered, if none of
/// it could be read. Takes as long as the disk does.
pub fn answers(dir: BorrowedFd<'_>) -> Result<(), Errno> {
    let dev = rustix::fs::fstat(dir)?.st_dev;
    let mut answer = Ok(());
    for disk in if rustix::fs::major(dev) == 0 { several(dir) } else { vec![Some(dev)] } {
        answer = disk.map_or(Err(Errno::NODEV), one_answers);
        if answer.is_ok() {
            break;
        }
    }
    answer
}

/// The disks of a btrfs, which gives its files a device number of its own; None for one that is not there. Of other
/// filesystems there are none.
fn several(dir: BorrowedFd<'_>) -> Vec<Option<u64>> {
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

/// What is mounted there, as /proc/self/mountinfo has it (proc_pid_mountinfo(5)).
fn source(dir: BorrowedFd<'_>) -> Option<PathBuf> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", dir.as_raw_fd())).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(id))?;
    line.split_once(" - ")?.1.split(' ').nth(1).map(PathBuf::from)
}

/// The same of one disk, by its device number.
fn one_answers(dev: u64) -> Result<(), Errno> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let about = |what: &str| fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{what}"));
    // It is listed for as long as it exists, mounted or not.
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
        // O_DIRECT wants memory on block boundaries.
        let mut buffer = vec![0_u8; 2 * BLOCK];
        let start = buffer.as_ptr().align_offset(BLOCK).min(BLOCK);
        let mut read = |at| match rustix::io::pread(&disk, &mut buffer[start..start + BLOCK], at)? {
            0 => Err(Errno::NODEV),
            _ => Ok(()),
        };
        // One place may be bad. And before it reads, the kernel writes what is to be written there, and tells the errors
        // of earlier writes, once (block/fops.c blkdev_read_iter).
        let blocks = size.trim().parse::<u64>().unwrap_or_default() * SECTOR / BLOCK as u64;
        let mut answer = Ok(());
        for place in [blocks / 2, blocks.saturating_sub(1), 0] {
            answer = read(place * BLOCK as u64);
            if answer.is_ok() {
                break;
            }
        }
        answer
    });
    read.or_else(|errno| if is_illness(errno) { Err(errno) } else { Ok(()) })
}

/// The disk of this number, to be read; `None` where /sys or /dev do not have it.
fn open(dev: u64, flags: OFlags) -> Result<Option<OwnedFd>, Errno> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let uevent = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent")).unwrap_or_default();
    let Some(node) = uevent.lines().find_map(|line| line.strip_prefix("DEVNAME=")) else { return Ok(None) };
    let flags = flags | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let disk = rustix::fs::open(format!("/dev/{node}"), flags, Mode::empty())?;
    Ok((rustix::fs::fstat(&disk)?.st_rdev == dev).then_some(disk))
}

/// Reads the beginning of the disk of this number, as its filesystem has it in memory.
///
/// Errors: `ENODEV` where it cannot be found, and what opening and reading it give.
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
    fn an_unknown_device_is_no_error() {
        for dir in ["/proc", "/dev/shm", "/"] {
            let dir = fs::File::open(dir).unwrap();
            assert_eq!(answers(dir.as_fd()), Ok(()));
        }
        // The last one that there can be (MINORBITS in include/linux/kdev_t.h).
        let no_such = rustix::fs::makedev(4095, 1_048_575);
        let expected = if fs::exists("/sys/dev/block").unwrap() { Err(Errno::NODEV) } else { Ok(()) };
        assert_eq!(one_answers(no_such), expected);
    }
}
