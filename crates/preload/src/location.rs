//! The text in which a pool tells where a file is. This file uses nothing else of the library, so that a fuzz target can have it
//! without the library's own open(2).

use std::ffi::CStr;

/// A file on its branch: its device, as major and minor number, its inode number, and its path.
pub(crate) struct Location<'a> {
    pub(crate) dev: (u32, u32),
    pub(crate) ino: u64,
    pub(crate) path: &'a CStr,
}

/// Parses a location into the file's identity and its path.
pub(crate) fn location(text: &CStr) -> Option<Location<'_>> {
    let (major, rest) = decimal(text.to_bytes_with_nul(), b':')?;
    let (minor, rest) = decimal(rest, b' ')?;
    let (ino, path) = decimal(rest, b' ')?;
    let path = CStr::from_bytes_with_nul(path).ok().filter(|path| path.to_bytes().starts_with(b"/"))?;
    Some(Location { dev: (u32::try_from(major).ok()?, u32::try_from(minor).ok()?), ino, path })
}

/// Parses a decimal number up to the byte `end`, and returns it with the rest.
fn decimal(text: &[u8], end: u8) -> Option<(u64, &[u8])> {
    let length = text.iter().position(|&byte| byte == end).filter(|&length| length > 0)?;
    let (digits, rest) = (text.get(..length)?, text.get(length + 1..)?);
    let number = digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })?;
    Some((number, rest))
}
