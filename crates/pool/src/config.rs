//! The configuration of a pool: values only. The syntax of options is the business of crate `canopy-config`; the
//! values' names are here because both sides need them.

use canopy_base::inode_number::InodeCalc;
use canopy_policy::placement::Placement;
use canopy_policy::read_cache::CacheRules;
use canopy_policy::trash::TrashRules;
use canopy_policy::{Category, Policy};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The text is not one of the accepted words (EINVAL).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("must be one of {accepted}")]
pub struct BadWord {
    pub accepted: String,
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            pub const WORDS: &'static [&'static str] = &[$($word),+];
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(self.word()) }
        }

        impl FromStr for $name {
            type Err = BadWord;
            fn from_str(text: &str) -> Result<Self, BadWord> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(BadWord { accepted: Self::WORDS.join(", ") }),
                }
            }
        }
    };
}

words! {
    /// How the kernel's page cache is used for file data that does not go through passthrough.
    CacheFiles {
        /// Every read and write goes to the daemon.
        Off = "off",
        /// Cached while open; invalidated at each open.
        Partial = "partial",
        /// Cached, and kept across opens.
        Full = "full",
        /// Cached, and kept across opens while the file has not changed.
        AutoFull = "auto-full",
        /// `partial` for the listed programs, `off` for all others.
        PerProcess = "per-process",
    }
}

words! {
    /// Which opens use passthrough, so that the kernel reads and writes the branch's file without the daemon (Linux
    /// 6.9).
    PassthroughIo {
        Off = "off",
        /// Opens for reading only.
        Ro = "ro",
        /// Opens for writing only.
        Wo = "wo",
        /// Every open.
        Rw = "rw",
        /// Every open for which the kernel, the daemon's privileges and the branch allow it; while full branches make
        /// files move (`moveonenospc`), writers only where there is ample room.
        Auto = "auto",
    }
}

words! {
    /// When the kernel sends FLUSH at close(2).
    FlushOnClose {
        Never = "never",
        Always = "always",
        OpenedForWrite = "opened-for-write",
    }
}

words! {
    /// Where statfs asks each branch: at its root, or at the path in question.
    StatfsMode { Base = "base", Full = "full" }
}

words! {
    /// Which branches' free space statfs leaves out.
    StatfsIgnore { None = "none", Ro = "ro", Nc = "nc" }
}

words! {
    /// What becomes of the names of a branch that is missing.
    MissingNames {
        /// They stay, and what was behind them cannot be used.
        Remember = "remember",
        /// They are gone, as if the branch had been removed from the pool.
        Hide = "hide",
    }
}

words! {
    /// Which symlinks of the branches are shown as their targets.
    FollowSymlinks {
        Never = "never",
        /// Those that lead to a directory.
        Directory = "directory",
        /// Those that lead to a regular file.
        Regular = "regular",
        All = "all",
    }
}

words! {
    /// Which read-only files may be opened for writing where the branch itself refuses (EACCES). NFS servers check
    /// each write against the mode, so that a file created read-only could not be filled.
    NfsOpenHack {
        Off = "off",
        /// Those below a `.git` directory.
        Git = "git",
        All = "all",
    }
}

words! {
    /// What link(2) does if the branch of the file cannot hold the new name (EXDEV).
    LinkExdev {
        /// Fails with EXDEV.
        Passthrough = "passthrough",
        /// Makes a symlink to the file's name in the pool, relative to the new name.
        RelSymlink = "rel-symlink",
        /// Makes a symlink to the file on its branch.
        AbsBaseSymlink = "abs-base-symlink",
        /// Makes a symlink to the file's name in the pool, starting with the mountpoint.
        AbsPoolSymlink = "abs-pool-symlink",
    }
}

words! {
    /// What rename(2) does if the branch of the source cannot hold the new name (EXDEV).
    RenameExdev {
        /// Fails with EXDEV.
        Passthrough = "passthrough",
        /// Sets the source aside on its branch, and makes a symlink to it, relative to the new name.
        RelSymlink = "rel-symlink",
        /// As `RelSymlink`, with a symlink that starts with the mountpoint.
        AbsSymlink = "abs-symlink",
    }
}

words! {
    /// How extended attributes are handled.
    XattrMode { Passthrough = "passthrough", NoAttr = "noattr", NoSys = "nosys" }
}

words! {
    /// The operations that each have a policy of their own (`func.NAME`).
    Func {
        Access = "access", Chmod = "chmod", Chown = "chown", Create = "create", Getattr = "getattr",
        Getxattr = "getxattr", Link = "link", Listxattr = "listxattr", Mkdir = "mkdir", Mknod = "mknod",
        Open = "open", Readlink = "readlink", Removexattr = "removexattr", Rename = "rename",
        Rmdir = "rmdir", Setxattr = "setxattr", Symlink = "symlink", Truncate = "truncate",
        Unlink = "unlink", Utimens = "utimens",
    }
}

impl Func {
    pub const ALL: [Func; 20] = [
        Func::Access,
        Func::Chmod,
        Func::Chown,
        Func::Create,
        Func::Getattr,
        Func::Getxattr,
        Func::Link,
        Func::Listxattr,
        Func::Mkdir,
        Func::Mknod,
        Func::Open,
        Func::Readlink,
        Func::Removexattr,
        Func::Rename,
        Func::Rmdir,
        Func::Setxattr,
        Func::Symlink,
        Func::Truncate,
        Func::Unlink,
        Func::Utimens,
    ];

    /// Returns the category, which `category.NAME` sets and whose filter applies.
    pub fn category(self) -> Category {
        match self {
            Func::Access | Func::Getattr | Func::Getxattr | Func::Listxattr | Func::Open | Func::Readlink => {
                Category::Search
            }
            Func::Create | Func::Mkdir | Func::Mknod | Func::Symlink => Category::Create,
            Func::Chmod
            | Func::Chown
            | Func::Link
            | Func::Removexattr
            | Func::Rename
            | Func::Rmdir
            | Func::Setxattr
            | Func::Truncate
            | Func::Unlink
            | Func::Utimens => Category::Action,
        }
    }
}

/// The policy of each function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policies([Policy; Func::ALL.len()]);

impl Default for Policies {
    fn default() -> Self {
        Policies(Func::ALL.map(|func| match func.category() {
            Category::Action => Policy::EpAll,
            Category::Create => Policy::Pfrd,
            Category::Search => Policy::Ff,
        }))
    }
}

impl Policies {
    pub fn get(&self, func: Func) -> Policy {
        self.0[func as usize]
    }
    pub fn set(&mut self, func: Func, policy: Policy) {
        self.0[func as usize] = policy;
    }
    /// Sets every function of the category (`category.NAME=POLICY`).
    pub fn set_category(&mut self, category: Category, policy: Policy) {
        for func in Func::ALL {
            if func.category() == category {
                self.set(func, policy);
            }
        }
    }
}

/// How a directory is listed across several branches (`func.readdir`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReaddirMode {
    /// One branch after the other.
    #[default]
    Seq,
    /// Branches are opened in parallel and read in order, with the given number of threads (0: as many as processors,
    /// at most 8) and queue depth.
    Cosr { threads: u32, depth: u32 },
    /// Branches are opened and read in parallel.
    Cor { threads: u32, depth: u32 },
}

impl fmt::Display for ReaddirMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, threads, depth) = match *self {
            ReaddirMode::Seq => return f.write_str("seq"),
            ReaddirMode::Cosr { threads, depth } => ("cosr", threads, depth),
            ReaddirMode::Cor { threads, depth } => ("cor", threads, depth),
        };
        match (threads, depth) {
            (0, 0) => f.write_str(name),
            (_, 0) => write!(f, "{name}:{threads}"),
            _ => write!(f, "{name}:{threads}:{depth}"),
        }
    }
}

impl FromStr for ReaddirMode {
    type Err = BadWord;
    fn from_str(text: &str) -> Result<Self, BadWord> {
        let bad = || BadWord { accepted: "seq, cosr[:THREADS[:DEPTH]], cor[:THREADS[:DEPTH]]".into() };
        let number = |part: Option<&str>| match part {
            None => Ok(0),
            Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().map_err(|_| bad())
            }
            Some(_) => Err(bad()),
        };
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let (threads, depth) = (number(parts.next())?, number(parts.next())?);
        match (name, parts.next()) {
            ("seq", None) => Ok(ReaddirMode::Seq),
            ("cosr", None) => Ok(ReaddirMode::Cosr { threads, depth }),
            ("cor", None) => Ok(ReaddirMode::Cor { threads, depth }),
            _ => Err(bad()),
        }
    }
}

/// What happens to a file when its branch has no room for a write: the policy that chooses another branch to move it
/// to, or `None` to fail. The policy chooses among all branches but the file's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoveWhenFull(pub Option<Policy>);

impl MoveWhenFull {
    /// The value when the option names no policy.
    pub const USUAL: MoveWhenFull = MoveWhenFull(Some(Policy::Pfrd));
}

/// How many bytes of memory known files and directories may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryBound {
    /// A share of the memory that the process may use.
    Auto,
    Bytes(u64),
}

/// The options of a pool.
#[derive(Clone, Debug)]
pub struct Config {
    pub policies: Policies,
    /// Among which branches the create policies choose.
    pub placement: Placement,
    /// What is kept for a while when clients remove it.
    pub trash: TrashRules,
    /// What is read from copies on a fast disk.
    pub read_cache: CacheRules,
    /// Bytes that must stay free on a branch that gets new files, unless the branch has its own figure.
    pub min_free: u64,
    /// Beyond it, the kernel is asked to forget files and directories that no process uses.
    pub memory: MemoryBound,
    /// How long the free space of a branch may be cached; zero asks every time.
    pub space_ttl: Duration,
    pub inode: InodeCalc,
    pub readdir: ReaddirMode,
    pub statfs: StatfsMode,
    pub statfs_ignore: StatfsIgnore,
    pub xattr: XattrMode,
    /// If false, `security.capability` is neither read nor written (ENODATA).
    pub security_capability: bool,
    /// Rename and link clone missing directories even if the create policy preserves paths.
    pub ignore_path_preservation: bool,
    pub follow_symlinks: FollowSymlinks,
    /// Files that nobody may write, and that have not changed for a while, are shown as symlinks to themselves on
    /// their branch.
    pub symlinkify: bool,
    /// How long such a file must be unchanged, in seconds; no time at all if negative.
    pub symlinkify_timeout: i64,
    pub nfs_open_hack: NfsOpenHack,
    pub link_exdev: LinkExdev,
    pub rename_exdev: RenameExdev,
    /// Opening one of several hard links for writing turns it into a separate file.
    pub link_cow: bool,
    pub move_when_full: MoveWhenFull,
    /// What is new goes to a disk that is awake, if the policy accepts one.
    pub prefer_awake: bool,
    /// What becomes of the names of a branch that is missing.
    pub missing: MissingNames,
    /// How long an operation waits for a branch; zero is without limit. `None` for the default of the branch's
    /// filesystem.
    pub branch_timeout: Option<Duration>,
    /// The kernel allows opening a file only by a path from a branch (Landlock).
    pub names_only: bool,
    /// Where the pool is mounted: the prefix of absolute symlinks into it. Empty if unknown.
    pub mountpoint: PathBuf,
    pub passthrough: PassthroughIo,
    pub cache_files: CacheFiles,
    /// Command names (`comm`, at most 15 bytes) to which `per-process` gives the page cache.
    pub cache_process_names: Vec<String>,
    /// The kernel caches writes: files opened for writing must be readable, and `O_APPEND` is removed.
    pub writeback: bool,
    pub parallel_direct_writes: bool,
    pub flush_on_close: FlushOnClose,
    /// At release, tell the kernel that the branch's cached pages are no longer needed.
    pub drop_cache_on_close: bool,
    /// Reads return zeros and writes are discarded: shows what the transport alone costs.
    pub nullrw: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            policies: Policies::default(),
            placement: Placement::default(),
            trash: TrashRules::default(),
            read_cache: CacheRules::default(),
            min_free: 4_294_967_295,
            memory: MemoryBound::Auto,
            space_ttl: Duration::ZERO,
            inode: InodeCalc::OldestHash,
            readdir: ReaddirMode::Seq,
            statfs: StatfsMode::Base,
            statfs_ignore: StatfsIgnore::None,
            xattr: XattrMode::Passthrough,
            security_capability: true,
            ignore_path_preservation: false,
            follow_symlinks: FollowSymlinks::Never,
            symlinkify: false,
            symlinkify_timeout: 3600,
            nfs_open_hack: NfsOpenHack::Off,
            link_exdev: LinkExdev::Passthrough,
            rename_exdev: RenameExdev::Passthrough,
            link_cow: false,
            move_when_full: MoveWhenFull::USUAL,
            prefer_awake: false,
            missing: MissingNames::Hide,
            branch_timeout: None,
            names_only: false,
            mountpoint: PathBuf::new(),
            passthrough: PassthroughIo::Auto,
            cache_files: CacheFiles::Off,
            cache_process_names: vec!["qbittorrent-nox".into(), "rtorrent".into()],
            writeback: false,
            parallel_direct_writes: true,
            flush_on_close: FlushOnClose::OpenedForWrite,
            drop_cache_on_close: false,
            nullrw: false,
        }
    }
}
