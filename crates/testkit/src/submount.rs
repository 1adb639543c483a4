//! A mount on a directory inside another filesystem.

use crate::cmd::{run, run_unless_busy};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::panicking;

/// A mount that is unmounted on drop.
#[derive(Debug)]
pub struct Submount(PathBuf);

impl Submount {
    /// Mounts a tmpfs that holds one file ([`Submount::file`]).
    ///
    /// # Panics
    /// If the mount fails.
    pub fn tmpfs(point: PathBuf) -> Submount {
        run("mount", ["-t".as_ref(), "tmpfs".as_ref(), "nested".as_ref(), point.as_os_str()]);
        let submount = Submount(point);
        fs::write(submount.file(), "").expect("a file on a tmpfs");
        submount
    }

    /// Mounts an empty tmpfs with these comma-separated options, such as `noatime`.
    ///
    /// # Panics
    /// If the mount fails.
    pub fn empty_tmpfs(point: PathBuf, options: &str) -> Submount {
        let options = if options.is_empty() { "rw" } else { options };
        run(
            "mount",
            [
                "-t".as_ref(),
                "tmpfs".as_ref(),
                "-o".as_ref(),
                options.as_ref(),
                "none".as_ref(),
                point.as_os_str(),
            ],
        );
        Submount(point)
    }

    /// Mounts an empty ramfs, which has no extended attributes of users.
    ///
    /// # Panics
    /// If the mount fails.
    pub fn ramfs(point: PathBuf) -> Submount {
        run("mount", ["-t".as_ref(), "ramfs".as_ref(), "none".as_ref(), point.as_os_str()]);
        Submount(point)
    }

    /// Bind-mounts a directory or file at another place.
    ///
    /// # Panics
    /// If the mount fails.
    pub fn bind(from: &Path, point: &Path) -> Submount {
        run("mount", ["--bind".as_ref(), from.as_os_str(), point.as_os_str()]);
        Submount(point.to_owned())
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The file that [`Submount::tmpfs`] makes.
    pub fn file(&self) -> PathBuf {
        self.0.join("nested")
    }
}

impl Drop for Submount {
    fn drop(&mut self) {
        let done = run_unless_busy(Command::new("umount").arg(&self.0), crate::PATIENCE);
        assert!(done.success() || panicking(), "cannot unmount {}: {}", self.0.display(), done.describe());
    }
}
