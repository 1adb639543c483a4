//! Pools over plain directories, and their control files as programs use them.

use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Pool, PoolBuilder, proc, require_root};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
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

/// Daemons that do nothing for as long as this lives.
pub(super) struct Stopped(Vec<Pid>);

impl Stopped {
    pub(super) fn new(pools: &[&Pool]) -> Self {
        let pids = pools.iter().map(|pool| Pid::from_raw(pool.pid()).expect("a daemon"));
        let stopped = Stopped(pids.collect());
        for &pid in &stopped.0 {
            kill_process(pid, Signal::STOP).expect("a signal");
            // Each thread goes on until it hears of it.
            assert!(wait_until(Duration::from_secs(20), || all_stopped(pid)), "{pid:?} goes on");
        }
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for &pid in &self.0 {
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

fn all_stopped(pid: Pid) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).expect("threads").flatten();
    tasks.into_iter().all(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'))
    })
}

/// What the kernel tells of its connections, wherever the machine has that or not.
pub(super) struct Connections(TempDir);

impl Connections {
    pub(super) fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        mount("none", home.path(), "fusectl", MountFlags::empty(), None).expect("fusectl");
        Connections(home)
    }

    /// Requests that a pool has not answered.
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
