//! Where files are: `canopy which`, `canopy ls` and `canopy du`; and where they were: `canopy lost`.

mod du;
mod lost;
mod ls;
mod which;

use canopy_sys::shown::Show as _;
pub use du::{DuArgs, du};
pub use lost::{ForgetArgs, LostArgs, forget, lost};
pub use ls::{LsArgs, ls};
pub use which::{WhichArgs, which};

use crate::output::complain;
use crate::pool_link::PoolLink;
use crate::survey::FileCopy;
use canopy_base::text::{date, os_error};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Counts and reports what cannot be looked at.
#[derive(Default)]
struct Failures(u64);

impl Failures {
    fn add(&mut self, path: &Path, errno: Errno) {
        self.0 += 1;
        complain(&format!("{}: {}", path.shown(), os_error(errno)));
    }
}

fn kind_word(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        _ => "unknown",
    }
}

/// Formats a time as `2026-11-24 10:00:00`, in UTC.
fn seconds(seconds: i64) -> String {
    let text = date(seconds);
    text.split('+').next().unwrap_or(&text).replace('T', " ")
}

/// Returns in what the copies of one name differ: words for people and programs. Data is not compared.
fn differences(copies: &[FileCopy]) -> Vec<&'static str> {
    let Some((first, others)) = copies.split_first() else { return Vec::new() };
    let differs = |same: &dyn Fn(&FileCopy) -> bool| !others.iter().all(same);
    let mut found = Vec::new();
    if differs(&|other| other.kind() == first.kind()) {
        return vec!["type"];
    }
    // A directory's size and times are its filesystem's affair.
    if !first.is_dir() {
        if differs(&|other| other.size() == first.size()) {
            found.push("size");
        }
        if differs(&|other| other.modified() == first.modified()) {
            found.push("mtime");
        }
    }
    if differs(&|other| other.stat.st_mode == first.stat.st_mode) {
        found.push("mode");
    }
    let owner = |copy: &FileCopy| (copy.stat.st_uid, copy.stat.st_gid);
    if differs(&|other| owner(other) == owner(first)) {
        found.push("owner");
    }
    found
}

/// Looks up the directory that a command begins at.
pub(crate) fn directory(path: &Path) -> crate::Result<(PoolLink, PathBuf)> {
    let real = path.canonicalize().map_err(|why| crate::Error::Path { path: path.to_owned(), why })?;
    if !real.is_dir() {
        return Err(crate::Error::NotDirectory(path.to_owned()));
    }
    PoolLink::holding(&real)
}
