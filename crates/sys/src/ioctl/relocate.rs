//! `RELOCATE`, an ioctl of a directory in a pool: the daemon moves or copies one of its entries to another branch.
//!
//! The kernel passes the argument on as it is, and knows its size from the command's number.

use crate::errno::last_errno;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Length of the argument in bytes. Below the largest size of an argument, 16 KiB.
pub const SIZE: usize = 8192;

/// `_IOW('C', 1, char[SIZE])`.
pub const RELOCATE: u32 = 0x4000_0000 | (SIZE as u32) << 16 | (b'C' as u32) << 8 | 1;

/// What becomes of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// It moves to the other branch.
    Move,
    /// It stays on its branch as well. Then other branches may hold copies, too, and the one that the pool shows is copied.
    Copy,
    /// It leaves its branch, because others hold the same.
    Drop,
}

/// What is to become of which entry, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Relocation<'a> {
    /// The entry of the directory. A file moves with all its names.
    pub name: &'a [u8],
    /// The path of the branch that holds it, as the pool lists it. It must be there and nowhere else; a directory may be
    /// on others as well.
    pub from: &'a [u8],
    /// The path of the branch that it moves to.
    pub to: &'a [u8],
    /// The most bytes to copy in a second; 0 for no limit.
    pub rate: u64,
    /// Copy only while no other program uses the disks (ioprio_set(2)).
    pub idle: bool,
    /// A file may lose what the other branch's filesystem cannot store: its owner, mode or attributes.
    pub lossy: bool,
    pub what: What,
}

impl<'a> Relocation<'a> {
    /// The rate, the flags, three lengths, and room.
    const HEAD: usize = 24;
    const IDLE: u32 = 1;
    const COPY: u32 = 2;
    const DROP: u32 = 4;
    const LOSSY: u32 = 8;

    /// Returns the argument of the ioctl.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for names that do not fit.
    pub fn to_bytes(&self) -> Result<[u8; SIZE], Errno> {
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&self.rate.to_ne_bytes());
        let what = match self.what {
            What::Move => 0,
            What::Copy => Self::COPY,
            What::Drop => Self::DROP,
        };
        let set = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = what | set(self.idle, Self::IDLE) | set(self.lossy, Self::LOSSY);
        bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
        let mut end = Self::HEAD;
        for (index, text) in [self.name, self.from, self.to].into_iter().enumerate() {
            let length = u16::try_from(text.len()).map_err(|_| Errno::NAMETOOLONG)?;
            bytes[12 + 2 * index..14 + 2 * index].copy_from_slice(&length.to_ne_bytes());
            bytes.get_mut(end..end + text.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(text);
            end += text.len();
        }
        Ok(bytes)
    }

    /// Reads the argument of the ioctl; `None` if it is not one.
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Relocation<'a>> {
        let (head, mut rest) = bytes.split_at_checked(Self::HEAD)?;
        let length =
            |index: usize| usize::from(u16::from_ne_bytes([head[12 + 2 * index], head[13 + 2 * index]]));
        let mut next = |index| {
            let (text, after) = rest.split_at_checked(length(index))?;
            rest = after;
            Some(text)
        };
        let (name, from, to) = (next(0)?, next(1)?, next(2)?);
        let flags = u32::from_ne_bytes(*head[8..].first_chunk()?);
        let rate = u64::from_ne_bytes(*head.first_chunk()?);
        let what = match flags & !(Self::IDLE | Self::LOSSY) {
            0 => What::Move,
            Self::COPY => What::Copy,
            Self::DROP => What::Drop,
            // A flag that this version does not know may change what is asked for.
            _ => return None,
        };
        let (idle, lossy) = (flags & Self::IDLE != 0, flags & Self::LOSSY != 0);
        Some(Relocation { name, from, to, rate, idle, lossy, what })
    }
}

/// Asks the daemon to move or copy an entry of the directory `dir`, which must not be an `O_PATH` descriptor. Returns when
/// that is done.
///
/// # Errors
/// Those of `Pool::relocate`, in the crate `canopy-pool`. `ENOTTY` when `dir` is not in a pool, or when its daemon is
/// older than the ioctl. `EINTR` when a signal arrives.
pub fn relocate(dir: BorrowedFd<'_>, relocation: &Relocation<'_>) -> Result<(), Errno> {
    let bytes = relocation.to_bytes()?;
    // SAFETY: the argument points to as many bytes as the command's number says, which the kernel only reads.
    let result = unsafe { libc::ioctl(dir.as_raw_fd(), u64::from(RELOCATE) as _, bytes.as_ptr()) };
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_keeps_everything() {
        let all = [What::Move, What::Copy, What::Drop].map(|what| [(false, what), (true, what)]);
        for (idle, what) in all.into_iter().flatten() {
            let (from, to) = (b"/mnt/a", b"/mnt/b");
            let all = Relocation { name: b"f\xff", from, to, rate: 3 << 40, idle, lossy: !idle, what };
            let bytes = all.to_bytes().unwrap();
            assert_eq!(Relocation::from_bytes(&bytes), Some(all));
            assert_eq!(Relocation::from_bytes(&bytes[..30]), None, "cut off");
        }
        assert_eq!(RELOCATE, 0x6000_4301);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let long = vec![b'x'; 4096];
        let fits = Relocation {
            name: &long[..255],
            from: &long[..3900],
            to: &long[..3900],
            rate: 0,
            idle: false,
            lossy: false,
            what: What::Move,
        };
        assert_eq!(fits.to_bytes().map(drop), Ok(()));
        let none = Relocation { from: &long, to: &long, ..fits };
        assert_eq!(none.to_bytes().map(drop), Err(Errno::NAMETOOLONG));
        let mut unknown = fits.to_bytes().unwrap();
        unknown[8..12].copy_from_slice(&16_u32.to_ne_bytes());
        assert_eq!(Relocation::from_bytes(&unknown), None);
    }

    #[test]
    fn a_directory_outside_a_pool_knows_no_such_ioctl() {
        let relocation = Relocation {
            name: b"f",
            from: b"/a",
            to: b"/b",
            rate: 0,
            idle: false,
            lossy: false,
            what: What::Move,
        };
        let dir = std::fs::File::open("/").unwrap();
        assert_eq!(relocate(std::os::fd::AsFd::as_fd(&dir), &relocation), Err(Errno::NOTTY));
    }
}
