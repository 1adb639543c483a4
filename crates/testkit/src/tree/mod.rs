//! Exact comparison of directory trees.
//!
//! A [`Tree`] holds all that a user can observe of a directory tree, by relative path in bytes. It leaves out what differs
//! between filesystems (inode numbers, block counts, sizes of directories), so that equal trees on different filesystems
//! compare equal.

mod capture;
mod diff;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

pub use capture::hash;
pub use diff::Diff;

/// What to capture. [`Fields::default`] captures everything that a faithful copy preserves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields {
    pub content: bool,
    pub owner: bool,
    pub xattrs: bool,
    /// Modification times, except those of directories, in nanoseconds.
    pub mtime: bool,
    pub dir_mtime: bool,
    /// Link counts, and which names share a file.
    pub links: bool,
    /// Where the data is, by `SEEK_DATA`. Comparable only between filesystems of one kind, because XFS allocates ahead.
    pub sparse: bool,
    /// The root directory itself, under the empty path.
    pub root: bool,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            content: true,
            owner: true,
            xattrs: true,
            mtime: true,
            dir_mtime: true,
            links: true,
            sparse: false,
            root: false,
        }
    }
}

impl Fields {
    /// Returns the default without the times of directories, which change with every create in a directory.
    pub fn without_dir_times() -> Self {
        Self { dir_mtime: false, ..Self::default() }
    }

    /// Returns all fields.
    pub fn all() -> Self {
        Self { sparse: true, root: true, ..Self::default() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// A name in a tree. Fields that were not requested have their default value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    /// Permission bits with suid, sgid and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// In bytes; zero except for files and symlinks.
    pub size: u64,
    /// Hash of the content.
    pub hash: Option<u64>,
    pub target: Option<Vec<u8>>,
    /// Device number of a device node.
    pub rdev: u64,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Seconds and nanoseconds.
    pub mtime: Option<(i64, u32)>,
    /// Zero for directories.
    pub nlink: u64,
    /// The first name of a file with several names in the tree.
    pub group: Option<Vec<u8>>,
    /// Start and end of each run of data.
    pub data: Option<Vec<(u64, u64)>>,
}

/// A snapshot of a directory tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    pub entries: BTreeMap<Vec<u8>, Entry>,
}

impl Tree {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn get(&self, path: impl AsRef<[u8]>) -> Option<&Entry> {
        self.entries.get(path.as_ref())
    }

    /// Removes an entry and all entries below it, such as `lost+found`.
    #[must_use]
    pub fn without(mut self, path: impl AsRef<[u8]>) -> Self {
        let path = path.as_ref();
        self.entries.retain(|name, _| {
            name.strip_prefix(path).is_none_or(|rest| !rest.is_empty() && !rest.starts_with(b"/"))
        });
        self
    }

    /// Returns how `actual` differs from this, the expected tree.
    pub fn diff(&self, actual: &Self) -> Diff {
        Diff::between(self, actual)
    }

    /// Asserts that `actual` equals this, the expected tree.
    ///
    /// # Panics
    /// If the trees differ. The message lists the differences.
    #[track_caller]
    pub fn assert_same(&self, actual: &Self) {
        let diff = self.diff(actual);
        assert!(diff.is_empty(), "the trees differ (- expected, + found):\n{diff}");
    }

    /// Returns the union of several branches.
    ///
    /// A directory may be on several branches if kind, mode, owner and xattrs agree. The union has its newest modification
    /// time. All other entries must be on one branch only. The error lists violations.
    pub fn union<'a>(branches: impl IntoIterator<Item = &'a Self>) -> Result<Self, String> {
        let mut whole = Self::default();
        let mut faults = Vec::new();
        for (index, branch) in branches.into_iter().enumerate() {
            for (path, entry) in &branch.entries {
                match whole.entries.entry(path.clone()) {
                    Slot::Vacant(slot) => {
                        slot.insert(entry.clone());
                    }
                    Slot::Occupied(mut slot) => {
                        let known = slot.get_mut();
                        let newest = known.mtime.max(entry.mtime);
                        let alike = Entry { mtime: known.mtime, ..entry.clone() };
                        let shown = String::from_utf8_lossy(path).into_owned();
                        if known.kind != Kind::Dir || entry.kind != Kind::Dir {
                            faults.push(format!("{shown}: also in branch {index}"));
                        } else if *known != alike {
                            let fields = diff::fields(known, &alike).join(", ");
                            faults.push(format!("{shown}: differs in branch {index}: {fields}"));
                        }
                        known.mtime = newest;
                    }
                }
            }
        }
        if faults.is_empty() { Ok(whole) } else { Err(faults.join("\n")) }
    }
}
