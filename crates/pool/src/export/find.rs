//! Finding the file behind a node id on its branch.

use super::inode_search::InodeSearch;
use super::{StableId, StableTarget};
use canopy_base::error::Result;
use canopy_base::path::PoolPath;
use canopy_branch::branch::{Branch, Branches};
use canopy_branch::fs::beneath::{self, ProcPath};
use canopy_branch::fs::reserved::is_reserved;
use canopy_branch::fs::stat::{self, Attr, FileKey};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;

/// A file that was found by its id.
pub(crate) struct FoundById {
    pub(crate) lasting: StableId,
    pub(crate) attr: Attr,
    /// A path beneath the branch's root. Always present for a directory; for a file only if it was asked for, or was
    /// needed to prove that the file is on the branch.
    pub(crate) path: Option<PoolPath>,
}

/// Looks for a file on a branch; `None` if it is not there.
pub(crate) fn find(
    branch: &Arc<Branch>,
    wanted: StableTarget,
    wants_path: bool,
    searches: &InodeSearch,
) -> Result<Option<FoundById>> {
    branch.reads(|| match pin(branch, wanted.ino) {
        Ok(pinned) => by_handle(branch, wanted, pinned, wants_path, searches),
        Err(Errno::STALE) => Ok(None),
        // No permission, or not supported by the filesystem.
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOTTY) => by_walk(branch, wanted, searches),
        Err(errno) => Err(errno.into()),
    })
}

/// Pins the file with an inode number on the branch's filesystem.
fn pin(branch: &Branch, ino: u64) -> Result<OwnedFd, Errno> {
    branch.inodes.ok_or(Errno::OPNOTSUPP)?.open(branch.root(), ino)
}

fn by_handle(
    branch: &Arc<Branch>,
    wanted: StableTarget,
    pinned: OwnedFd,
    wants_path: bool,
    searches: &InodeSearch,
) -> Result<Option<FoundById>> {
    let attr = stat::of(pinned.as_fd())?;
    let Some(lasting) = wanted.is(branch, attr.key()).filter(|_| attr.nlink > 0) else { return Ok(None) };
    let whole = branch.inodes.is_some_and(|inodes| inodes.at_root);
    // The filesystem may contain more than the branch shows.
    if !(attr.is_dir() || wants_path || !whole) {
        return Ok(Some(FoundById { lasting, attr, path: None }));
    }
    // The kernel always knows the parents of a directory, but those of another file only if somebody has used a path to it
    // not long ago.
    let path = match known_path(branch, pinned.as_fd(), &attr) {
        None if !attr.is_dir() => searches.path(branch, wanted)?,
        known => known,
    };
    Ok(path.map(|path| FoundById { lasting, attr, path: Some(path) }))
}

fn by_walk(branch: &Arc<Branch>, wanted: StableTarget, searches: &InodeSearch) -> Result<Option<FoundById>> {
    let Some(path) = searches.path(branch, wanted)? else { return Ok(None) };
    // It may have moved just now.
    let attr = at(branch, &path).ok();
    let found = attr.and_then(|attr| Some((wanted.is(branch, attr.key())?, attr)));
    Ok(found.map(|(lasting, attr)| FoundById { lasting, attr, path: Some(path) }))
}

fn at(branch: &Branch, path: &[u8]) -> Result<Attr, Errno> {
    let (dir, name) = canopy_base::path::split(path);
    stat::at(beneath::dir(branch.root(), dir)?, name)
}

fn is_at(branch: &Branch, path: &[u8], attr: &Attr) -> bool {
    at(branch, path).is_ok_and(|found| found.key() == attr.key())
}

/// Returns the path beneath the root under which the kernel has the file in its cache of names, if there is one.
pub(crate) fn known_path(branch: &Branch, file: BorrowedFd<'_>, attr: &Attr) -> Option<PoolPath> {
    let path = |fd: BorrowedFd<'_>| {
        rustix::fs::readlinkat(rustix::fs::CWD, ProcPath::of(fd).as_bytes(), Vec::new()).ok()
    };
    let (above, below) = (path(branch.root())?.into_bytes(), path(file)?.into_bytes());
    // Both paths start at the same mount.
    let rest = below.strip_prefix(above.as_slice())?;
    let rest = if above == b"/" { rest } else { rest.strip_prefix(b"/")? };
    // A file may have a name that the pool hides beside one that it shows.
    let hidden = rest.split(|&byte| byte == b'/').any(is_reserved);
    // The path may be out of date, or lead nowhere (open_by_handle_at(2)).
    (!rest.is_empty() && !hidden && is_at(branch, rest, attr)).then(|| PoolPath::from_slice(rest))
}

/// Pins a file without a known name by its identity; only on branches that show every file of their filesystem.
pub(crate) fn reopen(branches: &Branches, key: FileKey) -> Option<(Arc<Branch>, OwnedFd, Attr)> {
    let holds = |branch: &&Arc<Branch>| {
        branch.dev == key.dev && branch.stable_inodes && branch.inodes.is_some_and(|inodes| inodes.at_root)
    };
    let branch = branches.iter().find(holds)?;
    let fd = pin(branch, key.ino).ok()?;
    let attr = stat::of(fd.as_fd()).ok().filter(|attr| attr.key() == key && attr.nlink > 0)?;
    Some((branch.clone(), fd, attr))
}
