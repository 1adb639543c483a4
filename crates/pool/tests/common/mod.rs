//! What the tests of the pool share: branches in memory, and a client that behaves as the kernel does.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its own part")]

mod apply;
mod capture;
mod client;

pub use client::Client;

use canopy_pool::branch::{BranchList, BranchSpec, Branches, Mode};
use canopy_pool::config::Config;
use canopy_pool::kernel::{BackingFile, Kernel};
use canopy_pool::{Caller, NodeId, Pool};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

pub const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };

/// Takes directories in memory where there are any: the tests make very many.
pub fn home() -> TempDir {
    let shm = Path::new("/dev/shm");
    match shm.is_dir() {
        true => tempfile::Builder::new().prefix("canopy-").tempdir_in(shm),
        false => tempfile::tempdir(),
    }
    .expect("a directory for the branches")
}

/// A pool, and the directories that it joins.
pub struct Made {
    pub pool: Arc<Pool>,
    pub branches: Vec<PathBuf>,
    pub home: TempDir,
}

impl Made {
    pub fn client(&self) -> Client {
        Client::new(self.pool.clone())
    }

    /// A path on one branch.
    pub fn on(&self, branch: usize, path: &str) -> PathBuf {
        self.branches[branch].join(path)
    }
}

/// A pool over fresh branches of the given modes. There is no minimum of free space.
pub fn pool(modes: &[Mode], config: Config) -> Made {
    let home = home();
    let branches: Vec<PathBuf> =
        (0..modes.len()).map(|index| home.path().join(format!("b{index}"))).collect();
    for branch in &branches {
        std::fs::create_dir(branch).expect("a branch");
        chmod(branch, 0o755);
    }
    Made { pool: over(&branches, modes, config), branches, home }
}

/// A pool over directories that exist.
pub fn over(branches: &[PathBuf], modes: &[Mode], config: Config) -> Arc<Pool> {
    let spec =
        |(path, mode): (&PathBuf, &Mode)| BranchSpec { path: path.clone(), mode: *mode, min_free: None };
    let list: BranchList = branches.iter().zip(modes).map(spec).collect();
    let branches = Branches::open(&list).expect("branches");
    Arc::new(Pool::new(Config { min_free: 0, ..config }, branches))
}

/// Nobody changes the branches but the pool: it may remember what it has seen of them.
pub struct NobodyElse;

impl Kernel for NobodyElse {
    fn open_backing(&self, _: BorrowedFd<'_>) -> Result<Box<dyn BackingFile>, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    fn caught_up(&self) -> bool {
        true
    }
    fn invalidate_attr(&self, _: NodeId) {}
    fn forget_name(&self, _: NodeId, _: &[u8]) {}
}

pub fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}
