//! The directories of a batch, which stand for those of the pool.

use super::open_trash;
use crate::fs::beneath;
use crate::fs::reserved::TRASH;
use crate::fs::stat::{self, Attr};
use crate::relocate::{copy_owner_mode_and_xattrs, set_times};
use canopy_base::path::split;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

pub(super) fn open_dir(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

fn make(at: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::mkdirat(at, name, Mode::RWXU) {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// Opens a batch of a branch, given its root. Makes it if it is not there.
pub(super) fn open_batch(root: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    canopy_sys::creds::as_daemon()?;
    let trash = match open_trash(root)? {
        Some(trash) => trash,
        None => {
            make(root, TRASH)?;
            open_trash(root)?.ok_or(Errno::NOENT)?
        }
    };
    // It may have been made by cp(1).
    if stat::of(trash.as_fd())?.mode & 0o077 != 0 {
        rustix::fs::fchmod(&trash, Mode::RWXU)?;
    }
    make(trash.as_fd(), name.as_bytes())?;
    let batch = open_dir(trash.as_fd(), name.as_bytes())?;
    if stat::of(batch.as_fd())?.is_daemons_alone() { Ok(batch) } else { Err(Errno::PERM) }
}

/// Returns whether the directories of a batch that stand for `path` and what is above it have the owner, group and mode of those
/// on the branch, given its root. They are as they were when something came into them first: since then, somebody may have
/// closed a directory to others, or another one may have taken its name.
pub(super) fn is_alike(root: BorrowedFd<'_>, batch: BorrowedFd<'_>, path: &[u8]) -> Result<bool, Errno> {
    let of = |attr: &Attr| (attr.uid, attr.gid, attr.mode & 0o7777);
    let mut part = path;
    while !part.is_empty() {
        let kept = stat::at(batch, part)?;
        // Below a symlink that the pool follows there is none.
        if stat::at(root, part).is_ok_and(|original| original.is_dir() && of(&original) != of(&kept)) {
            return Ok(false);
        }
        part = split(part).0;
    }
    Ok(true)
}

/// Opens the directory that stands for `path` in a batch. Makes what is missing of it, as the branch has it below its root, and counts
/// in `made` the directories that it makes, also if it fails. Until a directory has the attributes of the other, it is the daemon's
/// alone.
pub(super) fn open_mirror(
    root: BorrowedFd<'_>,
    batch: BorrowedFd<'_>,
    path: &[u8],
    made: &mut usize,
) -> Result<OwnedFd, Errno> {
    if path.is_empty() {
        return open_dir(batch, b".");
    }
    match beneath::open(batch, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    canopy_sys::creds::as_daemon()?;
    let (above, name) = split(path);
    let above = open_mirror(root, batch, above, made)?;
    let before = stat::of(above.as_fd())?;
    match rustix::fs::mkdirat(&above, name, Mode::RWXU) {
        Ok(()) => *made += 1,
        // By somebody else, just now.
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let mirror = open_dir(above.as_fd(), name)?;
    // Below a symlink that the pool follows there is none.
    if let Ok(original) = beneath::open(root, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW) {
        resemble(original.as_fd(), mirror.as_fd(), &stat::of(original.as_fd())?)?;
    }
    keep_times(above.as_fd(), &before);
    Ok(mirror)
}

/// Removes so many directories again that were made for `path`, from the lowest: empty ones would stand for removed directories.
/// One into which something has come stays, with those above it.
pub(super) fn unmake(batch: BorrowedFd<'_>, path: &[u8], made: usize) {
    let mut part = path;
    for _ in 0..made {
        let (above, name) = split(part);
        let removed = if above.is_empty() {
            rustix::fs::unlinkat(batch, name, AtFlags::REMOVEDIR)
        } else {
            beneath::open(batch, above, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW)
                .and_then(|above| rustix::fs::unlinkat(&above, name, AtFlags::REMOVEDIR))
        };
        if removed.is_err() {
            return;
        }
        part = above;
    }
}

fn resemble(original: BorrowedFd<'_>, made: BorrowedFd<'_>, attr: &Attr) -> Result<(), Errno> {
    copy_owner_mode_and_xattrs(original, made, attr)?;
    set_times(made, attr)
}

/// Makes a directory that stands for an open one, which has these attributes.
///
/// Errors: `EXIST` if something else has the name.
pub(super) fn stand_for(
    above: BorrowedFd<'_>,
    name: &[u8],
    original: BorrowedFd<'_>,
    attr: &Attr,
) -> Result<(), Errno> {
    canopy_sys::creds::as_daemon()?;
    match rustix::fs::mkdirat(above, name, Mode::RWXU) {
        // Something of it was removed before it.
        Err(Errno::EXIST) => {
            let there = stat::at(above, name)?;
            let of = |attr: &Attr| (attr.uid, attr.gid, attr.mode);
            return if there.is_dir() && of(&there) == of(attr) { Ok(()) } else { Err(Errno::EXIST) };
        }
        other => other?,
    }
    let made = open_dir(above, name).and_then(|made| resemble(original, made.as_fd(), attr));
    if made.is_err() {
        let _ = rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR);
    }
    made
}

/// What comes into a directory of the trash is no change of the one that it stands for.
pub(super) fn keep_times(dir: BorrowedFd<'_>, before: &Attr) {
    let _ = set_times(dir, before);
}
