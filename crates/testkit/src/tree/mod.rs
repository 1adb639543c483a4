//! Exact comparison of directory trees.
//!
//! A [`Tree`] is all that a user can observe of a tree, by relative path in bytes. Two trees made alike on different
//! filesystems compare equal: what legitimately differs (inode numbers, block counts, sizes of directories) is left out.

mod capture;
mod diff;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

pub use diff::Diff;

/// What to look at. [`Fields::default`] looks at everything that survives a faithful copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields {
    pub content: bool,
    pub owner: bool,
    pub xattrs: bool,
    /// Modification times of everything but directories, in nanoseconds.
    pub mtime: bool,
    pub dir_mtime: bool,
    /// Number of links, and which names share one file.
    pub links: bool,
    /// Where the data is, by `SEEK_DATA`. Only comparable between filesystems of one kind: XFS allocates ahead.
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
    /// The default without directory times, which every create in a directory moves.
    pub fn without_dir_times() -> Self {
        Self { dir_mtime: false, ..Self::default() }
    }

    /// Everything, sparseness too.
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

/// One name in a tree. A field which was not asked for holds its default everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    /// Permission bits with suid, sgid and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes; zero for all but files and symlinks.
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
    /// For a file with several names in the tree: the first of them.
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

    /// Leaves out a name and all below it, such as `lost+found`.
    #[must_use]
    pub fn without(mut self, path: impl AsRef<[u8]>) -> Self {
        let path = path.as_ref();
        self.entries.retain(|name, _| {
            name.strip_prefix(path).is_none_or(|rest| !rest.is_empty() && !rest.starts_with(b"/"))
        });
        self
    }

    /// How `actual` differs from this, the expected tree.
    pub fn diff(&self, actual: &Self) -> Diff {
        Diff::between(self, actual)
    }

    /// # Panics
    /// When the trees differ; the message lists where.
    #[track_caller]
    pub fn assert_same(&self, actual: &Self) {
        let diff = self.diff(actual);
        assert!(diff.is_empty(), "the trees differ (- expected, + found):\n{diff}");
    }

    /// What several branches hold together.
    ///
    /// Directories may be in several branches and must agree there on kind, mode, owner and xattrs; the newest
    /// modification time counts. Anything else must be in one branch only. The error lists what breaks this.
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
