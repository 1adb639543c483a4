//! The control interface of a running pool: its words, for the server and for programs that ask, and the JSON of two
//! read-only keys that are not listed.
//!
//! Keys are extended attributes. Those of the control file show and change the pool; a few others are answered by every
//! file and directory of the pool. [`STATUS`] of the control file is a [`PoolReport`]; [`EXPLAIN`] and a function, and
//! where it applies a slash and a name, is an [`ExplainReport`] of any file or directory.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The name of the control file in the root of a pool.
pub const CONTROL_FILE: &str = ".mergerfs";
/// What the attribute of a key begins with.
pub const PREFIX: &str = "user.mergerfs.";

/// Control file: a [`PoolReport`].
pub const STATUS: &str = "canopy.status";
/// Control file: the version of the server.
pub const VERSION: &str = "version";
/// Control file: the process id of the server.
pub const PID: &str = "pid";
/// Control file: the paths of the branches, joined by colons.
pub const SRCMOUNTS: &str = "srcmounts";
/// Control file: what a key that runs a command begins with.
pub const COMMAND: &str = "cmd.";
/// The keys of the control file that no option stands behind. They are never set.
pub const READ_ONLY: [&str; 3] = [VERSION, PID, SRCMOUNTS];

/// Any file: what a key that answers with an [`ExplainReport`] begins with.
pub const EXPLAIN: &str = "canopy.explain.";
/// Any file: the branch that it is on.
pub const BASEPATH: &str = "basepath";
/// Any file: its path in the pool.
pub const RELPATH: &str = "relpath";
/// Any file: its path on its branch.
pub const FULLPATH: &str = "fullpath";
/// Any file: its paths on all branches that have it, joined by NUL.
pub const ALLPATHS: &str = "allpaths";
/// Any file: `MAJOR:MINOR INODE PATH` of the file on its branch, for the preload library.
pub const PLACE: &str = "place";

/// The largest value of an attribute, and the largest list of names (XATTR_SIZE_MAX, XATTR_LIST_MAX).
pub const LARGEST_VALUE: usize = 65_536;
/// The longest key: XATTR_NAME_MAX without the prefix.
pub const LONGEST_KEY: usize = 255 - PREFIX.len();

/// The attribute of a key.
pub fn attribute(key: &str) -> String {
    format!("{PREFIX}{key}")
}

/// The key of an attribute, which need not be UTF-8; `None` for an attribute that is none of the control interface.
pub fn key_of(attribute: &[u8]) -> Option<&[u8]> {
    attribute.strip_prefix(PREFIX.as_bytes())
}

/// The control file of the pool at a mountpoint.
pub fn control_file(mountpoint: &Path) -> PathBuf {
    mountpoint.join(CONTROL_FILE)
}

/// Reads a key of a file of a pool.
pub fn read(path: &Path, key: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; LARGEST_VALUE];
    let length = rustix::fs::getxattr(path, attribute(key), value.as_mut_slice())?;
    value.truncate(length);
    Ok(value)
}

/// A path or another OS string as JSON: a text, or an array of bytes where it is not UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OsText {
    Text(String),
    Bytes(Vec<u8>),
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

    /// Returns the text for people, on one line.
    pub fn one_line(&self) -> String {
        crate::text::one_line(&self.to_os_string().to_string_lossy())
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

/// A pool, as its daemon knows it without asking any branch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolReport {
    pub version: String,
    pub pid: u32,
    /// How requests travel: `dev-fuse` or `io-uring`.
    pub transport: String,
    /// Worker threads.
    pub threads: usize,
    /// What kernel and daemon agreed upon.
    pub kernel: KernelReport,
    /// Every option that has a value, by name.
    pub options: BTreeMap<String, String>,
    /// Options that somebody set.
    pub given: Vec<String>,
    pub branches: Vec<BranchReport>,
    /// What the daemon has kept, and is kept from. A daemon of an older version does not tell.
    #[serde(default)]
    pub security: SecurityReport,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SecurityReport {
    /// Those that are effective, by their names in lower case (capabilities(7)).
    pub capabilities: Vec<String>,
    /// Its workers can gain no privilege by executing something.
    pub no_new_privs: bool,
    /// Its workers reach nothing but the branches.
    pub landlock: bool,
    /// An ACL has been met that does not hold.
    #[serde(default)]
    pub unheeded_acls: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KernelReport {
    /// Of the FUSE protocol: `7.45`.
    pub protocol: String,
    /// In use, by the kernel's names in lower case.
    pub features: Vec<String>,
    /// Wanted, and not offered by this kernel.
    pub missing: Vec<String>,
    /// 0 without passthrough.
    pub max_stack_depth: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BranchReport {
    pub path: OsText,
    /// `RW`, `RO` or `NC`.
    pub mode: String,
    /// The minfreespace in force, in bytes.
    pub min_free: u64,
    /// The directory that the daemon holds open; 0 for a branch that it holds none of.
    pub dev: u64,
    pub ino: u64,
    /// False when files on it cannot be passed through.
    pub passes_through: bool,
    /// What is wrong with it, as far as the pool has noticed.
    #[serde(default)]
    pub illness: Option<IllnessReport>,
    /// Why changes on it cannot be watched for, where that should be possible or was asked for.
    #[serde(default)]
    pub unwatched: Option<String>,
    /// It is listed, and none of the pool until there is a directory at its path.
    #[serde(default)]
    pub awaited: bool,
}

/// Why a pool does not rely on a branch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IllnessReport {
    /// `read-only`, `failing`, `gone` or `hung`.
    pub health: String,
    /// Seconds since the epoch.
    pub since: u64,
    /// The error behind it, in words.
    pub cause: String,
}

impl fmt::Display for SecurityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.capabilities.as_slice() {
            [] => write!(f, "no capabilities")?,
            some => write!(f, "capabilities {}", some.join(", "))?,
        }
        let privileges = if self.no_new_privs { "; no new privileges" } else { "" };
        write!(f, "{privileges}; landlock {}", if self.landlock { "on" } else { "off" })
    }
}

/// What a policy would choose, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExplainReport {
    pub func: String,
    /// `action`, `create` or `search`.
    pub category: String,
    pub policy: String,
    /// Whose presence on the branches counts, from the root of the pool and without a leading slash.
    pub looked_at: OsText,
    /// Rename and link keep a file on the branches that hold the directory of its new name.
    pub preserves_paths: bool,
    /// Chance decides: asked again, the outcome may be another.
    pub by_chance: bool,
    /// The branches that are acted on; empty when it fails.
    pub chosen: Vec<OsText>,
    pub error: Option<ExplainError>,
    /// In branch order.
    pub branches: Vec<BranchVerdict>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExplainError {
    pub errno: i32,
    /// `ENOSPC`, or the number where it has no name here.
    pub name: String,
    pub why: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BranchVerdict {
    pub path: OsText,
    pub mode: String,
    pub verdict: Verdict,
    /// Between 0 and 1, where chance decides.
    pub chance: Option<f64>,
    /// It holds what is looked at.
    pub present: bool,
    /// Bytes.
    pub min_free: u64,
    /// Bytes; null when they could not be read.
    pub available: Option<u64>,
    pub used: Option<u64>,
    /// The filesystem is mounted read-only.
    pub read_only: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is acted on.
    Chosen,
    /// Chance may choose it.
    Candidate,
    /// It was admitted, and the policy prefers another.
    Lost,
    /// Its mode does not allow it; for RW, that it lacks the symlink which is followed here.
    Mode,
    /// The branch fails, has become read-only, or does not answer.
    Unwell,
    /// It does not hold what is looked at.
    Absent,
    /// Its free space could not be read.
    SpaceUnknown,
    /// Its filesystem is mounted read-only.
    ReadOnly,
    /// Less is available than its minfreespace.
    BelowMinFree,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_survive_whatever_bytes_they_hold() {
        for bytes in [&b"/mnt/a b"[..], b"/mnt/\xff\n", "/mnt/\u{e9}".as_bytes()] {
            let name = OsText::from(OsStr::from_bytes(bytes));
            let json = serde_json::to_string(&name).unwrap();
            let back: OsText = serde_json::from_str(&json).unwrap();
            assert_eq!(back.to_os_string().as_bytes(), bytes, "{json}");
        }
        assert_eq!(serde_json::to_string(&OsText::from(Path::new("/a"))).unwrap(), "\"/a\"");
    }
}
