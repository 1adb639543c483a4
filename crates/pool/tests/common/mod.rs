//! Pools without a mount: branches in memory, and the kernel's side, which is a client and callbacks.
#![allow(dead_code, unreachable_pub, reason = "no test program uses all of it")]

mod apply;
mod capture;
mod client;

pub use client::Client;

use canopy_base::ids::NodeId;
use canopy_branch::branch::{BranchList, BranchSpec, Branches, Mode};
use canopy_pool::config::Config;
use canopy_pool::kernel::{BackingFile, Kernel};
use canopy_pool::{Caller, Pool};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

pub const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };

/// Root as this process, who administers the pool. Of a caller without a process nothing is proved.
pub fn administrator() -> Caller {
    Caller { pid: std::process::id(), ..ROOT }
}

/// Tries an operation again until it need not wait, as the transport does.
pub fn patiently<T>(
    mut operation: impl FnMut() -> canopy_base::error::Result<T>,
) -> canopy_base::error::Result<T> {
    loop {
        match operation() {
            Err(canopy_base::error::Error::Wait(_)) => {
                std::thread::sleep(std::time::Duration::from_millis(1))
            }
            other => return other,
        }
    }
}

/// Makes a temporary directory, in memory if possible, because the tests make many files.
pub fn home() -> TempDir {
    let shm = Path::new("/dev/shm");
    (if shm.is_dir() {
        tempfile::Builder::new().prefix("canopy-").tempdir_in(shm)
    } else {
        tempfile::tempdir()
    })
    .expect("a directory for the branches")
}

/// A pool and the directories that are its branches.
pub struct Made {
    pub pool: Arc<Pool>,
    pub branches: Vec<PathBuf>,
    pub home: TempDir,
}

impl Made {
    pub fn client(&self) -> Client {
        Client::new(self.pool.clone())
    }

    /// A path on a branch.
    pub fn on(&self, branch: usize, path: &str) -> PathBuf {
        self.branches[branch].join(path)
    }
}

/// Makes a pool over new branches of these modes, without a minimum of free space.
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

/// Makes a pool over existing directories, without a minimum of free space.
pub fn over(branches: &[PathBuf], modes: &[Mode], config: Config) -> Arc<Pool> {
    let spec =
        |(path, mode): (&PathBuf, &Mode)| BranchSpec { path: path.clone(), mode: *mode, min_free: None };
    let list: BranchList = branches.iter().zip(modes).map(spec).collect();
    let branches = Branches::open(&list).expect("branches");
    Arc::new(Pool::new(Config { min_free: 0, ..config }, branches))
}

/// The kernel's side of a pool without a mount. By default it offers no passthrough, and reports that all changes on the
/// branches have been seen, so the pool may cache.
#[derive(Default)]
pub struct TestKernel {
    /// Offers passthrough, and counts the backing files.
    pub backing_files: Option<Arc<AtomicU32>>,
    /// Changes on the branches may have been missed, so the pool must not cache.
    pub unwatched: bool,
    /// The process that waits for each operation has been killed.
    pub caller_is_killed: bool,
    /// A signal has reached that process.
    pub caller_is_interrupted: bool,
    /// How often it was to drop the pages of a file.
    pub pages_dropped: Arc<AtomicU32>,
}

struct NumberedFile(u32);

impl BackingFile for NumberedFile {
    fn id(&self) -> u32 {
        self.0
    }
}

impl Kernel for TestKernel {
    fn open_backing(&self, _: BorrowedFd<'_>) -> Result<Box<dyn BackingFile>, Errno> {
        let count = self.backing_files.as_ref().ok_or(Errno::OPNOTSUPP)?;
        Ok(Box::new(NumberedFile(count.fetch_add(1, Ordering::Relaxed) + 1)))
    }
    fn adopt_backing(&self, id: u32) -> Box<dyn BackingFile> {
        Box::new(NumberedFile(id))
    }
    fn caught_up(&self) -> bool {
        !self.unwatched
    }
    fn invalidate_attr(&self, _: NodeId) {}
    fn drop_pages(&self, _: NodeId) {
        self.pages_dropped.fetch_add(1, Ordering::Relaxed);
    }
    fn forget_name(&self, _: NodeId, _: &[u8]) {}
    fn caller_is_killed(&self) -> bool {
        self.caller_is_killed
    }
    fn caller_is_interrupted(&self) -> bool {
        self.caller_is_interrupted
    }
}

pub fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}
