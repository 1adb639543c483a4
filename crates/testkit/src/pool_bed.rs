//! A pool over filesystems of its own, or over directories of one.

use std::fs;
use std::path::PathBuf;

use crate::cmd::{PATIENCE, wait_until};
use crate::{LoopFs, Pool, PoolBuilder, ScratchDir};

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

/// A mounted pool whose branches are directories of one filesystem, and an empty directory `home` beside them.
#[derive(Debug)]
pub struct DirBed {
    // Dropped first: it uses the directories.
    pub pool: Pool,
    pub scratch: ScratchDir,
}

impl DirBed {
    /// Mounts a pool over directories of these names, without minfreespace and caches. `built` is the program, usually
    /// `env!("CARGO_BIN_EXE_canopy")`.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn new(built: &str, branches: &[&str]) -> Self {
        DirBed::with(built, branches, |builder| builder)
    }

    /// As [`DirBed::new`], with more options.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn with(built: &str, branches: &[&str], build: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
        let dirs: Vec<&str> = branches.iter().copied().chain(["home"]).collect();
        let scratch = ScratchDir::new("canopy-dirs-", &dirs);
        let builder = Pool::builder(built).branches(branches.iter().map(|name| scratch.path(name)));
        let pool = build(builder.option("minfreespace=0,cache.attr=0,cache.entry=0")).mount();
        DirBed { pool, scratch }
    }

    /// A path in the pool.
    pub fn at(&self, path: &str) -> PathBuf {
        self.pool.path().join(path)
    }

    /// A path on a branch.
    pub fn on(&self, branch: &str, path: &str) -> PathBuf {
        self.scratch.path(branch).join(path)
    }

    /// Writes a file to a branch, with its directories.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn put(&self, branch: &str, path: &str, content: impl AsRef<[u8]>) {
        let path = self.on(branch, path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("mkdir");
        fs::write(path, content).expect("write");
    }
}
