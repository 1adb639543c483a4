//! Whether the last name of an open file is in the trash. What is open tells it, to a process that did not put it there.

use super::batch::Batch;
use super::{open_trash, sweep};
use crate::branch::Branch;
use crate::fs::beneath::{self, ProcPath};
use crate::fs::reserved::TRASH;
use crate::fs::stat::{self, Attr};
use canopy_base::path::{join, split};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// What the kernel shows behind the path under which a file was opened that has lost that name.
const DELETED: &[u8] = b" (deleted)";

/// Returns whether the last name of an open file of a branch is in its trash.
///
/// # Errors
/// That of the branch.
pub fn holds(branch: &Branch, file: BorrowedFd<'_>, attr: &Attr) -> Result<bool, Errno> {
    if attr.is_dir() || attr.nlink != 1 {
        return Ok(false);
    }
    let path = |fd: BorrowedFd<'_>| {
        rustix::fs::readlinkat(rustix::fs::CWD, ProcPath::of(fd).as_bytes(), Vec::new()).ok()
    };
    let (Some(above), Some(shown)) = (path(branch.root()), path(file)) else { return Ok(false) };
    // Unless the process before has opened it by another mount, of which this is the root.
    let rest = shown.as_bytes().strip_prefix(above.as_bytes()).unwrap_or(shown.as_bytes());
    let rest = rest.strip_prefix(b"/").unwrap_or(rest);
    let is_at = |path: &[u8]| {
        let (dir, name) = split(path);
        beneath::dir(branch.root(), dir)
            .and_then(|dir| stat::at(dir, name))
            .is_ok_and(|found| found.key() == attr.key())
    };
    branch.reads(|| {
        if rest.strip_prefix(TRASH).is_some_and(|below| below.first() == Some(&b'/')) {
            return Ok(is_at(rest));
        }
        // A rename has replaced the name under which it was opened, and the trash has a link to it.
        let Some(before) = rest.strip_suffix(DELETED) else { return Ok(false) };
        let Some(trash) = open_trash(branch.root())? else { return Ok(false) };
        let mut batches = sweep::names(&trash)?;
        batches.sort_unstable_by(|one, other| other.cmp(one));
        // Whatever came there has changed by that.
        let is_possible =
            |name: &&Vec<u8>| Batch::parse(name).is_some_and(|batch| batch.began <= attr.ctime.sec);
        Ok(batches.iter().filter(is_possible).any(|batch| is_at(&join(&join(TRASH, batch), before))))
    })
}
