//! The configuration in force, and the lock for changing it.

use crate::error::Error;
use crate::lock_rank as rank;
use crate::survival::Ledger;
use arc_swap::ArcSwap;
use canopy_base::lock::ranked::{Mutex, MutexGuard};
use canopy_branch::branch::BranchList;
use canopy_config::Config;
use canopy_sys::mountinfo;
use canopy_sys::shown::Show as _;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

pub(crate) struct Settings {
    /// Readers never wait: a change may have to wait for a disk.
    current: ArcSwap<Config>,
    /// Held while the configuration or the branches change, so that changes come one after another.
    changes: Mutex<(), rank::SettingsChange>,
    mountpoint: PathBuf,
    /// The pool is attached at its mountpoint.
    attached: AtomicBool,
    /// The device number of the pool's mount, once it was found there.
    device: OnceLock<(u32, u32)>,
    /// With `landlock`, the paths that the workers can reach: the branches that the pool was mounted with. `None`
    /// without.
    reachable: Option<Vec<PathBuf>>,
    /// Where changes are recorded for the next process.
    ledger: Option<Ledger>,
}

impl Settings {
    pub(crate) fn new(
        mut config: Config,
        mountpoint: PathBuf,
        reachable: Option<Vec<PathBuf>>,
        ledger: Option<Ledger>,
    ) -> Settings {
        config.file.running_pool = Some(mountpoint.clone());
        Settings {
            current: ArcSwap::from_pointee(config),
            changes: Mutex::default(),
            mountpoint,
            attached: AtomicBool::new(false),
            device: OnceLock::new(),
            reachable,
            ledger,
        }
    }

    /// Returns the configuration in force.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.current.load_full()
    }

    /// Returns the branches as given, including those that do not exist yet.
    pub(crate) fn branches(&self) -> BranchList {
        self.current.load().branches.clone()
    }

    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Locks the configuration and the branches against changes by others.
    pub(crate) fn lock_changes(&self) -> MutexGuard<'_, (), rank::SettingsChange> {
        self.changes.lock()
    }

    /// Puts a configuration in force. The caller holds [`Self::lock_changes`].
    pub(crate) fn store(&self, config: Config) {
        self.current.store(Arc::new(config));
    }

    /// Records a setting that was changed, for a process that takes over. The caller holds [`Self::lock_changes`].
    pub(crate) fn record(&self, key: &str, value: &[u8]) {
        if let Some(ledger) = &self.ledger
            && !ledger.record_setting(key, value)
        {
            tracing::warn!("{key} is too long: a process that takes over will not know that it has changed");
        }
    }

    /// Records where a branch is mounted, for a process that takes over. The caller holds [`Self::lock_changes`], or nobody
    /// serves yet.
    pub(crate) fn record_mountpoint(&self, branch: &Path, mountpoint: &Path) {
        if let Some(ledger) = &self.ledger
            && !ledger.record_mountpoint(branch, mountpoint)
        {
            tracing::warn!("{}: no room to record its mount for a process that takes over", branch.shown());
        }
    }

    /// Returns where branches were mounted in the process before this one, if there was one.
    pub(crate) fn mountpoints_before(&self) -> Vec<(PathBuf, PathBuf)> {
        self.ledger.as_ref().map(|ledger| ledger.mountpoints()).unwrap_or_default()
    }

    /// Records that the pool is attached at its mountpoint from now on.
    pub(crate) fn set_attached(&self) {
        self.attached.store(true, Ordering::Release);
        let _ = self.device();
    }

    /// Returns the device number (major, minor) of the pool; `None` until it is attached at its mountpoint.
    pub(crate) fn device(&self) -> Option<(u32, u32)> {
        if let Some(device) = self.device.get() {
            return Some(*device);
        }
        // Before that, the mount at the mountpoint may be the pool that this one replaces.
        if !self.attached.load(Ordering::Acquire) {
            return None;
        }
        // A read of the mount table can miss a line while mounts change. Then the next call reads it again.
        let mounted = mountinfo::at(&self.mountpoint).ok().flatten()?;
        Some(*self.device.get_or_init(|| mounted.device))
    }

    /// Returns whether the workers can reach this path.
    pub(crate) fn is_reachable(&self, path: &Path) -> bool {
        self.reachable.as_ref().is_none_or(|roots| roots.iter().any(|root| path.starts_with(root)))
    }

    /// Checks that the workers can reach every branch of a list.
    ///
    /// Errors: `EXDEV` for a branch that they cannot reach.
    pub(crate) fn check_reachable(&self, list: &BranchList) -> Result<(), Errno> {
        let Some(spec) = list.iter().find(|spec| !self.is_reachable(&spec.path)) else { return Ok(()) };
        let (branch, pool) = (spec.path.clone(), self.mountpoint.clone());
        tracing::warn!("{}", Error::OutsideOfLandlock { branch, pool });
        Err(Errno::XDEV)
    }
}
