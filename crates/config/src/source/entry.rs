//! An option of a config file before it is applied.

use std::ffi::OsString;

/// One line of a config file: an option and its value, or the error in it.
pub(super) struct Entry {
    pub line: usize,
    pub option: Result<(String, OsString), String>,
}
