//! A directory to test in, and the promise that nothing of it is left in use.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

use crate::{leaks, procs, require_root};

/// A temporary directory that everybody may enter, with some directories in it.
#[derive(Debug)]
pub struct Ground {
    // Dropped in this order: the check comes before what it looks at is removed.
    _guard: leaks::Guard,
    dir: TempDir,
}

impl Ground {
    /// # Panics
    /// Without root, and where no directory can be made.
    #[track_caller]
    pub fn new(prefix: &str, names: &[&str]) -> Self {
        require_root();
        let dir = tempfile::Builder::new().prefix(prefix).tempdir().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        for name in names {
            fs::create_dir(dir.path().join(name)).expect("mkdir");
        }
        Self { _guard: leaks::Guard::under(dir.path()), dir }
    }

    /// Resolved.
    pub fn dir(&self) -> PathBuf {
        self.dir.path().canonicalize().expect("the directory")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    /// The words of a line, where `@name` stands for a path of this ground.
    pub fn words(&self, line: &str) -> Vec<String> {
        let here = format!("{}/", self.dir().display());
        line.split_whitespace().map(|word| word.replace('@', &here)).collect()
    }
}

/// The program to test: `CANOPY_BIN`, or the one that was built along with the tests.
pub fn program_to_test(built: &str) -> PathBuf {
    std::env::var_os("CANOPY_BIN").map_or_else(|| built.into(), PathBuf::from)
}

impl Drop for Ground {
    /// What a test that fails has left mounted would be emptied along with the directory.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let left = procs::mounts().into_iter().rev().filter(|mount| mount.point.starts_with(self.dir.path()));
        for mount in left {
            let _ = unmount(&mount.point, UnmountFlags::DETACH);
        }
    }
}
