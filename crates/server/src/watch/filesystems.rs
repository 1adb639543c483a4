//! The filesystems of the branches: which are watched, and the paths in the pool of directories on them.

use super::case_folding;
use crate::test_switches;
use canopy_branch::branch::{Branch, Branches};
use canopy_pool::Pool;
use canopy_pool::ops;
use canopy_sys::mountinfo;
use canopy_sys::{fanotify, file_handle};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Filesystems that change only through this kernel and report every change: ext2 to ext4, XFS, btrfs, tmpfs
/// (include/uapi/linux/magic.h). Others may change on another machine or in a layer below.
const LOCAL: [u64; 4] = [case_folding::EXT, case_folding::XFS, BTRFS, case_folding::TMPFS];
const BTRFS: u64 = 0x9123_683e;

/// The most directories whose paths are cached. If a filesystem holds more than the branches, most of them are
/// outside.
const MAX_PATHS: usize = 8192;

/// A path in the pool.
type PoolPath = Vec<u8>;

/// A directory: its filesystem, and its file handle there.
type DirHandle = (u64, Box<[u8]>);

/// A mount by which branches are reached.
struct WatchedMount {
    fsid: u64,
    mount_id: u64,
    branches: Vec<Arc<Branch>>,
    /// Where its file handles are opened from. Open while events are processed.
    dir: Option<OwnedFd>,
}

impl WatchedMount {
    fn dir(&mut self) -> Result<BorrowedFd<'_>, Errno> {
        let dir = match self.dir.take() {
            Some(dir) => dir,
            None => open_readable(&self.branches[0])?,
        };
        Ok(OwnedFd::as_fd(self.dir.insert(dir)))
    }

    /// Returns the paths in the pool of a directory on this mount. Looks for the roots of branches on the way up, which
    /// costs the same for any number of branches.
    fn pool_paths(&self, dir: BorrowedFd<'_>) -> Result<Vec<PoolPath>, Errno> {
        let path = path_of(dir)?;
        let (mut found, mut up) = (Vec::new(), Vec::new());
        for ancestor in ancestors(&path) {
            let at =
                rustix::fs::statx(dir, &up[..], AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::MNT_ID)?;
            if at.stx_mnt_id != self.mount_id {
                break;
            }
            let id = (rustix::fs::makedev(at.stx_dev_major, at.stx_dev_minor), at.stx_ino);
            let roots = self.branches.iter().filter(|branch| (branch.dev, branch.ino) == id);
            found.extend(roots.filter_map(|_| relative_to(ancestor, &path)));
            up.extend_from_slice(if up.is_empty() { b".." } else { b"/.." });
        }
        Ok(found)
    }
}

/// A branch whose changes are not watched.
#[derive(Clone, Debug)]
pub(crate) struct Unwatched {
    pub(crate) branch: PathBuf,
    pub(crate) why: String,
    /// Branches like it can be watched, and this process has the privilege.
    pub(crate) local: bool,
}

/// Why a branch cannot be watched.
#[derive(Debug, thiserror::Error)]
enum NotWatchable {
    #[error("{0}")]
    System(#[from] Errno),
    #[error("{0}")]
    Other(String),
}

pub(crate) struct Filesystems {
    group: Result<Arc<OwnedFd>, Errno>,
    mounts: Vec<WatchedMount>,
    /// Writes are reported too, so far as is known; on all filesystems that are watched, or on none.
    writes: bool,
    unwatched: Vec<Unwatched>,
    /// The devices of the branches before the first that is not watched, and of no other.
    leading: Vec<u64>,
    /// Paths where other filesystems are mounted on branches.
    covered: Vec<PoolPath>,
    /// Cached paths of directories, by file handle. Valid until a directory is renamed.
    paths: HashMap<DirHandle, Arc<[PoolPath]>>,
    /// The number of directory renames through the pool up to which `paths` is valid.
    moves: u64,
    /// Some branch lies within another, so that a change in one is visible at a second path. Valid until a directory
    /// is renamed.
    overlapping: Option<bool>,
}

impl Filesystems {
    pub(crate) fn open() -> Filesystems {
        Filesystems {
            group: fanotify::open().map(Arc::new).map_err(errno_of),
            mounts: Vec::new(),
            writes: test_switches::reports_writes(),
            unwatched: Vec::new(),
            leading: Vec::new(),
            covered: Vec::new(),
            paths: HashMap::new(),
            moves: 0,
            overlapping: None,
        }
    }

    pub(crate) fn group(&self) -> Option<Arc<OwnedFd>> {
        self.group.as_ref().ok().cloned()
    }

    /// Watches these branches, and no others any more.
    pub(crate) fn watch(&mut self, branches: Option<&Branches>) {
        let before = std::mem::take(&mut self.mounts);
        self.unwatched.clear();
        self.leading.clear();
        self.paths.clear();
        self.overlapping = None;
        for branch in branches.into_iter().flatten() {
            if let Err(why) = self.add(branch) {
                let local = LOCAL.contains(&branch.kind) && !matches!(why, NotWatchable::System(Errno::PERM));
                self.unwatched.push(Unwatched { branch: branch.path.clone(), why: why.to_string(), local });
            }
            if self.unwatched.is_empty() {
                self.leading.push(branch.dev);
            } else {
                self.leading.retain(|&dev| dev != branch.dev);
            }
        }
        if let Ok(group) = &self.group {
            for old in before {
                if !self.mounts.iter().any(|mount| mount.fsid == old.fsid)
                    && let Ok(dir) = open_mark_target(&old.branches[0])
                {
                    let _ = fanotify::mark(group.as_fd(), dir.as_fd(), false, true);
                }
            }
        }
        self.update_covered();
    }

    fn add(&mut self, branch: &Arc<Branch>) -> Result<(), NotWatchable> {
        let group = self.group.as_ref().map_err(|&errno| match errno {
            Errno::PERM => NotWatchable::Other("it needs CAP_SYS_ADMIN".to_owned()),
            Errno::INVAL => NotWatchable::Other("it needs Linux 5.17".to_owned()),
            errno => NotWatchable::System(errno),
        })?;
        if !LOCAL.contains(&branch.kind) {
            return Err(NotWatchable::Other("only ext2 to ext4, XFS, btrfs and tmpfs can be watched".into()));
        }
        // Events carry this id.
        let marked = open_mark_target(branch)?;
        let fsid = rustix::fs::fstatvfs(&marked)?.f_fsid;
        let mount_id =
            rustix::fs::statx(branch.root(), c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id;
        let same = |mount: &&mut WatchedMount| mount.fsid == fsid && mount.mount_id == mount_id;
        if let Some(mount) = self.mounts.iter_mut().find(same) {
            mount.branches.push(Arc::clone(branch));
            return Ok(());
        }
        let dir = open_readable(branch)?;
        if let Some(why) = case_folding::why_case_insensitive(branch, dir.as_fd()) {
            return Err(NotWatchable::Other(why));
        }
        let handle = file_handle::from_fd(dir.as_fd())?;
        file_handle::open(dir.as_fd(), &handle)?;
        // Where single files cannot be excepted from it, to report writes costs each of them too much.
        self.writes = self.writes && fanotify::ignore_writes(group.as_fd(), marked.as_fd(), true).is_ok();
        if self.writes {
            let _ = fanotify::ignore_writes(group.as_fd(), marked.as_fd(), false);
        }
        fanotify::mark(group.as_fd(), marked.as_fd(), true, self.writes).map_err(errno_of)?;
        self.mounts.push(WatchedMount { fsid, mount_id, branches: vec![Arc::clone(branch)], dir: None });
        Ok(())
    }

    /// Records that nothing can be watched any more.
    pub(crate) fn stop_watching(&mut self, errno: Errno) {
        for mount in std::mem::take(&mut self.mounts) {
            let reported = mount.branches.iter().map(|branch| {
                let (branch, why) = (branch.path.clone(), errno.to_string());
                Unwatched { branch, why, local: true }
            });
            self.unwatched.extend(reported);
        }
        self.group = Err(errno);
        self.leading.clear();
        self.paths.clear();
    }

    /// Returns whether writes are reported, and not only the close.
    pub(crate) fn reports_writes(&self) -> bool {
        self.writes
    }

    /// Returns the branches that are not watched.
    pub(crate) fn unwatched(&self) -> &[Unwatched] {
        &self.unwatched
    }

    /// Returns the devices of the branches before the first that is not watched.
    pub(crate) fn leading(&self) -> &[u64] {
        &self.leading
    }

    /// Returns the paths in the pool at and below which another filesystem is mounted on a branch, whose events have
    /// other paths or do not exist.
    pub(crate) fn covered(&self) -> Vec<PoolPath> {
        self.covered.clone()
    }

    /// Finds the mounts below the branches; returns whether they have changed.
    pub(crate) fn update_covered(&mut self) -> bool {
        let before = std::mem::take(&mut self.covered);
        // Without the list, count everything as covered.
        let Ok(mounts) = mountinfo::list() else {
            self.covered.push(PoolPath::new());
            return before != self.covered;
        };
        for branch in self.mounts.iter().flat_map(|mount| &mount.branches) {
            let Ok(root) = path_of(branch.root()) else { continue };
            let below = mounts
                .iter()
                .filter_map(|mounted| relative_to(&root, mounted.mountpoint.as_os_str().as_bytes()));
            self.covered.extend(below.filter(|path| !path.is_empty()));
        }
        self.covered.sort_unstable();
        self.covered.dedup();
        before != self.covered
    }

    /// Forgets paths after a directory was renamed on this filesystem. The pool renames within a branch: if it moves the
    /// root of another branch, that lay within the first one before and still does, so which branches overlap stays
    /// known.
    pub(crate) fn forget_paths(&mut self, fsid: u64, by_pool: bool) {
        if !by_pool {
            self.overlapping = None;
        }
        self.paths.retain(|(on, _), _| *on != fsid);
    }

    /// Returns the paths of a directory in the pool: none if it is gone or outside the branches, several if one
    /// branch lies within another. `moves`: the number of directory renames through the pool so far.
    ///
    /// Errors: why the paths cannot be determined.
    pub(crate) fn pool_paths(&mut self, fsid: u64, dir: &[u8], moves: u64) -> Result<Arc<[PoolPath]>, Errno> {
        if self.moves != moves || self.paths.len() >= MAX_PATHS {
            self.paths.clear();
            self.moves = moves;
        }
        let key = (fsid, Box::from(dir));
        if let Some(pool_paths) = self.paths.get(&key) {
            return Ok(Arc::clone(pool_paths));
        }
        let mut found: Vec<PoolPath> = Vec::new();
        let mut gone = false;
        for mount in self.on(fsid) {
            match file_handle::open(mount.dir()?, dir) {
                Ok(dir) => found.extend(mount.pool_paths(dir.as_fd())?),
                Err(Errno::STALE | Errno::NOENT) => gone = true,
                Err(errno) => return Err(errno),
            }
        }
        let pool_paths: Arc<[PoolPath]> = found.into();
        if !gone {
            self.paths.insert(key, Arc::clone(&pool_paths));
        }
        Ok(pool_paths)
    }

    /// Returns whether a change made through the pool can be visible at a second path of it.
    pub(crate) fn branches_overlap(&mut self, pool: &Pool) -> bool {
        if self.overlapping.is_none() {
            // Unless it can be determined, assume so and try again.
            self.overlapping = ops::external_changes::with_tree_locked(pool, |_| self.check_overlap()).ok();
        }
        self.overlapping.unwrap_or(true)
    }

    /// Returns whether the root of some branch lies in another branch, or in one twice. Opens and asks for each root
    /// once per mount of its filesystem.
    fn check_overlap(&mut self) -> Result<bool, Errno> {
        let mut fsids: Vec<u64> = self.mounts.iter().map(|mount| mount.fsid).collect();
        fsids.sort_unstable();
        fsids.dedup();
        for fsid in fsids {
            let shared: Vec<Arc<Branch>> = self.on(fsid).flat_map(|mount| mount.branches.clone()).collect();
            // Usually each branch is a filesystem of its own.
            if shared.len() < 2 {
                continue;
            }
            let mut handles = Vec::with_capacity(shared.len());
            for branch in &shared {
                handles.push(file_handle::from_fd(open_readable(branch)?.as_fd())?);
            }
            // How often each root lies in a branch, itself included.
            let mut within = vec![0; shared.len()];
            for mount in self.on(fsid) {
                let mut roots: HashMap<Vec<u8>, usize> = HashMap::new();
                for branch in &mount.branches {
                    *roots.entry(path_of(branch.root())?).or_default() += 1;
                }
                for (count, handle) in within.iter_mut().zip(&handles) {
                    *count += match file_handle::open(mount.dir()?, handle) {
                        Ok(root) => ancestors(&path_of(root.as_fd())?).filter_map(|dir| roots.get(dir)).sum(),
                        Err(Errno::STALE | Errno::NOENT) => 0,
                        Err(errno) => return Err(errno),
                    };
                }
            }
            if within.iter().any(|&count: &usize| count > 1) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn on(&mut self, fsid: u64) -> impl Iterator<Item = &mut WatchedMount> {
        self.mounts.iter_mut().filter(move |mount| mount.fsid == fsid)
    }

    /// Opens a file handle; `None` if the file is gone.
    pub(crate) fn open_handle(&mut self, fsid: u64, handle: &[u8]) -> Option<OwnedFd> {
        self.on(fsid).find_map(|mount| file_handle::open(mount.dir().ok()?, handle).ok())
    }

    /// Closes the directories, so that nothing is open on the branches while there are no events.
    pub(crate) fn close_dirs(&mut self) {
        self.mounts.iter_mut().for_each(|mount| mount.dir = None);
    }
}

/// Opens the root of a branch, not as `O_PATH`, which can be neither marked nor used to open file handles.
fn open_readable(branch: &Branch) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(branch.root(), c".", flags, Mode::empty())
}

/// Opens the directory to mark in order to watch the filesystem of a branch.
fn open_mark_target(branch: &Branch) -> Result<OwnedFd, Errno> {
    let dir = open_readable(branch)?;
    match branch.kind {
        BTRFS => file_handle::open_btrfs_toplevel(dir.as_fd()),
        _ => Ok(dir),
    }
}

/// Returns the path of an open file in the mount namespace of this process.
fn path_of(fd: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::readlink(Path::new(&link), Vec::new())?.into_bytes())
}

/// Returns `path` relative to `dir`; `None` if it is not `dir` or below it.
fn relative_to(dir: &[u8], path: &[u8]) -> Option<PoolPath> {
    let close_dirs = path.strip_prefix(dir.strip_suffix(b"/").unwrap_or(dir))?;
    match close_dirs {
        [] => Some(PoolPath::new()),
        [b'/', close_dirs @ ..] => Some(close_dirs.to_vec()),
        _ => None,
    }
}

/// Returns an absolute path and those of the directories above it.
fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(Some(path), |&path| match path.iter().rposition(|&byte| byte == b'/')? {
        0 => (path.len() > 1).then_some(&path[..1]),
        end => Some(&path[..end]),
    })
}

fn errno_of(why: std::io::Error) -> Errno {
    Errno::from_io_error(&why).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_branch::branch::{BranchList, FileSystem};

    #[test]
    fn relative_paths_are_by_whole_names() {
        for (dir, path, close_dirs) in [
            ("/mnt/a", "/mnt/a/x/y", Some("x/y")),
            ("/mnt/a", "/mnt/a", Some("")),
            ("/mnt/a", "/mnt/ab", None),
            ("/mnt/a", "/mnt", None),
            ("/", "/x", Some("x")),
            ("/", "/", Some("")),
        ] {
            let found = relative_to(dir.as_bytes(), path.as_bytes());
            assert_eq!(found.as_deref(), close_dirs.map(str::as_bytes), "{path} in {dir}");
        }
    }

    #[test]
    fn a_directory_has_a_path_in_each_branch_above_it() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |path: &str| tmp.path().join(path);
        for dir in ["a/in/x/y", "b", "out/in"] {
            std::fs::create_dir_all(at(dir)).unwrap();
        }
        let list = ["a", "b", "a/in"].map(|dir| at(dir).to_str().unwrap().to_owned()).join(":");
        let branches = Branches::open(&BranchList::parse(&list, &FileSystem).unwrap()).unwrap();
        let branches: Vec<Arc<Branch>> = branches.iter().cloned().collect();
        let mut mount = WatchedMount { fsid: 0, mount_id: branches[0].mount.unwrap(), branches, dir: None };
        let paths = |mount: &WatchedMount, dir: &str| {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let dir = rustix::fs::open(at(dir), flags, Mode::empty()).unwrap();
            let paths = mount.pool_paths(dir.as_fd()).unwrap();
            paths.into_iter().map(|path| String::from_utf8(path).unwrap()).collect::<Vec<_>>()
        };
        for (dir, expected) in [
            ("a/in/x/y", &["x/y", "in/x/y"][..]),
            ("a/in", &["", "in"]),
            ("a", &[""]),
            ("b", &[""]),
            ("out/in", &[]),
        ] {
            assert_eq!(paths(&mount, dir), expected, "{dir}");
        }
        // It is found by where it is, not by the path with which it was given.
        std::fs::rename(at("b"), at("moved")).unwrap();
        std::fs::create_dir_all(at("moved/z")).unwrap();
        assert_eq!(paths(&mount, "moved/z"), ["z"]);
        mount.mount_id += 1;
        assert_eq!(paths(&mount, "a"), [] as [&str; 0], "on another mount");
    }

    #[test]
    fn ancestors_end_at_the_root() {
        for (path, expected) in [("/a/b", &["/a/b", "/a", "/"][..]), ("/a", &["/a", "/"]), ("/", &["/"])] {
            let found: Vec<&[u8]> = ancestors(path.as_bytes()).collect();
            assert_eq!(found, expected.iter().map(|path| path.as_bytes()).collect::<Vec<_>>(), "{path}");
        }
    }
}
