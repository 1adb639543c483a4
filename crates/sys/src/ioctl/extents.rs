//! `FIEMAP`: where the blocks of a file are on its disk.

use crate::errno::last_errno;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: u64 = 0xc020_660b;
/// What has not been written to disk yet is written first.
const FIEMAP_FLAG_SYNC: u32 = 1;
const FIEMAP_EXTENT_LAST: u32 = 1;
/// The place is not known, or no place: data among the metadata, for instance.
const WITHOUT_PLACE: u32 = 0x2 | 0x4 | 0x200 | 0x400;

const AT_ONCE: usize = 128;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Raw {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap`, with room for extents.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [Raw; AT_ONCE],
}

const _: () = assert!(size_of::<Raw>() == 56 && size_of::<Map>() == 32 + 56 * AT_ONCE);

/// A part of a file: its place in the file and on the disk, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    pub logical: u64,
    pub physical: u64,
    pub length: u64,
}

/// Returns the parts of a file, the first one first; those that follow each other in the file and on the disk are one.
/// `None` if a part has no place of its own on the disk.
///
/// # Errors
/// `EOPNOTSUPP` and `ENOTTY` when the filesystem cannot tell.
pub fn extents(file: BorrowedFd<'_>) -> Result<Option<Vec<Extent>>, Errno> {
    let mut all: Vec<Extent> = Vec::new();
    let mut start = 0;
    loop {
        let mut map = Map {
            start,
            length: u64::MAX - start,
            flags: FIEMAP_FLAG_SYNC,
            mapped_extents: 0,
            extent_count: AT_ONCE as u32,
            reserved: 0,
            extents: [Raw::default(); AT_ONCE],
        };
        // SAFETY: FS_IOC_FIEMAP reads a fiemap, and writes that and at most `extent_count` extents behind it, through the
        // pointer. `Map` has both (the sizes are asserted above).
        let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut map) };
        if result < 0 {
            return Err(last_errno());
        }
        let found = map.extents.get(..map.mapped_extents as usize).unwrap_or(&map.extents);
        for raw in found {
            if raw.flags & WITHOUT_PLACE != 0 {
                return Ok(None);
            }
            match all.last_mut() {
                Some(last)
                    if (last.logical + last.length, last.physical + last.length)
                        == (raw.logical, raw.physical) =>
                {
                    last.length += raw.length;
                }
                _ => all.push(Extent { logical: raw.logical, physical: raw.physical, length: raw.length }),
            }
        }
        match found.last() {
            Some(last) if last.flags & FIEMAP_EXTENT_LAST == 0 => start = last.logical + last.length,
            _ => return Ok(Some(all)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_hole_is_no_extent() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 8192], 1 << 20).unwrap();
        match extents(file.as_fd()) {
            Ok(Some(found)) => {
                assert_eq!(found.iter().map(|extent| extent.length).sum::<u64>(), 8192, "{found:?}");
                assert_eq!(found[0].logical, 1 << 20, "{found:?}");
            }
            Ok(None) => {}
            Err(errno) => assert!(matches!(errno, Errno::OPNOTSUPP | Errno::NOTTY), "{errno}"),
        }
    }
}
