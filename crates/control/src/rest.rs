//! Disks that rest, and who has woken them.

use crate::OsText;
use serde::{Deserialize, Serialize};

/// A disk, or what else a branch's filesystem is on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestReport {
    /// Its name in /dev.
    pub name: String,
    pub branches: Vec<OsText>,
    /// A disk that never sleeps, because nothing in it turns.
    pub solid: bool,
    /// The kernel has put it to sleep.
    pub suspended: bool,
    /// It has had nothing to do for so long that it may sleep.
    pub rests: bool,
    /// When it was last seen to do something, or else since when it is looked at, in seconds since the epoch.
    pub since: u64,
    /// How often it was woken, for how many seconds it had rested before that in all, and by whom the last times, the latest first.
    pub woken: u64,
    #[serde(default)]
    pub rested: u64,
    pub wakes: Vec<WakeReport>,
}

/// A disk that rested has done something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeReport {
    /// In seconds since the epoch.
    pub at: u64,
    /// For how many seconds it had done nothing.
    pub rested: u64,
    /// `client`: an operation of the pool that waited for the disk; `later`: one that changed or opened something shortly before;
    /// `pool`: the daemon of its own accord; `outside`: none of these, so a program past the pool, or one that has had a file open
    /// for long.
    pub by: String,
    /// The name of the process and its id, as far as the daemon could see them.
    pub program: Option<OsText>,
    pub pid: Option<u32>,
    /// The kernel's name in lower case, such as `lookup`; of the daemon, what it did.
    pub operation: Option<String>,
    /// In the pool. Only for who may learn the names of files.
    pub path: Option<OsText>,
}
