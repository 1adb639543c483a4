//! A pool over filesystems of its own.

use std::fs;
use std::path::PathBuf;

use crate::cmd::{PATIENCE, wait_until};
use crate::{LoopFs, Pool, PoolBuilder};

/// A mounted pool and the filesystems that are its branches.
#[derive(Debug)]
pub struct PoolBed {
    // Dropped first: a branch that is in use cannot be unmounted.
    pub pool: Pool,
    pub disks: Vec<LoopFs>,
}

impl PoolBed {
    /// Mounts a pool over these filesystems, without `lost+found`.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn mount(builder: PoolBuilder, disks: impl Into<Vec<LoopFs>>) -> Self {
        let disks = disks.into();
        for disk in &disks {
            let _ = fs::remove_dir(disk.path().join("lost+found"));
        }
        let pool = builder.branches(disks.iter().map(LoopFs::path)).mount();
        PoolBed { pool, disks }
    }

    /// A path in the pool.
    pub fn at(&self, path: &str) -> PathBuf {
        self.pool.path().join(path)
    }

    /// A path on a branch.
    pub fn on(&self, branch: usize, path: &str) -> PathBuf {
        self.disks[branch].path().join(path)
    }

    /// Returns the branches on which `path` exists.
    pub fn branches_with(&self, path: &str) -> Vec<usize> {
        (0..self.disks.len()).filter(|branch| fs::symlink_metadata(self.on(*branch, path)).is_ok()).collect()
    }

    /// Waits until the daemon has closed a file, which happens after close(2) has returned.
    ///
    /// # Panics
    /// If the file stays open.
    #[track_caller]
    pub fn wait_until_closed(&self, path: &str) {
        let open = || self.pool.branch_descriptors().iter().any(|held| held.ends_with(path));
        assert!(wait_until(PATIENCE, || !open()), "{path} stays open");
    }
}
