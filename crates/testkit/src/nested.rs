//! A filesystem that somebody mounts in the middle of another one.

use crate::cmd::run;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::panicking;

/// A mount on a directory, for as long as it lives.
#[derive(Debug)]
pub struct Nested(PathBuf);

impl Nested {
    /// Mounts a tmpfs with a file in it.
    ///
    /// # Panics
    /// When that is refused.
    pub fn on(point: PathBuf) -> Nested {
        run("mount", ["-t".as_ref(), "tmpfs".as_ref(), "nested".as_ref(), point.as_os_str()]);
        let nested = Nested(point);
        fs::write(nested.file(), "").expect("a file on a tmpfs");
        nested
    }

    /// Shows a directory or file at another place as well, for as long as it lives.
    ///
    /// # Panics
    /// When that is refused.
    pub fn bind(from: &Path, point: &Path) -> Nested {
        run("mount", ["--bind".as_ref(), from.as_os_str(), point.as_os_str()]);
        Nested(point.to_owned())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The file that only this filesystem has.
    pub fn file(&self) -> PathBuf {
        self.0.join("nested")
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        let ended = Command::new("umount").arg(&self.0).output();
        let ended = ended.is_ok_and(|output| output.status.success());
        assert!(ended || panicking(), "cannot unmount {}", self.0.display());
    }
}
