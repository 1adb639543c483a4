//! Branches: the open directories that the option `branches` names.
//!
//! A value of the option is parsed into a [`BranchList`]. Opening the list gives [`Branches`], an immutable snapshot.
//! [`LiveBranches`] replaces the snapshot as a whole; an operation takes one and keeps it to its end.

pub mod access_times;
pub mod figures;
pub mod gate;
pub mod headroom;
pub mod health;
pub mod list;
pub mod nested;
pub mod probe;
pub mod rest;
pub mod space;
pub mod state;
pub mod stuck;
pub mod traffic;
pub mod unchanged;

pub use canopy_base::ids::BranchId;
pub use list::{BranchError, BranchList, BranchSpec, Expand, FileSystem, Mode, UnknownMode, default_fsname};

use crate::fs::filesystem_id::FilesystemId;
use crate::fs::magic;
use crate::fs::magic::{closes_quietly, has_stable_inodes, is_remote};
use crate::fs::{acl, stat};
use crate::remember::Missing;
use access_times::{AtimePolicy, Times, on_copy};
use canopy_base::inode_number::BranchSeed;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::{Mutex, RwLock};
use canopy_sys::file_handle::InodeOpener;
use health::BranchHealth;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use space::Space;
use space::{AmpleUntil, LastFreed, RoomSeen};
use state::{BranchState, Turn};
use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use traffic::Traffic;

/// One open branch.
///
/// A `Branch` that is kept across a change of the list keeps the mode that it had. Compare ids, not pointers.
#[derive(Debug)]
pub struct Branch {
    pub id: BranchId,
    /// The path as listed: resolved when the option was set, without a trailing slash.
    pub path: PathBuf,
    pub mode: Mode,
    /// The branch's own minfreespace in bytes; `None` for the pool's.
    pub min_free: Option<u64>,
    /// The root directory (`O_PATH`). Everything on the branch is opened beneath it.
    pub root: OwnedFd,
    /// `st_dev` and `st_ino` of the root.
    pub dev: u64,
    pub ino: u64,
    /// The filesystem that the root is on.
    pub filesystem: FilesystemId,
    /// The mount that the root was opened on (Linux 5.8).
    pub mount: Option<u64>,
    /// The branch's share in the inode numbers of its files.
    pub seed: BranchSeed,
    /// The type of the filesystem: `f_type` of statfs(2).
    pub kind: u64,
    /// Whether the branch can be relied on. A branch that keeps its id keeps this, too.
    pub health: Arc<BranchHealth>,
    /// What the daemon reads, writes and opens there.
    pub traffic: &'static Traffic,
    /// How many operations are about to make directories on it that other branches have.
    clones: AtomicUsize,
    /// Whether the branch had room for passthrough writers, when an open for reading last checked.
    pub room: RoomSeen,
    /// Until when its reserve (`ops/reserve.rs`) is out of reach.
    pub ample: AmpleUntil,
    /// When a file that somebody may have open has lost its last name there.
    pub freed: LastFreed,
    /// close(2) of a file on this branch reports no errors of its own.
    pub closes_quietly: bool,
    /// When reads update access times.
    pub times: Times,
    /// The filesystem has POSIX ACLs.
    pub has_acls: bool,
    /// A file keeps its inode number and has a birth time.
    pub stable_inodes: bool,
    /// How to find files by their inode numbers.
    pub inodes: Option<InodeOpener>,
}

struct Cloning<'a>(&'a Branch);

impl Drop for Cloning<'_> {
    fn drop(&mut self) {
        self.0.clones.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The deadline of a remote branch where `branch-timeout` is not set.
const REMOTE_DEADLINE: Duration = Duration::from_secs(30);

impl Branch {
    /// Returns whether `wanted` bytes more may come from what the filesystem keeps for root.
    pub fn nears_reserve(&self, wanted: u64) -> bool {
        magic::keeps_reserve(self.kind) && !self.ample.is_ample(wanted, || Space::of(self.root.as_fd()).ok())
    }

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
            filesystem: FilesystemId::of(root.as_fd()),
            mount,
            seed: BranchSeed::new(spec.path.as_os_str().as_bytes()),
            kind,
            health: Arc::default(),
            traffic: Traffic::of(&spec.path),
            clones: AtomicUsize::new(0),
            room: RoomSeen::default(),
            ample: AmpleUntil::default(),
            freed: LastFreed::default(),
            closes_quietly: closes_quietly(kind),
            times: Times::default(),
            has_acls: acl::is_known(root.as_fd()),
            stable_inodes: has_stable_inodes(kind),
            inodes: InodeOpener::new(root.as_fd(), kind, attr.ino),
            root,
        })
    }

    /// Returns how long an operation waits for this branch: `branch-timeout`, where zero means without limit. Without
    /// that option, only remote branches have a limit.
    pub fn deadline(&self, timeout: Option<Duration>) -> Option<Duration> {
        timeout.or_else(|| self.is_remote().then_some(REMOTE_DEADLINE)).filter(|deadline| !deadline.is_zero())
    }

    /// Returns whether another program or machine serves the branch.
    pub fn is_remote(&self) -> bool {
        is_remote(self.kind)
    }

    /// Returns true while the branch does not answer. Operations leave it out.
    pub fn is_silent(&self) -> bool {
        self.health.state() == BranchState::Hung
    }

    /// Counts a clone of a directory to the branch, until the value is dropped.
    pub fn cloning(&self) -> impl Drop {
        self.clones.fetch_add(1, Ordering::SeqCst);
        Cloning(self)
    }

    /// Returns whether a directory may come to be on the branch.
    pub fn gets_clones(&self) -> bool {
        self.clones.load(Ordering::SeqCst) > 0
    }

    /// Returns the descriptor of the root directory.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Returns the minfreespace that applies, in bytes: the branch's own, or the pool's.
    pub fn min_free_or(&self, pool: u64) -> u64 {
        self.min_free.unwrap_or(pool)
    }

    /// Returns true when the branch's health should be checked now.
    pub fn needs_check(&self) -> bool {
        self.health.needs_check()
    }

    /// Returns the branch-list entry that describes this branch.
    pub fn spec(&self) -> BranchSpec {
        BranchSpec { path: self.path.clone(), mode: self.mode, min_free: self.min_free }
    }

    /// Takes a file that was opened on this branch with `flags`, and returns a descriptor of it that updates
    /// access times as the pool's options say.
    pub fn reopen_for_read(&self, fd: OwnedFd, flags: OFlags) -> OwnedFd {
        let reads = self.times.0.load();
        match reads.as_deref() {
            None => fd,
            Some(_) if flags & OFlags::ACCMODE == OFlags::WRONLY => fd,
            Some(AtimePolicy::PrivateMount(copy)) => {
                on_copy(&self.path, copy.as_fd(), fd.as_fd(), flags).unwrap_or(fd)
            }
            Some(AtimePolicy::NoAtime) => {
                // Fails for files of other users unless the daemon is privileged.
                let _ = rustix::fs::fcntl_getfl(&fd)
                    .and_then(|now| rustix::fs::fcntl_setfl(&fd, now | OFlags::NOATIME));
                fd
            }
        }
    }

    /// Reads the target of a symlink on this branch, given a descriptor that pins it.
    pub fn read_link(&self, link: BorrowedFd<'_>) -> Result<CString, Errno> {
        let reads = self.times.0.load();
        let timed = match reads.as_deref() {
            Some(AtimePolicy::PrivateMount(copy)) => on_copy(&self.path, copy.as_fd(), link, OFlags::PATH),
            _ => None,
        };
        rustix::fs::readlinkat(timed.as_ref().map_or(link, |fd| fd.as_fd()), c"", Vec::new())
    }

    /// As [`Branch::read_link`], given a directory and a name. `None` if it cannot be read so.
    pub fn read_link_at(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Option<CString> {
        match self.times.0.load().as_deref() {
            Some(AtimePolicy::PrivateMount(_)) => None,
            _ => rustix::fs::readlinkat(dir, name, Vec::new()).ok(),
        }
    }
}

/// An immutable, ordered set of open branches. Cloning it copies a pointer.
#[derive(Clone, Debug)]
pub struct Branches {
    list: Arc<[Arc<Branch>]>,
    /// All of them, if some are left out because they do not answer.
    with_silent: Option<Arc<[Arc<Branch>]>>,
    /// Those of the pool that are missing, if their names are to stay.
    missing: Missing,
}

impl Branches {
    /// Opens every root. Fails with the error of the first that cannot be opened.
    pub fn open(list: &BranchList) -> Result<Branches, BranchError> {
        Branches { list: Arc::new([]), with_silent: None, missing: Missing::default() }.update(list)
    }

    /// Opens `list`. A branch that stays (same path, and still the same directory) keeps its id.
    ///
    /// A path that now leads to another directory, because a disk was mounted there, is a new branch.
    pub fn update(&self, list: &BranchList) -> Result<Branches, BranchError> {
        let mut before: Vec<&Arc<Branch>> = self.list.iter().collect();
        let open = |spec: &BranchSpec| {
            let mut branch = Branch::open(spec)?;
            let same = before
                .iter()
                .position(|old| old.path == branch.path && old.dev == branch.dev && old.ino == branch.ino);
            // Each old branch continues as one new one, so that duplicates keep separate ids.
            let Some(old) = same.map(|index| before.remove(index)) else { return Ok(Arc::new(branch)) };
            if old.mode == branch.mode && old.min_free == branch.min_free {
                return Ok(Arc::clone(old));
            }
            branch.id = old.id;
            branch.health = Arc::clone(&old.health);
            if branch.mode == Mode::Ro {
                // That it cannot be written to does not count against it.
                branch.health.forget_illness();
            }
            Ok(Arc::new(branch))
        };
        let list = list.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Branches { list, with_silent: None, missing: self.missing.clone() })
    }

    /// Returns the branches that answer.
    fn answering(&self) -> Branches {
        if !self.iter().any(|branch| branch.is_silent()) {
            return self.clone();
        }
        let list = self.iter().filter(|branch| !branch.is_silent()).cloned().collect();
        Branches { list, with_silent: Some(Arc::clone(&self.list)), missing: self.missing.clone() }
    }

    /// Returns `ETIMEDOUT` where branches were left out because they do not answer: a name that the others do not
    /// hold may be on those.
    pub fn timeout_error(&self) -> Option<Errno> {
        self.with_silent.as_ref().map(|_| Errno::TIMEDOUT)
    }

    /// Returns the same branches and those that were left out because they do not answer.
    pub fn whole(&self) -> Branches {
        let list = self.with_silent.as_ref().unwrap_or(&self.list);
        Branches { list: Arc::clone(list), with_silent: None, missing: self.missing.clone() }
    }

    /// Returns the snapshot without the given branches. Opens nothing.
    pub fn without(&self, others: &[Arc<Branch>]) -> Branches {
        let stays = |branch: &&Arc<Branch>| !others.iter().any(|other| other.id == branch.id);
        let rest = |list: &[Arc<Branch>]| list.iter().filter(stays).cloned().collect();
        let with_silent = self.with_silent.as_deref().map(rest);
        Branches { list: rest(&self.list), with_silent, missing: self.missing.clone() }
    }

    /// Returns the snapshot with other missing branches.
    #[must_use]
    pub fn with_missing(self, missing: Missing) -> Branches {
        Branches { missing, ..self }
    }

    /// Returns the branches of the pool that are missing, if their names are to stay.
    pub fn missing(&self) -> &Missing {
        &self.missing
    }

    /// Returns the branch list that describes this snapshot.
    pub fn to_list(&self) -> BranchList {
        self.iter().map(|branch| branch.spec()).collect()
    }

    /// Returns the paths joined by colons, without modes: the option `srcmounts`.
    pub fn srcmounts(&self) -> OsString {
        let paths: Vec<&[u8]> = self.iter().map(|branch| branch.path.as_os_str().as_bytes()).collect();
        OsString::from_vec(paths.join(&b':'))
    }

    /// Returns true if both are the same snapshot.
    pub fn are(&self, others: &Branches) -> bool {
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

    /// Returns the branch at `index`, as policies count.
    pub fn get(&self, index: usize) -> Option<&Arc<Branch>> {
        self.list.get(index)
    }

    /// Returns the branch with this id, if it is in the list.
    pub fn by_id(&self, id: BranchId) -> Option<&Arc<Branch>> {
        self.iter().find(|branch| branch.id == id)
    }

    /// Returns the position of the branch with this id.
    pub fn index_of(&self, id: BranchId) -> Option<usize> {
        self.iter().position(|branch| branch.id == id)
    }

    /// Returns true if a file on any of the branches can have an ACL.
    pub fn have_acls(&self) -> bool {
        self.iter().any(|branch| branch.has_acls)
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

/// The current branches, replaced as a whole. Operations in flight keep the snapshot that they took.
#[derive(Debug)]
pub struct LiveBranches {
    /// The branches that answer; usually all of them.
    current: RwLock<Arc<Branches>, rank::Leaf>,
    /// A branch does not answer. Changes with `current`.
    any_silent: AtomicBool,
    /// A branch is missing whose names stay. Changes with `current`.
    any_missing: AtomicBool,
    /// How often `current` was replaced. Changes while that is locked.
    version: AtomicU64,
    /// All branches.
    changing: Mutex<Arc<Branches>, rank::BranchChange>,
}

impl LiveBranches {
    pub fn new(branches: Branches) -> LiveBranches {
        let all = Arc::new(branches);
        LiveBranches {
            current: RwLock::new(Arc::clone(&all)),
            any_silent: AtomicBool::new(false),
            any_missing: AtomicBool::new(!all.missing.is_empty()),
            version: AtomicU64::new(0),
            changing: Mutex::new(all),
        }
    }

    /// Returns all branches, including those that do not answer.
    pub fn all(&self) -> Arc<Branches> {
        Arc::clone(&self.changing.lock())
    }

    /// Leaves a branch out of the current snapshot, or takes it back. Returns true if that is a change.
    pub fn set_silent(&self, id: BranchId, silent: bool) -> bool {
        let all = self.changing.lock();
        let Some(branch) = all.by_id(id) else { return false };
        let changed = branch.health.turn(if silent { Turn::LeaveOut } else { Turn::TakeBack });
        if changed {
            self.replace(&all);
        }
        changed
    }

    /// Returns whether any branch is left out because it does not answer. Costs one load.
    pub fn any_silent(&self) -> bool {
        self.any_silent.load(Ordering::Relaxed)
    }

    /// Returns whether any branch is missing whose names stay. Costs one load.
    pub fn any_missing(&self) -> bool {
        self.any_missing.load(Ordering::Relaxed)
    }

    fn replace(&self, all: &Branches) {
        let mut current = self.current.write();
        *current = Arc::new(all.answering());
        self.any_silent.store(current.with_silent.is_some(), Ordering::Relaxed);
        self.any_missing.store(!current.missing.is_empty(), Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// As `load`, with the number of the change that put them in force.
    pub fn load_numbered(&self) -> (Arc<Branches>, u64) {
        let current = self.current.read();
        (Arc::clone(&current), self.version.load(Ordering::Relaxed))
    }

    /// Returns the number of the change that put the current snapshot in force.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the current snapshot, which has the branches that answer.
    pub fn load(&self) -> Arc<Branches> {
        Arc::clone(&self.current.read())
    }

    /// Replaces the snapshot.
    pub fn store(&self, branches: Branches) {
        let mut all = self.changing.lock();
        *all = Arc::new(branches);
        self.replace(&all);
    }

    /// Replaces the snapshot by what `make` returns; keeps it if `make` fails. Changes are made one after the other.
    /// `make` must not change the branches itself: it would deadlock.
    pub fn change<E>(&self, make: impl FnOnce(&Branches) -> Result<Branches, E>) -> Result<(), E> {
        let mut all = self.changing.lock();
        *all = Arc::new(make(&all)?);
        self.replace(&all);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
