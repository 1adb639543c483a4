//! The file behind an id, on its branch.

use super::inode_search::InodeSearch;
use super::{StableId, StableTarget};
use crate::branch::health::OpKind;
use crate::branch::{Branch, Branches};
use crate::fs::beneath::{self, ProcPath};
use crate::fs::stat::{self, Attr, FileKey};
use crate::path::PoolPath;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::sync::Arc;

/// A file that was found by its id: it lies on the branch.
pub(crate) struct Found {
    pub(crate) lasting: StableId,
    pub(crate) attr: Attr,
    /// A path beneath the branch's root: always of a directory, and of a file where it was asked for or was what proved
    /// that the file lies there.
    pub(crate) path: Option<PoolPath>,
}

/// Looks for a file on a branch; `None` when it is not there.
pub(crate) fn find(
    branch: &Branch,
    wanted: StableTarget,
    wants_path: bool,
    walks: &InodeSearch,
) -> Result<Option<Found>, Errno> {
    let found = match pin(branch, wanted.ino) {
        Ok(pinned) => by_handle(branch, wanted, pinned, wants_path, walks),
        Err(Errno::STALE) => Ok(None),
        // Not for us, or not on this filesystem.
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOTTY) => by_walk(branch, wanted, walks),
        Err(errno) => Err(errno),
    };
    found.map_err(|errno| branch.record_error(errno, OpKind::Read))
}

/// The file with an inode number, of the branch's filesystem.
fn pin(branch: &Branch, ino: u64) -> Result<OwnedFd, Errno> {
    branch.inodes.ok_or(Errno::OPNOTSUPP)?.open(branch.root(), ino)
}

fn by_handle(
    branch: &Branch,
    wanted: StableTarget,
    pinned: OwnedFd,
    wants_path: bool,
    walks: &InodeSearch,
) -> Result<Option<Found>, Errno> {
    let attr = stat::of(pinned.as_fd())?;
    let Some(lasting) = wanted.is(branch, attr.key()).filter(|_| attr.nlink > 0) else { return Ok(None) };
    let whole = branch.inodes.is_some_and(|inodes| inodes.at_root);
    let path = match attr.is_dir() {
        true => Some(dir_path(branch.root(), pinned.as_fd(), &attr)),
        // The filesystem may have more than the branch shows of it.
        false if wants_path || !whole => {
            Some(walks.path(branch, attr.ino, |path| is_at(branch, path, &attr))?)
        }
        false => None,
    };
    Ok(match path {
        Some(None) => None,
        path => Some(Found { lasting, attr, path: path.flatten() }),
    })
}

fn by_walk(branch: &Branch, wanted: StableTarget, walks: &InodeSearch) -> Result<Option<Found>, Errno> {
    let mut found = None;
    let path = walks.path(branch, wanted.ino, |path| {
        let attr = at(branch, path).ok();
        found = attr.and_then(|attr| Some((wanted.is(branch, attr.key())?, attr)));
        found.is_some()
    })?;
    Ok(found.map(|(lasting, attr)| Found { lasting, attr, path }))
}

fn at(branch: &Branch, path: &[u8]) -> Result<Attr, Errno> {
    let (dir, name) = crate::path::split(path);
    stat::at(beneath::dir(branch.root(), dir)?, name)
}

fn is_at(branch: &Branch, path: &[u8], attr: &Attr) -> bool {
    at(branch, path).is_ok_and(|found| found.key() == attr.key())
}

/// Where a directory lies beneath the root, if it does. The kernel connects directories with those above them.
fn dir_path(root: BorrowedFd<'_>, dir: BorrowedFd<'_>, attr: &Attr) -> Option<PoolPath> {
    let path = |fd: BorrowedFd<'_>| {
        rustix::fs::readlinkat(rustix::fs::CWD, ProcPath::of(fd).as_bytes(), Vec::new()).ok()
    };
    let (above, below) = (path(root)?.into_bytes(), path(dir)?.into_bytes());
    // Both paths begin with the same mount.
    let rest = below.strip_prefix(above.as_slice())?;
    let rest = if above == b"/" { rest } else { rest.strip_prefix(b"/")? };
    // A path is but a text: what it leads to must be the directory.
    let found = beneath::open(root, rest, OFlags::PATH | OFlags::DIRECTORY).ok()?;
    let same = stat::of(found.as_fd()).is_ok_and(|found| found.key() == attr.key());
    (same && !rest.is_empty()).then(|| PoolPath::from_slice(rest))
}

/// A file that has no known name, by its inode number; only where whatever has a name lies on the branch.
pub(crate) fn reopen(branches: &Branches, key: FileKey) -> Option<(Arc<Branch>, OwnedFd, Attr)> {
    let holds = |branch: &&Arc<Branch>| {
        branch.dev == key.dev && branch.stable_inodes && branch.inodes.is_some_and(|inodes| inodes.at_root)
    };
    let branch = branches.iter().find(holds)?;
    let fd = pin(branch, key.ino).ok()?;
    let attr = stat::of(fd.as_fd()).ok().filter(|attr| attr.key() == key && attr.nlink > 0)?;
    Some((branch.clone(), fd, attr))
}
