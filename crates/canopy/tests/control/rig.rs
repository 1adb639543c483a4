//! Pools over plain directories, and their control files as programs use them.

use canopy_testkit::{Pool, PoolBuilder, require_root};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_canopy");

/// Directories `a` to `d` that serve as branches.
pub(super) struct Dirs(TempDir);

impl Dirs {
    #[track_caller]
    pub(super) fn new() -> Self {
        require_root();
        let home = tempfile::tempdir().expect("a directory");
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        for name in ["a", "b", "c", "d"] {
            fs::create_dir(home.path().join(name)).expect("a branch");
        }
        Dirs(home)
    }

    /// As the pool shows it, with links resolved.
    #[track_caller]
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().expect("a path").join(name)
    }

    #[track_caller]
    pub(super) fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// A pool to be over `a` and `b`.
    pub(super) fn builder(&self, options: &str) -> PoolBuilder {
        Pool::builder(BINARY)
            .branch(self.path("a"))
            .branch(self.path("b"))
            .option("minfreespace=0")
            .option(options)
    }

    #[track_caller]
    pub(super) fn pool(&self, options: &str) -> Pool {
        self.builder(options).mount()
    }
}

pub(super) fn control(pool: &Pool) -> PathBuf {
    pool.path().join(".mergerfs")
}

/// An attribute by its whole name.
pub(super) fn attribute(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 65_536];
    let length = rustix::fs::getxattr(path, name, buffer.as_mut_slice())?;
    buffer.truncate(length);
    Ok(buffer)
}

/// A key of a file, or of the control file.
pub(super) fn key(path: &Path, key: &str) -> Result<String, Errno> {
    let value = attribute(path, &format!("user.mergerfs.{key}"))?;
    Ok(String::from_utf8(value).expect("UTF-8"))
}

#[track_caller]
pub(super) fn get(pool: &Pool, name: &str) -> String {
    key(&control(pool), name).unwrap_or_else(|errno| panic!("get {name}: {errno}"))
}

pub(super) fn try_set(pool: &Pool, name: &str, value: &str) -> Result<(), Errno> {
    let name = format!("user.mergerfs.{name}");
    rustix::fs::setxattr(control(pool), name, value.as_bytes(), XattrFlags::empty())
}

#[track_caller]
pub(super) fn set(pool: &Pool, name: &str, value: &str) {
    try_set(pool, name, value).unwrap_or_else(|errno| panic!("set {name}={value}: {errno}\n{}", pool.log()));
}
