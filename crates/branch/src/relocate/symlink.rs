//! Moving or copying a symlink from one branch to another.

use super::clone_dirs::move_into_place;
use super::journal::Original;
use super::kept_times::with_times_kept;
use super::metadata::{Losses, copy_link_metadata};
use crate::fs::beneath;
use crate::fs::reserved::temporary_name;
use crate::fs::stat::{self, Attr, FileKey};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

fn pinned(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

fn sync(dir: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::fs::fsync(beneath::open(dir, b"", OFlags::RDONLY | OFlags::DIRECTORY)?)
}

/// Moves or copies a symlink with the attributes `attr` to a directory that lacks the name, and returns its new identity.
/// The copy is on disk before the original goes. What an earlier move left on the target, because of a crash before its
/// last step, counts as the copy.
///
/// The caller keeps operations of the pool away from the name. It has written a journal entry, so that a crash leaves
/// nothing under construction.
///
/// Errors: `EEXIST` if the target has something else under the name; `EAGAIN` if it is another symlink by now.
pub fn move_symlink(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    name: &[u8],
    attr: &Attr,
    fate: Original,
    losses: Losses,
) -> Result<FileKey, Errno> {
    canopy_sys::creds::as_daemon()?;
    let original = pinned(source, name)?;
    let now = stat::of(original.as_fd())?;
    if now.key() != attr.key() || !now.is_symlink() {
        return Err(Errno::AGAIN);
    }
    let text = rustix::fs::readlinkat(&original, c"", Vec::new())?;
    let same = |found: &Attr| {
        let of = |attr: &Attr| (attr.mtime, attr.uid, attr.gid, attr.mode);
        of(found) == of(&now)
            && rustix::fs::readlinkat(target, name, Vec::new()).is_ok_and(|other| other == text)
    };
    match stat::at(target, name) {
        Ok(found) if found.is_symlink() && same(&found) => {}
        Ok(_) => return Err(Errno::EXIST),
        Err(Errno::NOENT) => with_times_kept(target, || {
            let temporary = temporary_name();
            // A filesystem without symlinks says EPERM.
            rustix::fs::symlinkat(&text, target, temporary.as_slice())
                .map_err(|errno| if errno == Errno::PERM { Errno::OPNOTSUPP } else { errno })?;
            let placed = pinned(target, &temporary).and_then(|copy| {
                copy_link_metadata(original.as_fd(), copy.as_fd(), &now, losses)?;
                move_into_place(target, &temporary, name)
            });
            if placed.is_err() {
                let _ = rustix::fs::unlinkat(target, temporary.as_slice(), AtFlags::empty());
            }
            placed
        })?,
        Err(errno) => return Err(errno),
    }
    sync(target)?;
    let key = stat::at(target, name)?.key();
    if fate == Original::Goes {
        with_times_kept(source, || rustix::fs::unlinkat(source, name, AtFlags::empty()))?;
        let _ = sync(source);
    }
    Ok(key)
}
