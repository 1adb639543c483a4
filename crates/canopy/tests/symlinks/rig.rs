//! Two branches, a pool over them, and its control file.

use canopy_testkit::cmd::wait_until;
use canopy_testkit::{LoopFs, Pool};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) struct Bed {
    pub(super) pool: Pool,
    disks: [LoopFs; 2],
}

impl Bed {
    /// `prepare` gets both branches before the pool is mounted.
    #[track_caller]
    pub(super) fn new(options: &str, prepare: impl FnOnce(&Path, &Path)) -> Bed {
        let disks = [LoopFs::tmpfs(32 << 20), LoopFs::tmpfs(32 << 20)];
        prepare(disks[0].path(), disks[1].path());
        let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .option("minfreespace=0")
            .option(options)
            .branch(disks[0].path())
            .branch(disks[1].path())
            .mount();
        Bed { pool, disks }
    }

    /// A path in the pool.
    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.pool.path().join(path)
    }

    /// A path on the first branch.
    pub(super) fn a(&self, path: &str) -> PathBuf {
        self.disks[0].path().join(path)
    }

    /// A path on the second branch.
    pub(super) fn b(&self, path: &str) -> PathBuf {
        self.disks[1].path().join(path)
    }

    /// Changes an option of the running pool, and reads it back.
    #[track_caller]
    pub(super) fn set(&self, key: &str, value: &str) {
        self.try_set(key, value).unwrap_or_else(|errno| panic!("{key}={value}: {errno}"));
        let mut buffer = [0; 4096];
        let name = format!("user.mergerfs.{key}");
        let size = rustix::fs::getxattr(self.at(".mergerfs"), name, &mut buffer).expect("the value");
        assert_eq!(String::from_utf8_lossy(&buffer[..size]), value, "{key}");
    }

    pub(super) fn try_set(&self, key: &str, value: &str) -> Result<(), Errno> {
        let name = format!("user.mergerfs.{key}");
        rustix::fs::setxattr(self.at(".mergerfs"), name, value.as_bytes(), XattrFlags::empty())
    }
}

pub(super) fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}

/// What a symlink says; waits for one, since the kernel may have to be told first that it is one.
#[track_caller]
pub(super) fn target(path: &Path) -> PathBuf {
    wait_until(Duration::from_secs(5), || fs::read_link(path).is_ok());
    fs::read_link(path).expect("a symlink")
}
