//! What is said of read caches, which have copies of files on a fast disk.

use crate::OsText;
use serde::{Deserialize, Serialize};

/// A copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedReport {
    /// Of its file in the pool, by which it was read last; empty if that is not known.
    pub path: OsText,
    /// The directory of copies.
    pub cache: OsText,
    /// Of the file, and what the copy takes.
    pub size: u64,
    pub used: u64,
    /// Opens that it has served since the process that serves the pool began.
    pub hits: u64,
    /// When its file was opened last, in seconds since 1970; 0 if that is not known.
    pub opened: u64,
    /// It was added, and nobody has read it since.
    pub added: bool,
}

/// How far a file is that is to have a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AddedReport {
    Cached {
        size: u64,
    },
    /// To be asked again.
    Waits {
        size: u64,
    },
    Copying {
        done: u64,
        size: u64,
    },
    /// No cache is for its path.
    NoCache,
    /// It is no file, or empty.
    NoFile,
    /// An errno.
    Failed(i32),
}
