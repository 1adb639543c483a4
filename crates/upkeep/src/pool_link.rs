//! A running pool, and its branches as the daemon lists them.

use crate::error::{Error, Result};
use crate::keep::Keep;
use canopy_branch::branch::state::BranchState;
use canopy_branch::fs::beneath;
use canopy_branch::fs::filesystem_id::FilesystemId;
use canopy_branch::fs::reserved::is_reserved;
use canopy_config::source::{self, named};
use canopy_config::{Config, lossy, options, placement_report};
use canopy_control::daemon::Daemon;
use canopy_control::messages::{Answer, Query};
use canopy_control::{self, BranchReport, CONTROL_FILE, ClosedReport};
use canopy_policy::placement::Placement;
use canopy_sys::mountinfo::{self, MountEntry};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The prefix of what the daemon has under construction on a branch.
pub(crate) const UNDER_CONSTRUCTION: &[u8] = b".canopy-clone.";

/// One branch of the pool.
#[derive(Debug)]
pub(crate) struct BranchLink {
    pub(crate) path: PathBuf,
    /// `RW`, `RO` or `NC`.
    pub(crate) mode: String,
    /// What must stay free on it, in bytes.
    pub(crate) min_free: u64,
    /// The pool relies on it.
    pub(crate) is_well: bool,
    /// What files from other branches may lose there: its filesystem cannot store it.
    pub(crate) loses: Option<Loses>,
    /// The user has named it as the place for files. The daemon then judges each file by itself.
    pub(crate) is_named: bool,
    /// The file of what is remembered of it, if anything is.
    pub(crate) record: Option<PathBuf>,
    /// It is missing, and its names are shown.
    pub(crate) is_missing: bool,
    /// `None` for a branch that cannot be looked at: it is awaited, or has failed.
    root: Option<OwnedFd>,
}

/// What a branch makes of files that cannot store their owner and mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loses {
    /// In words.
    pub(crate) what: &'static str,
    /// The owner and group of every file, which are those of its root. `None` for a branch that cannot be looked at.
    owner: Option<(u32, u32)>,
    /// The mode of every file, if it is known.
    mode: Option<u32>,
}

impl Loses {
    fn of(mounts: &[MountEntry], branch: &BranchReport, root: Option<&OwnedFd>) -> Option<Loses> {
        let mounted = mountinfo::holding_in(mounts, &branch.path.to_path())?;
        let what = lossy::loses(&mounted.fstype)?;
        let owner = root.and_then(|root| rustix::fs::fstat(root).ok()).map(|root| (root.st_uid, root.st_gid));
        Some(Loses { what, owner, mode: lossy::file_mode(&mounted.super_options) })
    }

    /// Returns whether a file loses nothing there, as far as its attributes tell. The daemon has the last word.
    fn keeps(self, stat: &Stat) -> bool {
        let is_alone = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1;
        let has_mode = self.mode.is_none_or(|mode| mode == stat.st_mode & 0o7777);
        is_alone && has_mode && self.owner == Some((stat.st_uid, stat.st_gid))
    }
}

/// A running pool.
#[derive(Debug)]
pub(crate) struct PoolLink {
    pub(crate) mountpoint: PathBuf,
    pub(crate) daemon: Daemon,
    /// It is mounted read-only.
    pub(crate) is_read_only: bool,
    /// In the order of the pool.
    pub(crate) branches: Vec<BranchLink>,
    /// What stays on its disk.
    pub(crate) keep: Keep,
    /// Files may lose what a branch cannot store.
    pub(crate) accepts_losses: bool,
}

impl PoolLink {
    /// Finds the pool that holds a path, and returns the path relative to the pool's root.
    pub(crate) fn holding(path: &Path) -> Result<(PoolLink, PathBuf)> {
        #[cfg(test)]
        if let Some((mountpoint, daemon)) =
            path.ancestors().find_map(|at| Some((at, served_here::daemon(at)?)))
        {
            let inside = path.strip_prefix(mountpoint).expect("an ancestor").to_owned();
            return Ok((PoolLink::with(mountpoint.to_owned(), daemon, false)?, inside));
        }
        let failed = |why| Error::Path { path: path.to_owned(), why };
        // The last component may be a symlink, which is looked at itself.
        let absolute = std::path::absolute(path).map_err(failed)?;
        let real = match (absolute.parent(), absolute.file_name()) {
            (Some(dir), Some(name)) => dir.canonicalize().map_err(failed)?.join(name),
            _ => absolute.canonicalize().map_err(failed)?,
        };
        let listed = mountinfo::list().map_err(failed)?;
        let mounted = mountinfo::holding_in(&listed, &real).filter(|mounted| mounted.is_pool());
        let mounted = mounted.ok_or_else(|| Error::OnNoPool(real.clone()))?;
        let inside = mounted.inside(&real);
        let inside = inside.strip_prefix("/").unwrap_or(&inside).to_owned();
        Ok((PoolLink::of(mounted)?, inside))
    }

    /// Finds a pool by its mountpoint or name.
    pub(crate) fn named(word: &Path) -> Result<PoolLink> {
        #[cfg(test)]
        if let Some(daemon) = served_here::daemon(word) {
            return PoolLink::with(word.to_owned(), daemon, false);
        }
        let path = named::mountpoint(word)?;
        let mountpoint = mountinfo::listed_path(&path).map_err(|why| match why.kind() {
            io::ErrorKind::NotConnected => Error::PoolDead(path.clone()),
            _ => Error::NoPool(path.clone()),
        })?;
        match mountinfo::at(&mountpoint) {
            Ok(Some(mounted)) if mounted.is_pool() => PoolLink::of(&mounted),
            _ => Err(Error::NoPool(mountpoint)),
        }
    }

    /// Returns the tiers and rules as the options have them now.
    pub(crate) fn placement(&self) -> Result<Placement> {
        let known = self.daemon.placement();
        if let Some(placement) = known.as_ref().and_then(placement_report::to_placement) {
            return Ok(placement);
        }
        let mut config = Config::default();
        for key in ["tiers", "rules"] {
            let failed = |errno: Errno| match errno {
                // An older daemon has none.
                Errno::NODATA => Error::NoTiers(self.mountpoint.clone()),
                Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED => {
                    Error::PoolDead(self.mountpoint.clone())
                }
                errno => Error::Key { key: key.into(), pool: self.mountpoint.clone(), why: errno.into() },
            };
            let value = self.daemon.get(key).map_err(failed)?;
            source::set(&mut config, key, &value).map_err(canopy_config::Error::from)?;
        }
        Ok(config.pool.placement)
    }

    /// Returns the tiers and rules as they would be if these options, each with its value, were set.
    pub(crate) fn placement_as_if(&self, pairs: &[OsString]) -> Result<Placement> {
        let mut config = Config::default();
        config.pool.placement = self.placement()?;
        for pair in pairs {
            let (key, value) = options::split(pair);
            if !matches!(key.as_ref(), "tiers" | "rules") {
                return Err(Error::AsIf(key));
            }
            source::set(&mut config, &key, &value).map_err(canopy_config::Error::from)?;
        }
        canopy_config::resolve::check(&config).map_err(canopy_config::Error::from)?;
        Ok(config.pool.placement)
    }

    /// Finds a branch by its path, in any spelling.
    pub(crate) fn branch(&self, word: &Path) -> Result<usize> {
        let is = |path: &Path| self.branches.iter().position(|branch| branch.path == path);
        let listed: PathBuf = word.components().collect();
        let found = is(&listed).or_else(|| word.canonicalize().ok().and_then(|real| is(&real)));
        found.ok_or_else(|| Error::NoBranch { branch: word.to_owned(), pool: self.mountpoint.clone() })
    }

    /// Returns a path relative to the root of the pool. A path that is not found from here is sought in the pool.
    pub(crate) fn inside(&self, path: &Path) -> Result<PathBuf> {
        let below = self.mountpoint.join(path);
        let path = match path.symlink_metadata() {
            Ok(_) => path,
            Err(_) if self.daemon.mount().look_up(path).is_ok() => &below,
            Err(why) => return Err(Error::Path { path: path.to_owned(), why }),
        };
        let (other, inside) = PoolLink::holding(path)?;
        if other.mountpoint == self.mountpoint {
            Ok(inside)
        } else {
            Err(Error::OtherPool { path: path.to_owned(), pool: self.mountpoint.clone() })
        }
    }

    fn of(mounted: &MountEntry) -> Result<PoolLink> {
        PoolLink::with(mounted.mountpoint.clone(), Daemon::of(mounted), mounted.is_read_only())
    }

    fn with(mountpoint: PathBuf, daemon: Daemon, is_read_only: bool) -> Result<PoolLink> {
        let report = daemon.status().map_err(|errno| match errno {
            Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED => Error::PoolDead(mountpoint.clone()),
            _ => Error::NotCanopy(mountpoint.clone()),
        })?;
        let mounts = mountinfo::list().unwrap_or_default();
        let link = |branch: &BranchReport| {
            let root =
                Some(branch).filter(|branch| is_there(branch)).and_then(|branch| open_root(branch).ok());
            BranchLink {
                path: branch.path.to_path(),
                mode: branch.mode.clone(),
                min_free: branch.min_free,
                is_well: branch.found() == BranchState::Up,
                loses: Loses::of(&mounts, branch, root.as_ref()),
                is_named: false,
                record: branch.remembered.as_ref().map(|known| known.file.to_path()),
                is_missing: branch.remembered.as_ref().is_some_and(|known| known.shown),
                root,
            }
        };
        let branches = report.branches.iter().map(link);
        let mut branches: Vec<BranchLink> = branches.collect();
        if branches.iter().all(|branch| branch.loses.is_some()) {
            // There is nothing to lose.
            branches.iter_mut().for_each(|branch| branch.loses = None);
        }
        let option = report.options.get("keep").map_or("", String::as_str);
        let keep = Keep::of(option, branches.iter().map(|branch| branch.path.as_path()))?;
        Ok(PoolLink { mountpoint, daemon, is_read_only, branches, keep, accepts_losses: false })
    }

    /// Lets branches take files that lose something there, if the user says so.
    pub(crate) fn accepting_losses(mut self, accept: bool) -> PoolLink {
        self.accepts_losses = accept;
        if accept {
            self.branches.iter_mut().for_each(|branch| branch.loses = None);
        }
        self
    }

    /// Returns the branches on which a file would lose something, and which the user has not named.
    pub(crate) fn losing(&self, stat: &Stat) -> Vec<usize> {
        let loses =
            |branch: &BranchLink| !branch.is_named && branch.loses.is_some_and(|loses| !loses.keeps(stat));
        (0..self.branches.len()).filter(|branch| loses(&self.branches[*branch])).collect()
    }

    /// Returns the branches that cannot be looked at.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &Path> {
        self.branches.iter().filter(|branch| branch.root.is_none()).map(|branch| branch.path.as_path())
    }
}

/// Asks the daemon for the files that were closed since another such report, where rules want copies. A daemon of another
/// version answers with none.
pub(crate) fn closed_since(daemon: &Daemon, after: u64) -> ClosedReport {
    match daemon.ask(&Query::Closed(after)) {
        Ok(Answer::Closed(report)) => report,
        _ => ClosedReport::default(),
    }
}

/// Returns an absolute path, without a slash at its end.
pub(crate) fn below(mountpoint: &Path, path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { mountpoint.to_owned() } else { mountpoint.join(path) }
}

/// A branch that hangs would hang this command as well.
fn is_there(branch: &BranchReport) -> bool {
    !matches!(branch.found(), BranchState::Awaited | BranchState::Gone | BranchState::Hung)
}

fn open_root(branch: &BranchReport) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(branch.path.to_path(), flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&root)?;
    // Another directory may be mounted there by now.
    let known = branch.dev != 0 && (stat.st_dev, stat.st_ino) != (branch.dev, branch.ino);
    if known { Err(Errno::STALE) } else { Ok(root) }
}

impl BranchLink {
    /// A branch of no pool.
    #[cfg(test)]
    pub(crate) fn at(path: &Path) -> BranchLink {
        BranchLink::alone(path).expect("a directory")
    }

    /// A branch whose pool is not asked.
    pub(crate) fn alone(path: &Path) -> Result<BranchLink, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Some(rustix::fs::open(path, flags, Mode::empty())?);
        let (path, mode) = (path.to_owned(), "RW".to_owned());
        Ok(BranchLink {
            path,
            mode,
            min_free: 0,
            is_well: true,
            loses: None,
            is_named: false,
            record: None,
            is_missing: false,
            root,
        })
    }

    /// Files may move away from it.
    pub(crate) fn gives(&self) -> bool {
        self.root.is_some() && self.is_well && self.mode != "RO"
    }

    /// Files may move to it, but for those that it [loses](PoolLink::losing) something of.
    pub(crate) fn takes(&self) -> bool {
        self.gives() && self.mode == "RW"
    }

    /// It can store all of every file, or the user has named it.
    pub(crate) fn is_whole(&self) -> bool {
        self.loses.is_none() || self.is_named
    }

    /// Returns the filesystem that it is on, if it can be looked at.
    pub(crate) fn filesystem(&self) -> Option<u64> {
        self.root().ok().map(|root| FilesystemId::of(root).filesystem)
    }

    pub(crate) fn root(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.root.as_ref().map(AsFd::as_fd).ok_or(Errno::NODEV)
    }

    /// Opens what the branch holds at a path. Symlinks are not followed anywhere in it.
    pub(crate) fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = path.as_os_str().as_bytes();
        if flags.contains(OFlags::NONBLOCK) {
            // Of openat2(2), EAGAIN also says that a rename was in the way: that one is tried again, and not for as long as
            // somebody holds a lease.
            let found = beneath::open(self.root()?, path, OFlags::PATH | OFlags::NOFOLLOW)?;
            return beneath::reopen(found.as_fd(), flags);
        }
        beneath::open(self.root()?, path, flags | OFlags::NOFOLLOW)
    }

    /// Opens a directory of the branch for reading. Symlinks are not followed anywhere in its path.
    pub(crate) fn dir(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Returns the attributes of what the branch holds at a path.
    pub(crate) fn stat(&self, path: &Path) -> Result<Stat, Errno> {
        let file = self.open(path, OFlags::PATH)?;
        rustix::fs::statat(&file, "", AtFlags::EMPTY_PATH)
    }
}

/// Returns whether the pool hides a name: its control file, and what the daemon has under construction.
pub(crate) fn is_hidden(dir: &Path, name: &[u8]) -> bool {
    is_reserved(name) || (dir.as_os_str().is_empty() && name == CONTROL_FILE.as_bytes())
}

/// The pools that tests serve in this process, by their mountpoints.
#[cfg(test)]
pub(crate) mod served_here {
    use canopy_control::daemon::Daemon;
    use canopy_control::mount::Mount;
    use std::collections::HashMap;
    use std::path::{Path, PathBuf};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

    type Pools = HashMap<PathBuf, Weak<dyn Mount>>;

    static POOLS: Mutex<Option<Pools>> = Mutex::new(None);

    fn pools() -> MutexGuard<'static, Option<Pools>> {
        POOLS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(mountpoint: &Path, mount: &Arc<dyn Mount>) {
        pools().get_or_insert_default().insert(mountpoint.to_owned(), Arc::downgrade(mount));
    }

    pub(crate) fn remove(mountpoint: &Path) {
        pools().get_or_insert_default().remove(mountpoint);
    }

    pub(super) fn daemon(mountpoint: &Path) -> Option<Daemon> {
        Some(Daemon::behind(pools().as_ref()?.get(mountpoint)?.upgrade()?))
    }
}
