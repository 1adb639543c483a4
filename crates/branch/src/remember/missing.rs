//! The branches that are missing, as the pool asks them: all at once.

use super::{Known, Record, Row};
use canopy_base::inode_number::BranchSeed;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A branch of the pool that is not there.
#[derive(Clone)]
pub struct MissingBranch {
    pub path: PathBuf,
    /// The branch's share in the inode numbers of its files.
    pub seed: BranchSeed,
    /// `None` if the branch was never read.
    pub record: Option<Arc<Record>>,
}

/// The missing branches, in the order of the list.
#[derive(Clone, Debug, Default)]
pub struct Missing {
    list: Arc<[MissingBranch]>,
    /// When one has gone or come last, if that was while this process served.
    changed: Option<Instant>,
}

/// A name on a missing branch.
#[derive(Clone, Debug)]
pub struct MissingName<'m> {
    pub branch: &'m MissingBranch,
    pub row: Row,
}

/// The names of a directory on all missing branches.
#[derive(Debug, Default)]
pub struct Names<'m> {
    /// Each name once.
    pub found: BTreeMap<Box<[u8]>, MissingName<'m>>,
    /// One of them has the directory.
    pub exists: bool,
    /// One of them may have more names.
    pub unknown: bool,
    /// One of them was never read.
    pub unread: bool,
}

impl fmt::Debug for MissingBranch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MissingBranch").field(&self.path).finish()
    }
}

impl MissingBranch {
    #[must_use]
    pub fn new(path: &Path, record: Option<Arc<Record>>) -> MissingBranch {
        use std::os::unix::ffi::OsStrExt;
        MissingBranch { path: path.to_owned(), seed: BranchSeed::new(path.as_os_str().as_bytes()), record }
    }
}

impl Missing {
    /// Returns these, after those `before`.
    #[must_use]
    pub fn new(list: Vec<MissingBranch>, before: &Missing) -> Missing {
        let same = list.len() == before.list.len()
            && list.iter().zip(before.list.iter()).all(|(one, other)| one.path == other.path);
        let changed = if same { before.changed } else { Some(Instant::now()) };
        Missing { list: list.into(), changed }
    }

    pub fn iter(&self) -> std::slice::Iter<'_, MissingBranch> {
        self.list.iter()
    }

    /// Returns whether one has gone or come so short a time ago that a listing may have begun before.
    #[must_use]
    pub fn has_changed(&self, within: Duration) -> bool {
        self.changed.is_some_and(|changed| changed.elapsed() < within)
    }

    /// Returns whether no branch is missing. Costs one load.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns what is known of a name: that of the first branch that has it. A branch that was never read has no names.
    #[must_use]
    pub fn name(&self, dir: &[u8], name: &[u8]) -> Known<MissingName<'_>> {
        let mut unknown = false;
        for branch in self.list.iter() {
            match branch.record.as_ref().map_or(Known::No, |record| record.name(dir, name)) {
                Known::Yes(row) => return Known::Yes(MissingName { branch, row }),
                Known::Unknown => unknown = true,
                Known::No => {}
            }
        }
        if unknown { Known::Unknown } else { Known::No }
    }

    /// As [`Missing::name`], of a path. The root is on all of them.
    #[must_use]
    pub fn path(&self, path: &[u8]) -> Known<MissingName<'_>> {
        if !path.is_empty() {
            let (dir, name) = canopy_base::path::split(path);
            return self.name(dir, name);
        }
        for branch in self.list.iter() {
            if let Some(Known::Yes(root)) = branch.record.as_ref().map(|record| record.dir(b"")) {
                let row = Row { name: Box::default(), attr: root.own, link: None, checksum: None };
                return Known::Yes(MissingName { branch, row });
            }
        }
        Known::Unknown
    }

    /// Returns the names of a directory.
    #[must_use]
    pub fn names(&self, dir: &[u8]) -> Names<'_> {
        let mut names = Names::default();
        for branch in self.list.iter() {
            let Some(record) = &branch.record else {
                names.unread = true;
                continue;
            };
            match record.dir(dir) {
                Known::Unknown => names.unknown = true,
                Known::No => {}
                Known::Yes(listing) => {
                    names.exists = true;
                    for row in &listing.rows {
                        // Without what was removed from the pool since.
                        let Known::Yes(row) = record.name(dir, &row.name) else { continue };
                        names.found.entry(row.name.clone()).or_insert(MissingName { branch, row });
                    }
                }
            }
        }
        names
    }

    /// Has an empty directory not be remembered any more, which was removed from the pool.
    pub fn remove(&self, path: &[u8]) {
        self.list.iter().filter_map(|branch| branch.record.as_ref()).for_each(|record| record.remove(path));
    }
}
