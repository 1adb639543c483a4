//! `FITRIM`, the ioctl behind fstrim(8): the filesystem tells its disk which blocks are unused.

use crate::errno::last_errno;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `_IOWR('X', 121, struct fstrim_range)` in include/uapi/linux/fs.h.
pub const FITRIM: u32 = 0xc018_5879;

/// `struct fstrim_range`. All fields are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrimRange {
    pub start: u64,
    pub len: u64,
    /// Free extents shorter than this are not discarded.
    pub min_len: u64,
}

impl TrimRange {
    /// Length of the structure in bytes.
    pub const SIZE: usize = 24;

    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let mut words = [0; 3];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let [start, len, min_len] = words;
        TrimRange { start, len, min_len }
    }

    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        for (part, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([self.start, self.len, self.min_len])
        {
            *part = word.to_ne_bytes();
        }
        bytes
    }
}

/// Discards the free space in a range of the filesystem that contains `fd`, and returns the number of bytes discarded.
///
/// # Errors
/// Those of the filesystem; `EBADF` for an `O_PATH` descriptor.
pub fn trim(fd: BorrowedFd<'_>, range: TrimRange) -> Result<u64, Errno> {
    let mut words = [range.start, range.len, range.min_len];
    // SAFETY: the argument points to three initialised words, which the kernel reads and writes.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), u64::from(FITRIM) as _, words.as_mut_ptr()) };
    match result {
        0 => Ok(words[1]),
        _ => Err(last_errno()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_three_words() {
        let range = TrimRange { start: 1, len: u64::MAX, min_len: 3 << 40 };
        assert_eq!(TrimRange::from_bytes(range.to_bytes()), range);
        assert_eq!(range.to_bytes()[8..16], [0xff; 8]);
    }
}
