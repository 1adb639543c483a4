//! A pool over two or more filesystems of which the first is preferred, and what it says of them.

use canopy_testkit::cmd::wait_until;
use canopy_testkit::{LoopFs, Pool};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// For what a thread of the pool does by and by: a generous one, since the machine may be busy.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Ward {
    pub(super) pool: Pool,
    pub(super) disks: Vec<LoopFs>,
}

impl Ward {
    /// What is made goes to the first branch that takes it.
    #[track_caller]
    pub(super) fn new(disks: Vec<LoopFs>, options: &str) -> Ward {
        for disk in &disks {
            let _ = fs::remove_dir(disk.path().join("lost+found"));
        }
        let builder = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .option("minfreespace=0,category.create=ff")
            .option(options);
        let pool = disks.iter().fold(builder, |builder, disk| builder.branch(disk.path())).mount();
        Ward { pool, disks }
    }

    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.pool.path().join(path)
    }

    pub(super) fn on(&self, branch: usize, path: &str) -> PathBuf {
        self.disks[branch].path().join(path)
    }

    /// The pool as `canopy status --json` tells it.
    #[track_caller]
    pub(super) fn status(&self) -> Value {
        let done = self.pool.command(["status".as_ref(), self.pool.path().as_os_str(), "--json".as_ref()]);
        assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
        let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
        status["pools"][0].clone()
    }

    /// What the pool itself says of a branch: `None` while it relies on it.
    #[track_caller]
    pub(super) fn illness(&self, branch: usize) -> Option<String> {
        let status = self.status();
        let path = self.disks[branch].path();
        let branches = status["branches"].as_array().expect("branches");
        let told = branches.iter().find(|told| told["path"] == path.to_str().expect("text"));
        let told = told.unwrap_or_else(|| panic!("{} is not told of: {status:#}", path.display()));
        told["illness"]["health"].as_str().map(str::to_owned)
    }

    #[track_caller]
    pub(super) fn wait_for(&self, branch: usize, illness: Option<&str>) {
        let mut last = None;
        let came = wait_until(PATIENCE, || {
            last = self.illness(branch);
            last.as_deref() == illness
        });
        assert!(came, "branch {branch} is {last:?} and not {illness:?}\n{}", self.pool.log());
    }

    /// Makes one of each kind of thing.
    #[track_caller]
    pub(super) fn make_all(&self, prefix: &str) -> Vec<String> {
        let name = |kind: &str| format!("{prefix}{kind}");
        let cannot =
            |what: &str, why: &dyn std::fmt::Display| -> ! { panic!("{what}: {why}\n{}", self.pool.log()) };
        fs::write(self.at(&name("file")), prefix).unwrap_or_else(|why| cannot("create", &why));
        fs::create_dir(self.at(&name("dir"))).unwrap_or_else(|why| cannot("mkdir", &why));
        std::os::unix::fs::symlink("x", self.at(&name("link"))).unwrap_or_else(|why| cannot("symlink", &why));
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        rustix::fs::mknodat(rustix::fs::CWD, self.at(&name("fifo")), rustix::fs::FileType::Fifo, mode, 0)
            .unwrap_or_else(|why| cannot("mknod", &why));
        let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
        rustix::fs::open(self.pool.path(), flags, mode).unwrap_or_else(|why| cannot("O_TMPFILE", &why));
        ["file", "dir", "link", "fifo"].map(name).to_vec()
    }

    /// Asserts that these names are on one branch and nowhere else.
    #[track_caller]
    pub(super) fn only_on(&self, branch: usize, names: &[String]) {
        for name in names {
            let holders: Vec<usize> = (0..self.disks.len())
                .filter(|&index| fs::symlink_metadata(self.on(index, name)).is_ok())
                .collect();
            assert_eq!(holders, [branch], "{name}");
        }
    }
}

pub(super) fn is_fifo(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.file_type().is_fifo() && meta.permissions().mode() & 0o777 != 0)
}

/// Has ext4 meet an error of its own making.
#[track_caller]
pub(super) fn trigger_error(disk: &LoopFs) {
    let device = disk.device().and_then(Path::file_name).expect("a loop device");
    let trigger = Path::new("/sys/fs/ext4").join(device).join("trigger_fs_error");
    fs::write(trigger, "for a test").expect("an error that ext4 counts");
}
