//! A pool over plain directories, and running commands on it.

use canopy_testkit::cmd::{Finished, run_within};
use canopy_testkit::{PATIENCE, Pool, PoolBuilder, ScratchDir};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_canopy");

/// A pool whose branches are directories of one filesystem.
pub(super) struct Rig {
    // Dropped first: it uses the directories.
    pub(super) pool: Pool,
    pub(super) scratch: ScratchDir,
}

impl Rig {
    pub(super) fn with(branches: &[&str], build: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Rig {
        let dirs: Vec<&str> = branches.iter().copied().chain(["home"]).collect();
        let scratch = ScratchDir::new("canopy-trash-", &dirs);
        let builder = Pool::builder(BINARY).branches(branches.iter().map(|name| scratch.path(name)));
        let pool = build(builder.option("minfreespace=0,cache.attr=0,cache.entry=0")).mount();
        Rig { pool, scratch }
    }

    /// A path in the pool.
    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.pool.path().join(path)
    }

    /// A path on a branch.
    pub(super) fn on(&self, branch: &str, path: &str) -> PathBuf {
        self.scratch.path(branch).join(path)
    }

    /// Writes a file to a branch, with its directories.
    pub(super) fn put(&self, branch: &str, path: &str, content: impl AsRef<[u8]>) {
        let path = self.on(branch, path);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("mkdir");
        std::fs::write(path, content).expect("write");
    }
}

/// Runs `canopy COMMAND ARGS`.
pub(super) fn canopy<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Finished {
    run_within(Command::new(BINARY).args(args), PATIENCE)
}

/// Returns what a command that must succeed prints, as JSON.
#[track_caller]
pub(super) fn json(done: &Finished) -> Value {
    assert!(done.success(), "{}", done.describe());
    serde_json::from_str(&done.stdout).unwrap_or_else(|why| panic!("{why}: {}", done.describe()))
}
