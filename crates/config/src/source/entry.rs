//! One option as a config file says it, before it is applied.

use std::ffi::OsString;

/// What one line says: an option and its value, or why it says nothing.
pub(super) struct Entry {
    pub line: usize,
    pub option: Result<(String, OsString), String>,
}
