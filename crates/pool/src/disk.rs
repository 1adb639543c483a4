//! Whether the disk below a filesystem is there.
//!
//! A filesystem whose disk was pulled goes on showing what it has in memory: its root can be read for as long as it is
//! mounted, and everything else is an error. So the disk itself is asked, past every cache.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::io::ErrorKind;

use crate::health::is_illness;

/// The largest logical block that disks have, in bytes.
const BLOCK: usize = 4096;
/// In which /sys counts, in bytes.
const SECTOR: u64 = 512;

/// Reads a few blocks of the disk of a filesystem, given as in `st_dev`. `Ok` also where that cannot be told:
/// filesystems without a device or with several (major number 0), no /sys, no node in /dev, no right to open it.
///
/// Errors: `ENODEV` for a disk that is not there or has no capacity left; else what reading it has answered, if none of
/// it could be read. Takes as long as the disk does.
pub fn answers(dev: u64) -> Result<(), Errno> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    if major == 0 {
        return Ok(());
    }
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
    let uevent = about("uevent").unwrap_or_default();
    let Some(node) = uevent.lines().find_map(|line| line.strip_prefix("DEVNAME=")) else { return Ok(()) };
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let read = rustix::fs::open(format!("/dev/{node}"), flags, Mode::empty()).and_then(|disk| {
        if rustix::fs::fstat(&disk)?.st_rdev != dev {
            return Ok(());
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_told_is_no_error() {
        let tmpfs_and_the_like = rustix::fs::makedev(0, 7);
        assert_eq!(answers(tmpfs_and_the_like), Ok(()));
        // The last one that there can be (MINORBITS in include/linux/kdev_t.h).
        let no_such = rustix::fs::makedev(4095, 1_048_575);
        let expected = if fs::exists("/sys/dev/block").unwrap() { Err(Errno::NODEV) } else { Ok(()) };
        assert_eq!(answers(no_such), expected);
    }
}
