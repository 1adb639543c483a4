//! The bytes that follow a request's header, taken apart in order.

use std::ffi::CStr;

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::malformed::Malformed;
use super::name::Name;

/// What follows the header.
///
/// On `/dev/fuse` everything is in one piece. In an io_uring entry the operation's first structure stands apart, in
/// an area of fixed size, and the rest follows in the payload.
pub(super) struct Body<'a> {
    operation: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    /// A body in one piece.
    pub(super) fn contiguous(bytes: &'a [u8]) -> Body<'a> {
        Body { operation: None, rest: bytes }
    }

    /// A body whose first structure stands apart.
    pub(super) fn split(operation: &'a [u8], payload: &'a [u8]) -> Body<'a> {
        Body { operation: Some(operation), rest: payload }
    }

    /// Takes off so many bytes at the end.
    pub(super) fn split_off(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let cut = self.rest.len().checked_sub(len).ok_or(Malformed::Extension)?;
        let (rest, end) = self.rest.split_at(cut);
        self.rest = rest;
        Ok(end)
    }

    /// Whether it is in one piece and of this length.
    pub(super) fn is_all(&self, len: usize) -> bool {
        self.operation.is_none() && self.rest.len() == len
    }

    /// The operation's structure. A longer one, from a newer kernel, is read by the part known here.
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

    /// The next string, up to its NUL.
    pub(super) fn string(&mut self) -> Result<&'a CStr, Malformed> {
        let string = CStr::from_bytes_until_nul(self.rest).map_err(|_| Malformed::Name)?;
        self.rest = &self.rest[string.count_bytes() + 1..];
        Ok(string)
    }

    /// The next path component.
    pub(super) fn name(&mut self) -> Result<Name<'a>, Malformed> {
        Name::new(self.string()?)
    }

    /// The next string, after which nothing follows.
    pub(super) fn last_string(&mut self) -> Result<&'a CStr, Malformed> {
        let string = self.string()?;
        self.end()?;
        Ok(string)
    }

    /// The next path component, after which nothing follows.
    pub(super) fn last_name(&mut self) -> Result<Name<'a>, Malformed> {
        let name = self.name()?;
        self.end()?;
        Ok(name)
    }

    /// The name of an extended attribute: anything but empty.
    pub(super) fn xattr_name(&mut self) -> Result<&'a CStr, Malformed> {
        let name = self.string()?;
        if name.is_empty() { Err(Malformed::Name) } else { Ok(name) }
    }

    /// The name of an extended attribute, after which nothing follows.
    pub(super) fn last_xattr_name(&mut self) -> Result<&'a CStr, Malformed> {
        let name = self.xattr_name()?;
        self.end()?;
        Ok(name)
    }

    /// The data, which must be all that is left.
    pub(super) fn data(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        if self.rest.len() == len as usize {
            Ok(std::mem::take(&mut self.rest))
        } else {
            Err(Malformed::DataLength)
        }
    }

    /// Whether nothing follows a string: a name must not be cut by a NUL inside it.
    fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed::Name) }
    }

    pub(super) fn remaining(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}
