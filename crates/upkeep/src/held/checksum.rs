//! The checksum of a file, which an extended attribute holds: `DIGEST SIZE MTIME`. DIGEST is the BLAKE3 digest of the content
//! in hexadecimal digits. SIZE and MTIME are what the file had when the digest was taken: bytes, and seconds since 1970 with
//! nine decimal places. A file whose size and time are other than that has changed since, and its checksum says nothing.

use crate::survey::FileCopy;
use blake3::Hash;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::fmt::{self, Display};
use std::os::fd::BorrowedFd;

/// The name of the attribute.
pub(crate) const NAME: &str = "user.canopy.blake3";

/// Longer than any checksum.
const LONGEST: usize = 256;
const SECOND: i128 = 1_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Checksum {
    pub(crate) digest: Hash,
    pub(crate) size: u64,
    /// Nanoseconds since 1970.
    pub(crate) modified: i128,
}

impl Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, rest) = (self.modified.div_euclid(SECOND), self.modified.rem_euclid(SECOND));
        write!(f, "{} {} {seconds}.{rest:09}", self.digest, self.size)
    }
}

impl Checksum {
    pub(crate) fn of(digest: Hash, copy: &FileCopy) -> Checksum {
        Checksum { digest, size: copy.size(), modified: copy.modified() }
    }

    /// Returns whether a file is as it was when the checksum was taken, as far as size and time tell.
    pub(crate) fn is_current(&self, copy: &FileCopy) -> bool {
        (self.size, self.modified) == (copy.size(), copy.modified())
    }

    pub(crate) fn parse(text: &[u8]) -> Option<Checksum> {
        let text = std::str::from_utf8(text).ok()?;
        let (digest, rest) = text.split_once(' ')?;
        let (size, modified) = rest.split_once(' ')?;
        let (seconds, rest) = modified.split_once('.')?;
        let nanoseconds = Some(rest).filter(|rest| rest.len() == 9)?.parse::<u32>().ok()?;
        let modified = i128::from(seconds.parse::<i64>().ok()?) * SECOND + i128::from(nanoseconds);
        let digest = Hash::from_hex(digest).ok()?;
        let read = Checksum { digest, size: size.parse().ok()?, modified };
        // One spelling only.
        Some(read).filter(|read| read.to_string() == text)
    }

    /// Reads the checksum of a file. What is no checksum counts as none.
    ///
    /// # Errors
    /// `OPNOTSUPP` where the filesystem has no such attributes.
    pub(crate) fn read(file: BorrowedFd<'_>) -> Result<Option<Checksum>, Errno> {
        let mut value = [0; LONGEST];
        match rustix::fs::fgetxattr(file, NAME, value.as_mut_slice()) {
            Ok(length) => Ok(Checksum::parse(&value[..length])),
            Err(Errno::NODATA | Errno::RANGE) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Gives a file this checksum. Of its times, only the ctime changes.
    pub(crate) fn store(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        rustix::fs::fsetxattr(file, NAME, self.to_string().as_bytes(), XattrFlags::empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_have_one_spelling() {
        let digest = blake3::hash(b"text");
        for (modified, time) in [
            (0, "0.000000000"),
            (1_732_550_000_123_456_789, "1732550000.123456789"),
            (-1, "-1.999999999"),
            (-SECOND, "-1.000000000"),
        ] {
            let checksum = Checksum { digest, size: 4, modified };
            let text = format!("{digest} 4 {time}");
            assert_eq!(checksum.to_string(), text);
            assert_eq!(Checksum::parse(text.as_bytes()), Some(checksum));
        }
        let hex = digest.to_string();
        for wrong in [
            String::new(),
            hex.clone(),
            format!("{hex} 4"),
            format!("{hex} 4 1.5"),
            format!("{hex} 4 1.+00000005"),
            format!("{hex} 04 1.500000000"),
            format!("{hex} 4 1.500000000 "),
            format!("{} 4 1.500000000", &hex[1..]),
            format!("{} 4 1.500000000", hex.to_uppercase()),
        ] {
            assert_eq!(Checksum::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
