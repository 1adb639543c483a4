//! Reads a directory of a branch, to remember it.

use super::rows::{Listing, Row};
use crate::fs::reserved::is_reserved;
use crate::fs::{beneath, stat, xattr};
use canopy_sys::file_handle;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

/// The attribute of `canopy verify`, and the longest value that is kept.
const CHECKSUM: &[u8] = b"user.canopy.blake3";
const LONGEST_CHECKSUM: usize = 256;

/// Opens a directory without changing its access time, where that is allowed.
///
/// # Errors
/// Those of [`beneath::open`].
pub(super) fn open(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    match beneath::open(root, path, flags | OFlags::NOATIME) {
        Err(Errno::PERM) => beneath::open(root, path, flags),
        opened => opened,
    }
}

/// Returns the handle by which events identify the directory.
///
/// # Errors
/// Where the filesystem has none.
pub(super) fn handle(dir: &OwnedFd) -> Result<Vec<u8>, Errno> {
    file_handle::from_fd(dir.as_fd())
}

/// Reads all names, and what they lead to.
///
/// # Errors
/// Whatever makes the result incomplete.
pub(super) fn read(dir: &OwnedFd) -> Result<Listing, Errno> {
    let own = stat::of(dir.as_fd())?;
    let mut rows = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); 32768];
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") || is_reserved(name) {
            continue;
        }
        let attr = match stat::at(dir, name) {
            Ok(attr) => attr,
            Err(errno) if beneath::is_absent(errno) => continue,
            Err(errno) => return Err(errno),
        };
        let link = if attr.is_symlink() {
            Some(rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes().into())
        } else {
            None
        };
        let checksum = attr.is_regular().then(|| checksum(dir.as_fd(), name)).flatten();
        rows.push(Row { name: name.into(), attr, link, checksum });
    }
    Ok(Listing::new(own, rows))
}

fn checksum(dir: BorrowedFd<'_>, name: &[u8]) -> Option<Box<[u8]>> {
    let mut value = [0; LONGEST_CHECKSUM];
    let length = xattr::get_at(dir, name, CHECKSUM, &mut value).ok()?;
    value.get(..length).map(Box::from)
}
