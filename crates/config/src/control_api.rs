//! What a running pool tells about itself: the answers of two read-only keys, as the daemon writes them and
//! the commands read them. Both are JSON, and neither is listed.
//!
//! `user.mergerfs.canopy.status` of the control file is a [`PoolTold`];
//! `user.mergerfs.canopy.explain.FUNC[/NAME]` of any file or directory is an [`ExplainTold`].

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The key of the control file that answers with a [`PoolTold`].
pub const STATUS: &str = "canopy.status";
/// What the keys that answer with an [`ExplainTold`] begin with.
pub const EXPLAIN: &str = "canopy.explain.";

/// A path as JSON: a text, or an array of bytes where it is none.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Name {
    Text(String),
    Bytes(Vec<u8>),
}

impl Name {
    pub fn to_os_string(&self) -> OsString {
        match self {
            Name::Text(text) => text.into(),
            Name::Bytes(bytes) => OsString::from_vec(bytes.clone()),
        }
    }

    pub fn to_path(&self) -> PathBuf {
        self.to_os_string().into()
    }

    /// For people: one line.
    pub fn shown(&self) -> String {
        crate::text::one_line(&self.to_os_string().to_string_lossy())
    }
}

impl From<&OsStr> for Name {
    fn from(text: &OsStr) -> Self {
        match text.to_str() {
            Some(text) => Name::Text(text.to_owned()),
            None => Name::Bytes(text.as_bytes().to_vec()),
        }
    }
}

impl From<&Path> for Name {
    fn from(path: &Path) -> Self {
        Name::from(path.as_os_str())
    }
}

/// A pool, as its daemon knows it without asking any branch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolTold {
    pub version: String,
    pub pid: u32,
    /// How requests travel: `dev-fuse` or `io-uring`.
    pub transport: String,
    /// Worker threads.
    pub threads: usize,
    /// What kernel and daemon agreed upon.
    pub kernel: KernelTold,
    /// Every option that has a value, by name.
    pub options: BTreeMap<String, String>,
    /// Options that somebody set.
    pub given: Vec<String>,
    pub branches: Vec<BranchTold>,
    /// What the daemon has kept, and is kept from. A daemon of an older version does not tell.
    #[serde(default)]
    pub security: SecurityTold,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SecurityTold {
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
pub struct KernelTold {
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
pub struct BranchTold {
    pub path: Name,
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
    pub illness: Option<IllnessTold>,
    /// Why changes on it cannot be watched for, where that should be possible or was asked for.
    #[serde(default)]
    pub unwatched: Option<String>,
    /// It is listed, and none of the pool until there is a directory at its path.
    #[serde(default)]
    pub awaited: bool,
}

/// Why a pool does not rely on a branch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IllnessTold {
    /// `read-only`, `failing`, `gone` or `hung`.
    pub health: String,
    /// Seconds since the epoch.
    pub since: u64,
    /// The error behind it, in words.
    pub cause: String,
}

impl fmt::Display for SecurityTold {
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
pub struct ExplainTold {
    pub func: String,
    /// `action`, `create` or `search`.
    pub category: String,
    pub policy: String,
    /// Whose presence on the branches counts, from the root of the pool and without a leading slash.
    pub looked_at: Name,
    /// Rename and link keep a file on the branches that hold the directory of its new name.
    pub preserves_paths: bool,
    /// Chance decides: asked again, the outcome may be another.
    pub by_chance: bool,
    /// The branches that are acted on; empty when it fails.
    pub chosen: Vec<Name>,
    pub error: Option<ErrorTold>,
    /// In branch order.
    pub branches: Vec<VerdictTold>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ErrorTold {
    pub errno: i32,
    /// `ENOSPC`, or the number where it has no name here.
    pub name: String,
    pub why: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VerdictTold {
    pub path: Name,
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
            let name = Name::from(OsStr::from_bytes(bytes));
            let json = serde_json::to_string(&name).unwrap();
            let back: Name = serde_json::from_str(&json).unwrap();
            assert_eq!(back.to_os_string().as_bytes(), bytes, "{json}");
        }
        assert_eq!(serde_json::to_string(&Name::from(Path::new("/a"))).unwrap(), "\"/a\"");
    }
}
