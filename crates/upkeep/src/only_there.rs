//! What would disappear from a pool without some of its branches.

use crate::error::Result;
use crate::pool_link::PoolLink;
use crate::survey::walk_all;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to count at most: a question must not wait for a whole disk.
const PATIENCE: Duration = Duration::from_secs(3);

/// Files that no other branch holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OnlyThere {
    pub files: u64,
    /// What they take on the disks.
    pub bytes: u64,
    /// These are all; otherwise counting was cut short.
    pub is_all: bool,
}

/// Counts the files of the pool at a mountpoint that only these branches hold. What belongs to its disk does not count.
///
/// # Errors
/// If the pool does not answer.
pub fn only_there(mountpoint: &Path, branches: &[PathBuf]) -> Result<OnlyThere> {
    let pool = PoolLink::named(mountpoint)?;
    let going = |index: usize| branches.contains(&pool.branches[index].path);
    let until = Instant::now() + PATIENCE;
    let mut only = OnlyThere { is_all: true, ..OnlyThere::default() };
    walk_all(&pool, &[PathBuf::new()], &mut |entry| {
        if Instant::now() > until {
            only.is_all = false;
            return false;
        }
        // What belongs to its disk is not missed, and a directory without the branch has nothing that goes.
        if pool.keep.stays(&entry.path) || !entry.copies.iter().any(|copy| going(copy.branch)) {
            return false;
        }
        if !entry.is_dir() && entry.copies.iter().all(|copy| going(copy.branch)) {
            only.files += 1;
            only.bytes += entry.first().used();
        }
        true
    })?;
    Ok(only)
}
