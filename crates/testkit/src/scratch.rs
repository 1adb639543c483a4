//! A temporary directory that checks for leaks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

use crate::{LeakCheck, proc, require_root};

/// A temporary directory that every user may enter. Dropping it checks that nothing in it is still in use, then
/// removes it.
#[derive(Debug)]
pub struct ScratchDir {
    // Dropped in this order: the check comes before the directory is removed.
    _leak_check: LeakCheck,
    dir: TempDir,
}

impl ScratchDir {
    /// Makes a directory whose name starts with `prefix`, and directories of these names in it.
    ///
    /// # Panics
    /// Without root, or if a directory cannot be made.
    #[track_caller]
    pub fn new(prefix: &str, names: &[&str]) -> Self {
        require_root();
        let dir = tempfile::Builder::new().prefix(prefix).tempdir().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        for name in names {
            fs::create_dir(dir.path().join(name)).expect("mkdir");
        }
        Self { _leak_check: LeakCheck::under(dir.path()), dir }
    }

    /// The path of the directory, with symlinks resolved.
    pub fn dir(&self) -> PathBuf {
        self.dir.path().canonicalize().expect("the directory")
    }

    /// The path of `name` in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    /// Replaces each `@name` in a text by the path of `name` in the directory.
    pub fn expand(&self, text: &str) -> String {
        text.replace('@', &format!("{}/", self.dir().display()))
    }

    /// Replaces paths in the directory by `@name`, the inverse of [`ScratchDir::expand`].
    pub fn shorten(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.dir().display()), "@")
    }

    /// The words of a line, each [expanded](ScratchDir::expand).
    pub fn words(&self, line: &str) -> Vec<String> {
        line.split_whitespace().map(|word| self.expand(word)).collect()
    }

    /// Writes an [expanded](ScratchDir::expand) text to a file in the directory.
    ///
    /// # Panics
    /// If the file cannot be written.
    #[track_caller]
    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::write(&path, self.expand(text)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Returns the mount at `name`, if there is one.
    pub fn mount_at(&self, name: &str) -> Option<proc::Mount> {
        proc::mount_at(&self.path(name))
    }
}

impl Drop for ScratchDir {
    /// Detaches mounts that a failing test has left behind. Otherwise removing the directory would delete their files.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let left = proc::mounts().into_iter().rev().filter(|mount| mount.point.starts_with(self.dir.path()));
        for mount in left {
            let _ = unmount(&mount.point, UnmountFlags::DETACH);
        }
    }
}
