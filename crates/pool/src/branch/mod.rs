//! Branches: the text of the option `branches`, and the open directories it stands for.
//!
//! A value of the option is parsed into a [`BranchList`], which is opened into [`Branches`], an immutable
//! snapshot that [`LiveBranches`] swaps whole. An operation takes one snapshot and keeps it to its end.

pub mod access_times;
pub(crate) mod headroom;
pub mod health;
pub(crate) mod nested;
pub mod size;
pub mod space;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use canopy_sys::file_handle::Inodes;
use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::export::lasts;
use crate::fs::{acl, stat};
use crate::inode_number::BranchSeed;
use access_times::Times;
use headroom::Seen;
use health::{Condition, Health};
use size::SizeError;

/// Identity of a branch, unique for the life of the process: a branch keeps it while it stays in the list and
/// its path leads to the same directory, and it is never given to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct BranchId(pub u32);

impl BranchId {
    fn next() -> BranchId {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        BranchId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for BranchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "branch {}", self.0)
    }
}

/// What policies may do on a branch. Operations on files that are open already are not affected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Create, change and search.
    Rw,
    /// Search only.
    Ro,
    /// Change and search; nothing new.
    Nc,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mode::Rw => "RW",
            Mode::Ro => "RO",
            Mode::Nc => "NC",
        })
    }
}

/// The text is not `RW`, `RO` or `NC` (EINVAL).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a branch mode: expected RW, RO or NC")]
pub struct UnknownMode;

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "RW" => Ok(Mode::Rw),
            "RO" => Ok(Mode::Ro),
            "NC" => Ok(Mode::Nc),
            _ => Err(UnknownMode),
        }
    }
}

/// Why a branch list was not taken. The list in force stays as it was.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BranchError {
    #[error("{0:?} is not a branch instruction: expected one of + +< +> - -< -> =")]
    Instruction(String),
    #[error("branch list {0:?} has an empty entry: remove the stray ':' or write the path before '='")]
    EmptyEntry(String),
    #[error(
        "branch {entry:?}: {mode:?} is not a mode: expected RW, RO or NC (after a path with '=', write the mode)"
    )]
    Mode { entry: String, mode: String },
    #[error("branch {entry:?}: {source}")]
    Size { entry: String, source: SizeError },
    #[error("branch {0:?} has more than a mode and a minfreespace after its '='")]
    TooManyItems(String),
    #[error("the branch list is empty already: there is none to remove")]
    NothingToRemove,
    #[error("branch {path:?} cannot be opened ({errno}): {}", match *.errno {
        Errno::MFILE | Errno::NFILE => "each takes a descriptor: raise the limit of open files (ulimit -n)",
        _ => "make or mount the directory, or take it out of branches",
    })]
    Open { path: PathBuf, errno: Errno },
}

impl BranchError {
    /// The errno that whoever set the option sees.
    pub fn errno(&self) -> Errno {
        match self {
            BranchError::Instruction(_)
            | BranchError::EmptyEntry(_)
            | BranchError::Mode { .. }
            | BranchError::Size { source: SizeError::Invalid, .. }
            | BranchError::TooManyItems(_) => Errno::INVAL,
            BranchError::Size { source: SizeError::Overflow, .. } => Errno::OVERFLOW,
            BranchError::NothingToRemove => Errno::NOENT,
            BranchError::Open { errno, .. } => *errno,
        }
    }
}

/// One entry of a branch list, after expansion.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BranchSpec {
    pub path: PathBuf,
    pub mode: Mode,
    /// The branch's own minfreespace in bytes; None follows the pool's.
    pub min_free: Option<u64>,
}

impl BranchSpec {
    fn render(&self, out: &mut OsString) {
        out.push(&self.path);
        out.push(format!("={}", self.mode));
        if let Some(bytes) = self.min_free {
            out.push(",");
            out.push(size::humanise(bytes));
        }
    }
}

/// Turns the path of an entry, as written, into the branch paths it stands for.
pub trait Expand {
    /// Absolute paths in order; empty if the entry is to be passed over.
    fn expand(&self, pattern: &OsStr) -> Vec<PathBuf>;
}

/// Expansion by the file system, once, when the option is set: wildcards and braces (glob(3)), and symbolic
/// links and dots resolved (realpath).
///
/// What matches nothing is taken literally. What exists and is not a directory is passed over. What does not
/// exist is kept, as an absolute path, so that the daemon's own change of directory does not move it.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileSystem;

impl Expand for FileSystem {
    fn expand(&self, pattern: &OsStr) -> Vec<PathBuf> {
        let mut found = canopy_sys::glob::directories(pattern).unwrap_or_else(|error| {
            tracing::warn!(?pattern, %error, "branch pattern not expanded: taken literally");
            Vec::new()
        });
        if found.is_empty() {
            found.push(PathBuf::from(pattern));
        }
        found.retain_mut(|path| match std::fs::canonicalize(&path) {
            Ok(real) if real.is_dir() => {
                *path = real;
                true
            }
            Ok(_) => {
                tracing::warn!(?path, "branch is not a directory: passed over");
                false
            }
            Err(error) => {
                tracing::info!(?path, %error, "branch path not resolved");
                if let Ok(absolute) = std::path::absolute(&path) {
                    // Through components: without a trailing slash.
                    *path = absolute.components().collect();
                }
                true
            }
        });
        found
    }
}

/// The text form of the pool's branches, in order. Duplicates are allowed, and so is the empty list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BranchList(Vec<BranchSpec>);

impl BranchList {
    /// Reads a whole value, as given at the start.
    pub fn parse(value: impl AsRef<OsStr>, fs: &dyn Expand) -> Result<BranchList, BranchError> {
        BranchList::default().apply(value, fs)
    }

    /// The list that `value` makes of this one: a list to replace it, or an instruction (`+ +< +> - -< -> =`)
    /// and a list. The whole value is read before anything changes.
    ///
    /// An entry is `PATTERN[=MODE[,SIZE]]`, split at its last `=`; entries are separated by colons, for which
    /// there is no escape.
    pub fn apply(&self, value: impl AsRef<OsStr>, fs: &dyn Expand) -> Result<BranchList, BranchError> {
        let value = value.as_ref().as_bytes();
        let (instruction, list) = split_instruction(value);
        let old = self.0.as_slice();
        let specs = match instruction {
            b"" | b"=" => entries(list, fs)?,
            b"+" | b"+>" => [old, &entries(list, fs)?].concat(),
            b"+<" => [&entries(list, fs)?, old].concat(),
            b"-" => {
                let patterns: Vec<&[u8]> = list.split(|&byte| byte == b':').collect();
                let matched = |spec: &&BranchSpec| {
                    patterns.iter().any(|pattern| {
                        canopy_sys::glob::matches(OsStr::from_bytes(pattern), spec.path.as_os_str())
                    })
                };
                old.iter().filter(|spec| !matched(spec)).cloned().collect()
            }
            b"-<" => old.split_first().ok_or(BranchError::NothingToRemove)?.1.to_vec(),
            b"->" => old.split_last().ok_or(BranchError::NothingToRemove)?.1.to_vec(),
            other => return Err(BranchError::Instruction(text(other))),
        };
        Ok(BranchList(specs))
    }

    pub fn as_slice(&self) -> &[BranchSpec] {
        &self.0
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, BranchSpec> {
        self.0.iter()
    }

    /// The value that [`parse`](Self::parse) reads back: `PATH=MODE[,SIZE]` joined by colons. Exact for paths
    /// that are not UTF-8, which the `Display` form is not.
    pub fn to_os_string(&self) -> OsString {
        let mut out = OsString::new();
        for (index, spec) in self.0.iter().enumerate() {
            if index != 0 {
                out.push(":");
            }
            spec.render(&mut out);
        }
        out
    }
}

impl FromIterator<BranchSpec> for BranchList {
    fn from_iter<T: IntoIterator<Item = BranchSpec>>(specs: T) -> Self {
        BranchList(specs.into_iter().collect())
    }
}

impl fmt::Display for BranchList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_os_string().display(), f)
    }
}

/// At most two of the characters that open the value are the instruction, even if more follow.
fn split_instruction(value: &[u8]) -> (&[u8], &[u8]) {
    let run = value.iter().position(|byte| !b"+<>-=".contains(byte));
    match run {
        Some(length) => value.split_at(length.min(2)),
        // A bare instruction has no list, however long the run.
        None => (&value[..value.len().min(2)], &[]),
    }
}

fn entries(list: &[u8], fs: &dyn Expand) -> Result<Vec<BranchSpec>, BranchError> {
    let mut specs = Vec::new();
    if list.is_empty() {
        return Ok(specs);
    }
    for entry in list.split(|&byte| byte == b':') {
        let (pattern, mode, min_free) = parse_entry(entry)?;
        if pattern.is_empty() {
            return Err(BranchError::EmptyEntry(text(list)));
        }
        let paths = fs.expand(OsStr::from_bytes(pattern));
        specs.extend(paths.into_iter().map(|path| BranchSpec { path, mode, min_free }));
    }
    Ok(specs)
}

fn parse_entry(entry: &[u8]) -> Result<(&[u8], Mode, Option<u64>), BranchError> {
    let Some(equals) = entry.iter().rposition(|&byte| byte == b'=') else {
        return Ok((entry, Mode::Rw, None));
    };
    let (pattern, options) = (&entry[..equals], text(&entry[equals + 1..]));
    let mut items = options.split(',');
    let (mode, size, more) = (items.next().unwrap_or_default(), items.next(), items.next());
    if more.is_some() {
        return Err(BranchError::TooManyItems(text(entry)));
    }
    let mode = mode
        .parse()
        .map_err(|UnknownMode| BranchError::Mode { entry: text(entry), mode: mode.to_owned() })?;
    let min_free = size.map(size::parse_size).transpose();
    let min_free = min_free.map_err(|source| BranchError::Size { entry: text(entry), source })?;
    Ok((pattern, mode, min_free))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One open branch.
///
/// Whoever keeps one across a change of the list keeps the mode it had then; compare ids, not pointers.
#[derive(Debug)]
pub struct Branch {
    pub id: BranchId,
    /// As listed: resolved when the option was set, no trailing slash.
    pub path: PathBuf,
    pub mode: Mode,
    /// Own minfreespace in bytes; None follows the pool's.
    pub min_free: Option<u64>,
    /// The root directory (O_PATH): everything on the branch is reached beneath it.
    pub root: OwnedFd,
    /// st_dev and st_ino of the root.
    pub dev: u64,
    pub ino: u64,
    /// The mount that its root was opened on (Linux 5.8).
    pub mount: Option<u64>,
    /// For inode numbers of files on this branch.
    pub seed: BranchSeed,
    /// The type of its filesystem (statfs(2)).
    pub kind: u64,
    /// How it fares; the branch keeps it along with its id.
    pub health: Arc<Condition>,
    /// Whether there was room enough to write past the daemon, when it last mattered to readers.
    pub(crate) room: Seen,
    /// close(2) of its files has nothing to tell.
    pub(crate) closes_quietly: bool,
    /// When reads change the time of the last access.
    pub(crate) times: Times,
    /// Its filesystem has POSIX ACLs.
    pub(crate) has_acls: bool,
    /// A file keeps its inode number and tells its birth time.
    pub(crate) lasts: bool,
    /// How to find its files by their inode numbers.
    pub(crate) inodes: Option<Inodes>,
}

/// Is this a filesystem that does nothing at close(2) (no `flush` in its `file_operations`)? Then whatever was
/// written is in the page cache, and what comes of it is told by fsync(2). Others, such as NFS, write back at close.
fn closes_quietly(kind: u64) -> bool {
    /// ext2 to ext4, XFS, btrfs and tmpfs (include/uapi/linux/magic.h).
    const QUIET: [u64; 4] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994];
    QUIET.contains(&kind)
}

/// Filesystems whose answers come from another machine, or from another program: 9P, AFS, BeeGFS, Ceph, CIFS and SMB, Coda,
/// FUSE, GPFS, Lustre, NFS (include/uapi/linux/magic.h, statfs(2)).
const REMOTE: [u64; 12] = [
    0x0102_1997,
    0x5346_414f,
    0x1983_0326,
    0x00c3_6400,
    0xff53_4d42,
    0xfe53_4d42,
    0x517b,
    0x7375_7245,
    0x6573_5546,
    0x4750_4653,
    0x0bd0_0bd0,
    0x6969,
];

/// How long a remote branch may take to answer where nobody has said it.
const REMOTE_DEADLINE: Duration = Duration::from_secs(30);

impl Branch {
    fn open(spec: &BranchSpec) -> Result<Branch, BranchError> {
        let error = |errno| BranchError::Open { path: spec.path.clone(), errno };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&spec.path, flags, rustix::fs::Mode::empty()).map_err(error)?;
        let (attr, mount) = stat::with_mount(root.as_fd()).map_err(error)?;
        let kind = rustix::fs::fstatfs(&root).map_err(error)?.f_type as u64 & u64::from(u32::MAX);
        Ok(Branch {
            id: BranchId::next(),
            path: spec.path.clone(),
            mode: spec.mode,
            min_free: spec.min_free,
            dev: attr.dev,
            ino: attr.ino,
            mount,
            seed: BranchSeed::new(spec.path.as_os_str().as_bytes()),
            kind,
            health: Arc::default(),
            room: Seen::default(),
            closes_quietly: closes_quietly(kind),
            times: Times::default(),
            has_acls: acl::is_known(root.as_fd()),
            lasts: lasts(kind),
            inodes: Inodes::of(root.as_fd(), kind, attr.ino),
            root,
        })
    }

    /// How long an operation waits for it: as `branch-timeout` says, zero being for ever; without that, not for ever where
    /// it is remote.
    pub fn deadline(&self, timeout: Option<Duration>) -> Option<Duration> {
        timeout
            .or_else(|| REMOTE.contains(&self.kind).then_some(REMOTE_DEADLINE))
            .filter(|deadline| !deadline.is_zero())
    }

    /// It does not answer, and is not asked.
    pub fn is_silent(&self) -> bool {
        self.health.health() == Health::Hung
    }

    /// The root directory's descriptor.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The minfreespace in force, in bytes: its own, or the pool's.
    pub fn min_free_or(&self, pool: u64) -> u64 {
        self.min_free.unwrap_or(pool)
    }

    /// The entry of the branch list that describes it.
    pub fn spec(&self) -> BranchSpec {
        BranchSpec { path: self.path.clone(), mode: self.mode, min_free: self.min_free }
    }
}

/// An immutable, ordered set of open branches. Cloning it copies a pointer.
#[derive(Clone, Debug)]
pub struct Branches {
    list: Arc<[Arc<Branch>]>,
    /// Some are left out, for they do not answer.
    without_silent: bool,
}

impl Branches {
    /// Opens every root. The first that cannot be opened is the error.
    pub fn open(list: &BranchList) -> Result<Branches, BranchError> {
        Branches { list: Arc::new([]), without_silent: false }.update(list)
    }

    /// Opens `list`, where branches that stay (same path, and still the same directory) keep their ids.
    ///
    /// A path that leads to another directory by now, because a disk was mounted there, is a new branch.
    pub fn update(&self, list: &BranchList) -> Result<Branches, BranchError> {
        let mut before: Vec<&Arc<Branch>> = self.list.iter().collect();
        let open = |spec: &BranchSpec| {
            let mut branch = Branch::open(spec)?;
            let same = before
                .iter()
                .position(|old| old.path == branch.path && old.dev == branch.dev && old.ino == branch.ino);
            // Each old branch continues as one new one, so that duplicates keep ids of their own.
            let Some(old) = same.map(|index| before.remove(index)) else { return Ok(Arc::new(branch)) };
            if old.mode == branch.mode && old.min_free == branch.min_free {
                return Ok(Arc::clone(old));
            }
            branch.id = old.id;
            if branch.mode != Mode::Ro {
                // Nobody minds that it cannot be written to otherwise.
                branch.health = Arc::clone(&old.health);
            }
            Ok(Arc::new(branch))
        };
        Ok(Branches { list: list.iter().map(open).collect::<Result<_, _>>()?, without_silent: false })
    }

    /// Those that answer.
    fn answering(&self) -> Branches {
        if !self.iter().any(|branch| branch.is_silent()) {
            return self.clone();
        }
        let list = self.iter().filter(|branch| !branch.is_silent()).cloned().collect();
        Branches { list, without_silent: true }
    }

    /// What is to be said of a name that none of these branches holds, if not that there is none: others have not been
    /// asked, since they do not answer.
    pub fn unheard(&self) -> Option<Errno> {
        self.without_silent.then_some(Errno::TIMEDOUT)
    }

    /// The same without some of them. Nothing is opened.
    pub fn without(&self, others: &[Arc<Branch>]) -> Branches {
        let stays = |branch: &&Arc<Branch>| !others.iter().any(|other| other.id == branch.id);
        Branches { list: self.iter().filter(stays).cloned().collect(), without_silent: self.without_silent }
    }

    /// The text form.
    pub fn to_list(&self) -> BranchList {
        self.iter().map(|branch| branch.spec()).collect()
    }

    /// The paths joined by colons, without modes: the option `srcmounts`.
    pub fn srcmounts(&self) -> OsString {
        let paths: Vec<&[u8]> = self.iter().map(|branch| branch.path.as_os_str().as_bytes()).collect();
        OsString::from_vec(paths.join(&b':'))
    }

    /// Is this the same snapshot?
    pub(crate) fn are(&self, others: &Branches) -> bool {
        Arc::ptr_eq(&self.list, &others.list)
    }

    pub fn as_slice(&self) -> &[Arc<Branch>] {
        &self.list
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Arc<Branch>> {
        self.list.iter()
    }

    /// The branch at `index`, as a policy's choice counts.
    pub fn get(&self, index: usize) -> Option<&Arc<Branch>> {
        self.list.get(index)
    }

    /// The branch with this id, if it is still in the list.
    pub fn by_id(&self, id: BranchId) -> Option<&Arc<Branch>> {
        self.iter().find(|branch| branch.id == id)
    }

    /// Position of the branch with this id.
    pub fn index_of(&self, id: BranchId) -> Option<usize> {
        self.iter().position(|branch| branch.id == id)
    }
}

impl<'a> IntoIterator for &'a Branches {
    type Item = &'a Arc<Branch>;
    type IntoIter = std::slice::Iter<'a, Arc<Branch>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl std::ops::Index<usize> for Branches {
    type Output = Arc<Branch>;

    fn index(&self, index: usize) -> &Self::Output {
        &self.list[index]
    }
}

/// The branches in force, replaced whole while operations go on with the snapshot they took.
///
/// Lock order: `changing`, then `current`. `current` is held only to copy or to put a pointer.
#[derive(Debug)]
pub struct LiveBranches {
    /// Those that answer, which are all as a rule.
    current: RwLock<Arc<Branches>>,
    /// All.
    changing: Mutex<Arc<Branches>>,
}

impl LiveBranches {
    pub fn new(branches: Branches) -> LiveBranches {
        let all = Arc::new(branches);
        LiveBranches { current: RwLock::new(Arc::clone(&all)), changing: Mutex::new(all) }
    }

    /// All branches, also those that do not answer.
    pub fn all(&self) -> Arc<Branches> {
        Arc::clone(&self.changing.lock())
    }

    /// Leaves a branch out of the snapshot, or takes it back. True when that is news.
    pub fn set_silent(&self, id: BranchId, silent: bool) -> bool {
        let all = self.changing.lock();
        let Some(branch) = all.by_id(id) else { return false };
        let news = branch.health.hangs(silent);
        if news {
            *self.current.write() = Arc::new(all.answering());
        }
        news
    }

    /// The snapshot in force: of the branches that answer.
    pub fn load(&self) -> Arc<Branches> {
        Arc::clone(&self.current.read())
    }

    /// Puts another snapshot in force.
    pub fn store(&self, branches: Branches) {
        let mut all = self.changing.lock();
        *all = Arc::new(branches);
        *self.current.write() = Arc::new(all.answering());
    }

    /// Puts in force what `make` makes of the present snapshot, or leaves it if `make` fails. Changes follow
    /// each other; `make` must not change the branches itself (it would wait for itself).
    pub fn change<E>(&self, make: impl FnOnce(&Branches) -> Result<Branches, E>) -> Result<(), E> {
        let mut all = self.changing.lock();
        *all = Arc::new(make(&all)?);
        *self.current.write() = Arc::new(all.answering());
        Ok(())
    }
}

/// In bytes: `PATH_MAX`, less the NUL and `...`, and room for what a mount helper puts before it.
const LONGEST_FSNAME: usize = 4000;

/// The mount source shown when `fsname` is not given: the branch paths joined by colons, without the
/// beginning they have in common.
///
/// The common beginning is counted in characters and not in path components: `/mnt/disk1` and `/mnt/disk2`
/// give `1:2`. Nothing is left out if the first path would be left empty (a single branch, for one). What would be
/// longer than mount(2) takes (`PATH_MAX`) ends with `...` in place of the last branches.
pub fn default_fsname(paths: &[PathBuf]) -> OsString {
    let bytes: Vec<&[u8]> = paths.iter().map(|path: &PathBuf| Path::as_os_str(path).as_bytes()).collect();
    let Some(first) = bytes.first() else { return OsString::new() };
    let shared = |path: &&[u8]| path.iter().zip(first.iter()).take_while(|(a, b)| a == b).count();
    let mut common = bytes.iter().map(shared).min().unwrap_or(0);
    if common == first.len() {
        common = 0;
    }
    // Not into the middle of a UTF-8 character: continuation bytes are 10xxxxxx.
    while common > 0 && first[common] & 0xC0 == 0x80 {
        common -= 1;
    }
    let mut rest: Vec<&[u8]> = bytes.iter().map(|path| &path[common..]).collect();
    let mut length = 0;
    let fits = |path: &&&[u8]| {
        length += path.len() + 1;
        length <= LONGEST_FSNAME
    };
    let fitting = rest.iter().take_while(fits).count();
    if fitting < rest.len() {
        rest.splice(fitting.., [b"...".as_slice()]);
    }
    OsString::from_vec(rest.join(&b':'))
}

#[cfg(test)]
mod tests;
