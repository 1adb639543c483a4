//! Operations and their outcomes. The `Debug` form of an operation is Rust code.

use rustix::io::Errno;

/// How many files are open at most.
pub const FILE_SLOTS: usize = 3;
/// How many directories are open at most.
pub const DIR_SLOTS: usize = 2;

/// A path relative to the root. The root itself is the empty path.
pub(super) type Path = &'static str;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Create {
    No,
    Missing,
    /// `O_EXCL`
    Exclusive,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameHow {
    Replace,
    NoReplace,
    Exchange,
}

/// A mode of fallocate(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    Extend,
    KeepSize,
    PunchHole,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    Data,
    Hole,
}

/// The target of an operation: a path, an open file or an open directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    Path(Path),
    File(usize),
    Dir(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Mode(u32),
    Owner {
        uid: Option<u32>,
        gid: Option<u32>,
    },
    /// In seconds; see [`is_explicit`].
    Mtime(i64),
    Size(u64),
}

/// An operation on extended attributes. Their names start with `user.`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrHow {
    Get(&'static str),
    Set {
        name: &'static str,
        value: &'static str,
    },
    /// `XATTR_CREATE`
    Create {
        name: &'static str,
        value: &'static str,
    },
    /// `XATTR_REPLACE`
    Replace {
        name: &'static str,
        value: &'static str,
    },
    Remove(&'static str),
    List,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Mkdir {
        path: Path,
        mode: u32,
    },
    Mknod {
        path: Path,
        fifo: bool,
        mode: u32,
    },
    Symlink {
        path: Path,
        target: &'static str,
    },
    Open {
        slot: usize,
        path: Path,
        access: Access,
        create: Create,
        truncate: bool,
        append: bool,
        mode: u32,
    },
    Tmpfile {
        slot: usize,
        dir: Path,
        exclusive: bool,
        mode: u32,
    },
    Read {
        slot: usize,
        offset: u64,
        len: usize,
    },
    Write {
        slot: usize,
        offset: u64,
        len: usize,
        seed: u8,
    },
    Allocate {
        slot: usize,
        how: Reserve,
        offset: u64,
        len: u64,
    },
    Seek {
        slot: usize,
        whence: Whence,
        offset: u64,
    },
    Sync {
        slot: usize,
    },
    CopyRange {
        from: usize,
        from_offset: u64,
        to: usize,
        to_offset: u64,
        len: usize,
    },
    Close {
        slot: usize,
    },
    Unlink {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    Rename {
        from: Path,
        to: Path,
        how: RenameHow,
    },
    Link {
        from: Path,
        to: Path,
    },
    /// Links the file of a slot, which may have no name left.
    LinkOpen {
        slot: usize,
        to: Path,
    },
    Readlink {
        path: Path,
    },
    Change {
        on: On,
        change: Change,
    },
    Xattr {
        on: On,
        how: XattrHow,
    },
    Stat {
        on: On,
    },
    /// Compares the file at a path with an open one.
    Same {
        on: On,
        path: Path,
    },
    OpenDir {
        slot: usize,
        path: Path,
    },
    CloseDir {
        slot: usize,
    },
    SyncDir {
        slot: usize,
    },
    List {
        on: On,
    },
    Statfs {
        path: Path,
    },
    /// The kernel is short of memory and forgets nodes.
    Forget,
}

/// What stat(2) reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// Type and permissions.
    pub mode: u32,
    /// The link count; zero for directories.
    pub nlink: u64,
    /// The link count of a directory, which is 1 where subdirectories are not counted.
    pub dir_nlink: u64,
    pub uid: u32,
    pub gid: u32,
    /// Zero for directories.
    pub size: u64,
    /// Only if an operation set it, and nothing has changed it since.
    pub mtime: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Failed(Errno),
    Bytes(Vec<u8>),
    Number(u64),
    Yes(bool),
    Stat(Shown),
    /// Names with `DT_*`, sorted.
    Names(Vec<(Vec<u8>, u8)>),
    /// The slot is empty.
    Skipped,
    /// The subject contradicts itself. Differs from every outcome.
    Broken(String),
}

impl Outcome {
    /// Returns whether a subject may return `other` where a plain directory returns `self`.
    pub fn allows(&self, other: &Outcome) -> bool {
        match (self, other) {
            (Outcome::Broken(_), _) | (_, Outcome::Broken(_)) => false,
            (Outcome::Stat(plain), Outcome::Stat(pool)) => {
                let counted = pool.dir_nlink == plain.dir_nlink || pool.dir_nlink == 1;
                counted && Shown { dir_nlink: 0, ..*plain } == Shown { dir_nlink: 0, ..*pool }
            }
            _ => self == other,
        }
    }
}

impl From<Result<Outcome, Errno>> for Outcome {
    fn from(result: Result<Outcome, Errno>) -> Self {
        result.unwrap_or_else(Outcome::Failed)
    }
}

/// Returns whether an operation set this time. Those times are in 1970, the system's are later.
pub fn is_explicit(seconds: i64) -> bool {
    seconds < 31_536_000
}

/// Returns the data of a write of `len` bytes.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|index| (index as u8).wrapping_mul(7).wrapping_add(seed) | 1).collect()
}
