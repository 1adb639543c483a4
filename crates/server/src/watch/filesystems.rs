//! The filesystems that branches lie on: which are watched, and where in the pool a directory of theirs is.

use super::case_folding;
use canopy_pool::Pool;
use canopy_pool::branch::{Branch, Branches};
use canopy_sys::mountinfo;
use canopy_sys::{fanotify, file_handle};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Filesystems that change only through this kernel, and tell of all of it: ext2 to ext4, XFS, btrfs, tmpfs
/// (include/uapi/linux/magic.h). Others might change on another machine, or in a layer below.
const LOCAL: [u64; 4] = [case_folding::EXT, case_folding::XFS, BTRFS, case_folding::TMPFS];
const BTRFS: u64 = 0x9123_683e;

/// Directories whose place is remembered, most of them outside of the branches where the filesystem holds more.
const REMEMBERED: usize = 8192;

/// A path in the pool.
type PoolPath = Vec<u8>;

/// A directory, by the filesystem and its handle there.
type Handle = (u64, Box<[u8]>);

/// A mount through which branches are reached.
struct Volume {
    fsid: u64,
    mount_id: u64,
    branches: Vec<Arc<Branch>>,
    /// Its handles are looked up from here; open while events are worked on.
    dir: Option<OwnedFd>,
}

impl Volume {
    fn dir(&mut self) -> Result<BorrowedFd<'_>, Errno> {
        let dir = match self.dir.take() {
            Some(dir) => dir,
            None => open_to_read(&self.branches[0])?,
        };
        Ok(OwnedFd::as_fd(self.dir.insert(dir)))
    }
}

/// A branch whose changes are not watched for.
#[derive(Clone, Debug)]
pub(crate) struct Unwatched {
    pub(crate) branch: PathBuf,
    pub(crate) why: String,
    /// Others of its kind can be watched, and this process has the right to.
    pub(crate) local: bool,
}

/// Why a branch cannot be watched.
#[derive(Debug, thiserror::Error)]
enum Why {
    #[error("{0}")]
    System(#[from] Errno),
    #[error("{0}")]
    Other(String),
}

pub(crate) struct Filesystems {
    group: Result<Arc<OwnedFd>, Errno>,
    list: Vec<Volume>,
    unwatched: Vec<Unwatched>,
    /// What other filesystems cover.
    blind: Vec<PoolPath>,
    /// Where directories are, by filesystem and handle, as long as none is renamed.
    places: HashMap<Handle, Arc<[PoolPath]>>,
    /// How many renames through the pool `places` knows of.
    moves: u64,
    /// Some branch lies inside another, so that what is changed in one shows at a second place; as long as no directory
    /// is renamed.
    overlap: Option<bool>,
}

impl Filesystems {
    pub(crate) fn open() -> Filesystems {
        Filesystems {
            group: fanotify::open().map(Arc::new).map_err(errno_of),
            list: Vec::new(),
            unwatched: Vec::new(),
            blind: Vec::new(),
            places: HashMap::new(),
            moves: 0,
            overlap: None,
        }
    }

    pub(crate) fn group(&self) -> Option<Arc<OwnedFd>> {
        self.group.as_ref().ok().cloned()
    }

    /// Watches these branches, and no others from now on.
    pub(crate) fn set(&mut self, branches: Option<&Branches>) {
        let before = std::mem::take(&mut self.list);
        self.unwatched.clear();
        self.places.clear();
        self.overlap = None;
        for branch in branches.into_iter().flatten() {
            if let Err(why) = self.add(branch) {
                let local = LOCAL.contains(&branch.kind) && !matches!(why, Why::System(Errno::PERM));
                self.unwatched.push(Unwatched { branch: branch.path.clone(), why: why.to_string(), local });
            }
        }
        if let Ok(group) = &self.group {
            for old in before {
                if !self.list.iter().any(|volume| volume.fsid == old.fsid)
                    && let Ok(dir) = to_be_marked(&old.branches[0])
                {
                    let _ = fanotify::mark(group.as_fd(), dir.as_fd(), false);
                }
            }
        }
        self.look_at_mounts();
    }

    fn add(&mut self, branch: &Arc<Branch>) -> Result<(), Why> {
        let group = self.group.as_ref().map_err(|&errno| match errno {
            Errno::PERM => Why::Other("it takes CAP_SYS_ADMIN".to_owned()),
            Errno::INVAL => Why::Other("it takes Linux 5.17".to_owned()),
            errno => Why::System(errno),
        })?;
        if !LOCAL.contains(&branch.kind) {
            return Err(Why::Other("only ext, XFS, btrfs and tmpfs can be".into()));
        }
        // By this id its changes are told.
        let marked = to_be_marked(branch)?;
        let fsid = rustix::fs::fstatvfs(&marked)?.f_fsid;
        let mount_id =
            rustix::fs::statx(branch.root(), c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id;
        let same = |volume: &&mut Volume| volume.fsid == fsid && volume.mount_id == mount_id;
        if let Some(volume) = self.list.iter_mut().find(same) {
            volume.branches.push(Arc::clone(branch));
            return Ok(());
        }
        let dir = open_to_read(branch)?;
        if let Some(why) = case_folding::ignored(branch, dir.as_fd()) {
            return Err(Why::Other(why));
        }
        let handle = file_handle::from_fd(dir.as_fd())?;
        file_handle::open(dir.as_fd(), &handle)?;
        fanotify::mark(group.as_fd(), marked.as_fd(), true).map_err(errno_of)?;
        self.list.push(Volume { fsid, mount_id, branches: vec![Arc::clone(branch)], dir: None });
        Ok(())
    }

    /// Nothing can be watched any more.
    pub(crate) fn give_up(&mut self, errno: Errno) {
        for volume in std::mem::take(&mut self.list) {
            let told = volume.branches.iter().map(|branch| {
                let (branch, why) = (branch.path.clone(), errno.to_string());
                Unwatched { branch, why, local: true }
            });
            self.unwatched.extend(told);
        }
        self.group = Err(errno);
        self.places.clear();
    }

    /// The branches that are not watched.
    pub(crate) fn unwatched(&self) -> &[Unwatched] {
        &self.unwatched
    }

    /// The places in the pool at which, and below which, another filesystem is mounted on a branch: its changes are
    /// told by other paths, or not at all.
    pub(crate) fn blind(&self) -> Vec<PoolPath> {
        self.blind.clone()
    }

    /// Looks for what is mounted below branches; true if that has changed.
    pub(crate) fn look_at_mounts(&mut self) -> bool {
        let before = std::mem::take(&mut self.blind);
        // A list that cannot be read says nothing: then nothing is relied upon.
        let Ok(mounts) = mountinfo::list() else {
            self.blind.push(PoolPath::new());
            return before != self.blind;
        };
        for branch in self.list.iter().flat_map(|volume| &volume.branches) {
            let Ok(root) = path_of(branch.root()) else { continue };
            let below =
                mounts.iter().filter_map(|mounted| below(&root, mounted.mountpoint.as_os_str().as_bytes()));
            self.blind.extend(below.filter(|path| !path.is_empty()));
        }
        self.blind.sort_unstable();
        self.blind.dedup();
        before != self.blind
    }

    /// A directory was renamed on this filesystem.
    pub(crate) fn forget_places(&mut self, fsid: u64) {
        self.overlap = None;
        self.places.retain(|(on, _), _| *on != fsid);
    }

    /// Where in the pool a directory is: nowhere when it is gone or lies outside of the branches, in several places
    /// when one branch lies within another. `moves`: how many directories were renamed through the pool.
    ///
    /// Errors: what hinders to tell.
    pub(crate) fn places(&mut self, fsid: u64, dir: &[u8], moves: u64) -> Result<Arc<[PoolPath]>, Errno> {
        if self.moves != moves || self.places.len() >= REMEMBERED {
            self.places.clear();
            self.moves = moves;
        }
        let key = (fsid, Box::from(dir));
        if let Some(places) = self.places.get(&key) {
            return Ok(Arc::clone(places));
        }
        let mut found: Vec<PoolPath> = Vec::new();
        let mut gone = false;
        for volume in self.list.iter_mut().filter(|volume| volume.fsid == fsid) {
            let path = match file_handle::open(volume.dir()?, dir) {
                Ok(dir) => path_of(dir.as_fd())?,
                Err(Errno::STALE | Errno::NOENT) => {
                    gone = true;
                    continue;
                }
                Err(errno) => return Err(errno),
            };
            for branch in &volume.branches {
                found.extend(below(&path_of(branch.root())?, &path));
            }
        }
        let places: Arc<[PoolPath]> = found.into();
        if !gone {
            self.places.insert(key, Arc::clone(&places));
        }
        Ok(places)
    }

    /// Can a change that the pool makes show at a second place of it?
    pub(crate) fn overlap(&mut self, pool: &Pool) -> bool {
        if self.overlap.is_none() {
            // What cannot be told is taken for true until it can be.
            self.overlap = pool.with_tree_locked(|moves| self.find_overlap(moves)).ok();
        }
        self.overlap.unwrap_or(true)
    }

    fn find_overlap(&mut self, moves: u64) -> Result<bool, Errno> {
        let mut shared: HashMap<u64, Vec<Arc<Branch>>> = HashMap::new();
        for volume in &self.list {
            shared.entry(volume.fsid).or_default().extend(volume.branches.iter().cloned());
        }
        // As a rule each branch is a filesystem of its own.
        for (fsid, branches) in shared.into_iter().filter(|(_, branches)| branches.len() > 1) {
            for branch in branches {
                let handle = file_handle::from_fd(open_to_read(&branch)?.as_fd())?;
                if self.places(fsid, &handle, moves)?.len() > 1 {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// What a handle stands for; `None` when it is gone.
    pub(crate) fn find(&mut self, fsid: u64, handle: &[u8]) -> Option<OwnedFd> {
        let mut volumes = self.list.iter_mut().filter(|volume| volume.fsid == fsid);
        volumes.find_map(|volume| file_handle::open(volume.dir().ok()?, handle).ok())
    }

    /// Nothing is open on the branches while nothing happens.
    pub(crate) fn rest(&mut self) {
        self.list.iter_mut().for_each(|volume| volume.dir = None);
    }
}

/// The root of a branch, not as `O_PATH`: that is neither marked nor searched for handles.
fn open_to_read(branch: &Branch) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(branch.root(), c".", flags, Mode::empty())
}

/// The directory by which the changes of a branch's filesystem are asked for.
fn to_be_marked(branch: &Branch) -> Result<OwnedFd, Errno> {
    let dir = open_to_read(branch)?;
    match branch.kind {
        BTRFS => file_handle::open_btrfs_toplevel(dir.as_fd()),
        _ => Ok(dir),
    }
}

/// The path of an open file in the namespace of this process.
fn path_of(fd: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::readlink(Path::new(&link), Vec::new())?.into_bytes())
}

/// The path without the directory it lies in or is; `None` if it lies elsewhere.
fn below(dir: &[u8], path: &[u8]) -> Option<PoolPath> {
    let rest = path.strip_prefix(dir.strip_suffix(b"/").unwrap_or(dir))?;
    match rest {
        [] => Some(PoolPath::new()),
        [b'/', rest @ ..] => Some(rest.to_vec()),
        _ => None,
    }
}

fn errno_of(why: std::io::Error) -> Errno {
    Errno::from_io_error(&why).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_is_by_whole_names() {
        for (dir, path, rest) in [
            ("/mnt/a", "/mnt/a/x/y", Some("x/y")),
            ("/mnt/a", "/mnt/a", Some("")),
            ("/mnt/a", "/mnt/ab", None),
            ("/mnt/a", "/mnt", None),
            ("/", "/x", Some("x")),
            ("/", "/", Some("")),
        ] {
            let found = below(dir.as_bytes(), path.as_bytes());
            assert_eq!(found.as_deref(), rest.map(str::as_bytes), "{path} in {dir}");
        }
    }
}
