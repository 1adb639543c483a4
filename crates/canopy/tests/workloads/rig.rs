//! Shared helpers: disks with a branch on each, pools over them, and shell commands.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use canopy_testkit::cmd::{Finished, run_within};
use canopy_testkit::{Kind, LoopFs, PATIENCE, Pool, Tree, files};

/// Images are sparse; no test fills a disk.
const DISK: u64 = 4 << 30;

/// Option sets that together cover every data path: passthrough and through the daemon.
pub(super) const DATA_PATHS: [&str; 3] =
    ["", "passthrough.io=off,cache.files=off", "passthrough.io=off,cache.files=full"];

/// Separate filesystems with a branch directory on each.
#[derive(Debug)]
pub(super) struct Disks(Vec<LoopFs>);

impl Disks {
    #[track_caller]
    pub(super) fn new(kinds: &[Kind]) -> Self {
        let size = |kind: Kind| if kind == Kind::Tmpfs { 1 << 30 } else { DISK };
        let disks: Vec<LoopFs> = kinds.iter().map(|&kind| LoopFs::new(kind, size(kind))).collect();
        for disk in &disks {
            fs::create_dir(disk.path().join("branch")).unwrap();
        }
        Self(disks)
    }

    pub(super) fn branches(&self) -> Vec<PathBuf> {
        self.0.iter().map(|disk| disk.path().join("branch")).collect()
    }

    /// Mounts a pool over all branches.
    #[track_caller]
    pub(super) fn pool(&self, options: &str) -> Pool {
        let builder = Pool::builder(env!("CARGO_BIN_EXE_canopy")).option("minfreespace=0").option(options);
        builder.branches(self.branches()).mount()
    }

    /// Returns the union of the branches. Each file must be on one branch only, and copies of a directory must agree.
    #[track_caller]
    pub(super) fn union(&self) -> Tree {
        let trees: Vec<Tree> = self.branches().iter().map(Tree::capture).collect();
        Tree::union(&trees).unwrap_or_else(|faults| panic!("the branches disagree:\n{faults}"))
    }

    /// Returns the number of files and directories on each branch.
    pub(super) fn spread(&self) -> Vec<usize> {
        self.branches().iter().map(|branch| files::walk(branch).len()).collect()
    }
}

/// Returns a plain filesystem to compare with or to copy from.
#[track_caller]
pub(super) fn plain() -> LoopFs {
    LoopFs::new(Kind::Ext4, DISK)
}

/// Runs a shell script in a directory; `args` become `$1`, `$2` and so on.
pub(super) fn shell(dir: &Path, script: &str, args: &[&OsStr]) -> Finished {
    let mut command = Command::new("sh");
    command.current_dir(dir).args(["-eu", "-c", script, "sh"]).args(args);
    run_within(&mut command, 3 * PATIENCE)
}

/// Runs a shell script like [`shell`], which must succeed, and returns its stdout.
#[track_caller]
pub(super) fn shell_ok(dir: &Path, script: &str, args: &[&OsStr]) -> String {
    let done = shell(dir, script, args);
    assert!(done.success(), "{script}\n{}", done.describe());
    done.stdout
}
