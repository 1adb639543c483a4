//! The body of a request, parsed from front to back.

use std::ffi::CStr;

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::malformed::Malformed;
use super::name::Name;

/// The bytes after the header that are not parsed yet.
///
/// On `/dev/fuse` the body is contiguous. In an io_uring entry the operation's structure is in a separate area of fixed
/// size, and the rest of the body is in the payload.
pub(super) struct Body<'a> {
    operation: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    /// Returns a contiguous body.
    pub(super) fn contiguous(bytes: &'a [u8]) -> Body<'a> {
        Body { operation: None, rest: bytes }
    }

    /// Returns a body whose operation structure is in a separate area.
    pub(super) fn split(operation: &'a [u8], payload: &'a [u8]) -> Body<'a> {
        Body { operation: Some(operation), rest: payload }
    }

    /// Removes `len` bytes from the end and returns them.
    pub(super) fn split_off(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let cut = self.rest.len().checked_sub(len).ok_or(Malformed::Extension)?;
        let (rest, end) = self.rest.split_at(cut);
        self.rest = rest;
        Ok(end)
    }

    /// Returns whether the body is contiguous and has this length.
    pub(super) fn is_all(&self, len: usize) -> bool {
        self.operation.is_none() && self.rest.len() == len
    }

    /// Parses the operation's structure. Of a longer one, from a newer kernel, only the known part is read.
    pub(super) fn fixed<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Malformed> {
        match self.operation.take() {
            Some(area) => T::read_from_prefix(area).map(|(value, _)| value).map_err(|_| Malformed::Short),
            None => {
                let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| Malformed::Short)?;
                self.rest = rest;
                Ok(value)
            }
        }
    }

    /// Parses a string, which ends with NUL.
    pub(super) fn string(&mut self) -> Result<&'a CStr, Malformed> {
        let string = CStr::from_bytes_until_nul(self.rest).map_err(|_| Malformed::Name)?;
        self.rest = &self.rest[string.count_bytes() + 1..];
        Ok(string)
    }

    /// Parses a path component.
    pub(super) fn name(&mut self) -> Result<Name<'a>, Malformed> {
        Name::new(self.string()?)
    }

    /// Parses a string that must end the body.
    pub(super) fn last_string(&mut self) -> Result<&'a CStr, Malformed> {
        let string = self.string()?;
        self.end()?;
        Ok(string)
    }

    /// Parses a path component that must end the body.
    pub(super) fn last_name(&mut self) -> Result<Name<'a>, Malformed> {
        let name = self.name()?;
        self.end()?;
        Ok(name)
    }

    /// Parses the name of an extended attribute, which must not be empty.
    pub(super) fn xattr_name(&mut self) -> Result<&'a CStr, Malformed> {
        let name = self.string()?;
        if name.is_empty() { Err(Malformed::Name) } else { Ok(name) }
    }

    /// Parses the name of an extended attribute that must end the body.
    pub(super) fn last_xattr_name(&mut self) -> Result<&'a CStr, Malformed> {
        let name = self.xattr_name()?;
        self.end()?;
        Ok(name)
    }

    /// Returns the rest of the body, which must have this length.
    pub(super) fn data(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        if self.rest.len() == len as usize {
            Ok(std::mem::take(&mut self.rest))
        } else {
            Err(Malformed::DataLength)
        }
    }

    /// Checks that nothing follows a string: otherwise a NUL inside a name would truncate it.
    fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed::Name) }
    }

    /// Returns the rest of the body.
    pub(super) fn remaining(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}
