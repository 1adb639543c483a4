//! Pools over plain directories, and the keys of their files.

use canopy_testkit::{Pool, PoolBuilder, ScratchDir, proc, xattr};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_canopy");

/// The directories `a` to `d`, which serve as branches.
pub(super) struct Dirs(ScratchDir);

impl Dirs {
    #[track_caller]
    pub(super) fn new() -> Self {
        Dirs(ScratchDir::new("canopy-control-", &["a", "b", "c", "d"]))
    }

    /// Returns the path of a directory or file with symlinks resolved, as the pool shows it.
    #[track_caller]
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    /// Returns the same path as text.
    #[track_caller]
    pub(super) fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// Describes a pool over `a` and `b`.
    pub(super) fn builder(&self, options: &str) -> PoolBuilder {
        let branches = ["a", "b"].map(|name| self.path(name));
        Pool::builder(BINARY).branches(branches).option("minfreespace=0").option(options)
    }

    /// Mounts a pool over `a` and `b`.
    #[track_caller]
    pub(super) fn pool(&self, options: &str) -> Pool {
        self.builder(options).mount()
    }
}

/// Returns the value of a key of a file in the pool.
pub(super) fn key(path: &Path, key: &str) -> Result<String, Errno> {
    let value = xattr::get(path, &format!("user.mergerfs.{key}"))?;
    Ok(String::from_utf8(value).expect("UTF-8"))
}

/// A private mount of fusectl, so that the tests do not depend on the machine's own.
pub(super) struct Connections(TempDir);

impl Connections {
    pub(super) fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        mount("none", home.path(), "fusectl", MountFlags::empty(), None).expect("fusectl");
        Connections(home)
    }

    /// Returns how many requests a pool has not answered.
    pub(super) fn waiting(&self, pool: &Pool) -> u32 {
        let minor = proc::mount_at(pool.path()).expect("a mount").minor;
        let text = fs::read_to_string(self.0.path().join(format!("{minor}/waiting"))).expect("a count");
        text.trim().parse().expect("a number")
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}
