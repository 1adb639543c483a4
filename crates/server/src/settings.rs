//! The configuration in force, and the lock over a change of it.

use crate::error::Error;
use arc_swap::ArcSwap;
use canopy_config::Config;
use canopy_pool::branch::BranchList;
use canopy_sys::mountinfo;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

pub(crate) struct Settings {
    /// Read without waiting: a change may wait for a disk.
    now: ArcSwap<Config>,
    /// Held over a change, so that changes come one after the other.
    changing: Mutex<()>,
    mountpoint: PathBuf,
    /// The pool can be seen at its mountpoint.
    shown: AtomicBool,
    /// Its device, as soon as it has been found there.
    device: OnceLock<(u32, u32)>,
    /// With `landlock`, what the workers can reach: the branches that the pool was mounted with. `None` for everything.
    ground: Option<Vec<PathBuf>>,
}

impl Settings {
    pub(crate) fn new(mut config: Config, mountpoint: PathBuf, ground: Option<Vec<PathBuf>>) -> Settings {
        config.file.running_pool = Some(mountpoint.clone());
        let now = ArcSwap::from_pointee(config);
        Settings {
            now,
            changing: Mutex::default(),
            mountpoint,
            shown: AtomicBool::new(false),
            device: OnceLock::new(),
            ground,
        }
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.now.load_full()
    }

    /// The branches as they were given, including those that do not exist yet.
    pub(crate) fn branches(&self) -> BranchList {
        self.now.load().branches.clone()
    }

    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Keeps the configuration and the branches from being changed by others while the guard lives.
    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    /// Puts a configuration in force. Called with [`Self::changing`] held.
    pub(crate) fn store(&self, config: Config) {
        self.now.store(Arc::new(config));
    }

    /// The pool can be seen at its mountpoint from now on.
    pub(crate) fn shown(&self) {
        self.shown.store(true, Ordering::Release);
        let _ = self.device();
    }

    /// The pool's own device (major, minor); `None` until the pool can be seen at its mountpoint.
    pub(crate) fn device(&self) -> Option<(u32, u32)> {
        if let Some(device) = self.device.get() {
            return Some(*device);
        }
        // The mount table can miss a line when mounts come and go while it is read, so it is read again the next time.
        let mounted =
            mountinfo::at(&self.mountpoint).ok().flatten().filter(|_| self.shown.load(Ordering::Acquire));
        mounted.map(|mounted| *self.device.get_or_init(|| mounted.device))
    }

    /// Can the workers reach this path?
    pub(crate) fn is_on_ground(&self, path: &Path) -> bool {
        self.ground.as_ref().is_none_or(|ground| ground.iter().any(|root| path.starts_with(root)))
    }

    /// Errors: `EXDEV` for a branch that the workers cannot reach.
    pub(crate) fn on_ground(&self, list: &BranchList) -> Result<(), Errno> {
        let Some(spec) = list.iter().find(|spec| !self.is_on_ground(&spec.path)) else { return Ok(()) };
        let (branch, pool) = (spec.path.clone(), self.mountpoint.clone());
        tracing::warn!("{}", Error::OutsideOfLandlock { branch, pool });
        Err(Errno::XDEV)
    }
}
