//! Names in requests.

use std::ffi::{CStr, OsStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use super::malformed::Malformed;

/// A path component: it is not empty and contains no `/`. It may be `.` or `..`.
///
/// The length is not checked; a handler replies with `ENAMETOOLONG`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name<'a>(pub(super) &'a CStr);

impl<'a> Name<'a> {
    /// Checks a name.
    ///
    /// # Errors
    /// When it is empty or contains `/`.
    pub fn new(name: &'a CStr) -> Result<Name<'a>, Malformed> {
        let bytes = name.to_bytes();
        if bytes.is_empty() || bytes.contains(&b'/') { Err(Malformed::Name) } else { Ok(Name(name)) }
    }

    /// Returns the bytes of the name without the final NUL.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0.to_bytes()
    }

    /// Returns the name as a C string, without a copy.
    #[must_use]
    pub fn as_cstr(self) -> &'a CStr {
        self.0
    }

    /// Returns the name as an `OsStr`, without a copy.
    #[must_use]
    pub fn as_os_str(self) -> &'a OsStr {
        OsStr::from_bytes(self.0.to_bytes())
    }

    /// Returns whether the name is `.` or `..`.
    #[must_use]
    pub fn is_dot(self) -> bool {
        matches!(self.as_bytes(), b"." | b"..")
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
