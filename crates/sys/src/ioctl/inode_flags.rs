//! The inode flags and attributes of chattr(1): `FS_IOC_GETFLAGS` and related ioctls (include/uapi/linux/fs.h).

use crate::errno::last_errno;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

pub const FS_IMMUTABLE_FL: u32 = 0x10;
pub const FS_APPEND_FL: u32 = 0x20;
pub const FS_CASEFOLD_FL: u32 = 0x4000_0000;

/// An ioctl whose argument is a plain structure of known size, which can therefore be forwarded safely.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlagIoctl {
    GetFlags,
    SetFlags,
    GetVersion,
    SetVersion,
    GetXattr,
    SetXattr,
}

impl FlagIoctl {
    /// Returns the ioctl with this command number, if it is one of these.
    pub fn from_command(command: u32) -> Option<Self> {
        // The argument is an int in both forms, although the 64-bit commands are declared with a long.
        Some(match command {
            0x8008_6601 | 0x8004_6601 => FlagIoctl::GetFlags,
            0x4008_6602 | 0x4004_6602 => FlagIoctl::SetFlags,
            0x8008_7601 | 0x8004_7601 => FlagIoctl::GetVersion,
            0x4008_7602 | 0x4004_7602 => FlagIoctl::SetVersion,
            0x801c_581f => FlagIoctl::GetXattr,
            0x401c_5820 => FlagIoctl::SetXattr,
            _ => return None,
        })
    }

    /// Returns how many bytes the kernel reads or writes through the argument.
    pub fn size(self) -> usize {
        match self {
            FlagIoctl::GetXattr | FlagIoctl::SetXattr => 28,
            _ => 4,
        }
    }

    /// Returns whether the ioctl changes the file.
    pub fn writes(self) -> bool {
        matches!(self, FlagIoctl::SetFlags | FlagIoctl::SetVersion | FlagIoctl::SetXattr)
    }

    fn command(self) -> u64 {
        match self {
            FlagIoctl::GetFlags => 0x8008_6601,
            FlagIoctl::SetFlags => 0x4008_6602,
            FlagIoctl::GetVersion => 0x8008_7601,
            FlagIoctl::SetVersion => 0x4008_7602,
            FlagIoctl::GetXattr => 0x801c_581f,
            FlagIoctl::SetXattr => 0x401c_5820,
        }
    }
}

/// Runs the ioctl on an open file or directory. Those that set a value read `buffer`, the others fill it.
///
/// # Errors
/// Those of the filesystem; `EBADF` for an `O_PATH` descriptor.
pub fn flag_ioctl(fd: BorrowedFd<'_>, ioctl: FlagIoctl, buffer: &mut [u8; 28]) -> Result<(), Errno> {
    // None of these ioctls copies a long (fs/ioctl.c uses put_user of an unsigned int). The buffer holds the largest
    // structure, `struct fsxattr`.
    let mut aligned = [0u32; 8];
    for (word, bytes) in aligned.iter_mut().zip(buffer.as_chunks::<4>().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    // SAFETY: the argument points to 32 initialised, aligned bytes; the largest structure is 28 bytes.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), ioctl.command() as _, aligned.as_mut_ptr()) };
    if result < 0 {
        return Err(last_errno());
    }
    for (word, bytes) in aligned.iter().zip(buffer.as_chunks_mut::<4>().0) {
        *bytes = word.to_ne_bytes();
    }
    Ok(())
}

/// Returns whether an XFS ignores the case of ASCII letters in names. `dir` is any directory on it, not an `O_PATH`
/// descriptor.
///
/// # Errors
/// `ENOTTY` on another filesystem.
pub fn xfs_ignores_case(dir: BorrowedFd<'_>) -> Result<bool, Errno> {
    /// `XFS_IOC_FSGEOMETRY_V1` (fs/xfs/libxfs/xfs_fs.h): 112 bytes, with the flags at byte 92.
    const GEOMETRY: u64 = 0x8070_5864;
    const FLAGS: usize = 92 / size_of::<u64>();
    /// `XFS_FSOP_GEOM_FLAGS_DIRV2CI`
    const ASCII_CI: u64 = 1 << 13;
    let mut geometry = [0_u64; 112 / size_of::<u64>()];
    // SAFETY: the kernel writes 112 bytes, the size of the array, which is aligned for all fields.
    let result = unsafe { libc::ioctl(dir.as_raw_fd(), GEOMETRY as _, geometry.as_mut_ptr()) };
    if result < 0 {
        return Err(last_errno());
    }
    let words = geometry[FLAGS].to_ne_bytes();
    let flags = u32::from_ne_bytes([words[4], words[5], words[6], words[7]]);
    Ok(u64::from(flags) & ASCII_CI != 0)
}
