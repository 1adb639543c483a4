//! A walk over all names on a branch.

use super::reserved::is_reserved;
use super::{beneath, stat};
use canopy_base::path::{PoolPath, join};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;

/// A name that a walk has reached.
pub struct Visited<'a> {
    pub dir: &'a [u8],
    pub name: &'a [u8],
    pub ino: u64,
    /// The file type according to the directory; may be unknown.
    pub kind: FileType,
}

/// Visits every name below the root that is on the filesystem `dev`, until `visit` breaks off. Reads each directory
/// once, and calls stat only for directories. A million names take about a second if they are in memory, and
/// otherwise as long as the disk takes to read the directories. Skips the pool's reserved names.
pub fn walk(
    root: BorrowedFd<'_>,
    dev: u64,
    mut visit: impl FnMut(&Visited<'_>) -> ControlFlow<()>,
) -> Result<(), Errno> {
    let mut todo = vec![PoolPath::new()];
    let mut buffer = [MaybeUninit::uninit(); 32768];
    while let Some(path) = todo.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NOATIME;
        let dir = match beneath::open(root, &path, flags) {
            Err(Errno::PERM) => beneath::open(root, &path, flags - OFlags::NOATIME),
            other => other,
        };
        let dir = match dir {
            // Removed in the meantime. What has been moved may be missed.
            Err(errno) if beneath::is_absent(errno) => continue,
            other => other?,
        };
        // Another filesystem is mounted there.
        if stat::of(dir.as_fd())?.dev != dev {
            continue;
        }
        let mut entries = RawDir::new(&dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") || is_reserved(name) {
                continue;
            }
            let kind = entry.file_type();
            let visited = Visited { dir: &path, name, ino: entry.ino(), kind };
            if visit(&visited).is_break() {
                return Ok(());
            }
            let is_dir = || stat::at(&dir, name).is_ok_and(|attr| attr.is_dir());
            if kind == FileType::Directory || kind == FileType::Unknown && is_dir() {
                todo.push(join(&path, name));
            }
        }
    }
    Ok(())
}
