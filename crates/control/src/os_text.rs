//! Paths and names in reports.

use canopy_sys::shown::Show as _;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A path or another OS string as JSON: a string, or an array of bytes if it is not UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OsText {
    Text(String),
    Bytes(Vec<u8>),
}

impl Default for OsText {
    fn default() -> Self {
        OsText::Text(String::new())
    }
}

impl OsText {
    pub fn to_os_string(&self) -> OsString {
        match self {
            OsText::Text(text) => text.into(),
            OsText::Bytes(bytes) => OsString::from_vec(bytes.clone()),
        }
    }

    pub fn to_path(&self) -> PathBuf {
        self.to_os_string().into()
    }

    /// Returns the text on one line, for messages.
    pub fn one_line(&self) -> String {
        self.to_os_string().shown().to_string()
    }
}

impl From<&OsStr> for OsText {
    fn from(text: &OsStr) -> Self {
        match text.to_str() {
            Some(text) => OsText::Text(text.to_owned()),
            None => OsText::Bytes(text.as_bytes().to_vec()),
        }
    }
}

impl From<&Path> for OsText {
    fn from(path: &Path) -> Self {
        OsText::from(path.as_os_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_any_bytes_survive_json() {
        for bytes in [&b"/mnt/a b"[..], b"/mnt/\xff\n", "/mnt/\u{e9}".as_bytes()] {
            let name = OsText::from(OsStr::from_bytes(bytes));
            let json = serde_json::to_string(&name).unwrap();
            let back: OsText = serde_json::from_str(&json).unwrap();
            assert_eq!(back.to_os_string().as_bytes(), bytes, "{json}");
        }
        assert_eq!(serde_json::to_string(&OsText::from(Path::new("/a"))).unwrap(), "\"/a\"");
    }
}
