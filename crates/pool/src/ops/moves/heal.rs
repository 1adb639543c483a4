//! Reads that heal: what one disk cannot read is read from another copy, and the copy that could not be read is made again.
//!
//! The node, with all its handles, is led to the other copy, as when its file moves: so all who know the file go on with the
//! same one. What the kernel reads by itself (passthrough) it cannot be led away from, so once a branch has failed to read,
//! files with copies there are no longer passed through.

use crate::node::Node;
use crate::ops::data;
use crate::ops::moves;
use crate::ops::moves::lead::{Lead, names_show_another};
use crate::ops::resolve;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result, is_illness};
use canopy_base::path::{PoolPath, join};
use canopy_branch::branch::{Branch, rest};
use canopy_branch::fs::beneath;
use canopy_branch::fs::generation::{self, Generation};
use canopy_branch::fs::stat::Attr;
use canopy_branch::relocate::links;
use canopy_sys::shown::Show as _;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;

/// A copy that may stand for one that cannot be read.
struct Candidate {
    branch: Arc<Branch>,
    attr: Attr,
    fd: OwnedFd,
}

/// Returns whether another copy may be read in place of one that gives this error.
fn is_unreadable(error: Error) -> bool {
    matches!(error, Error::Branch(errno) if is_illness(errno) && errno != Errno::ROFS)
}

/// Returns whether to try again what has failed with this error: its disk cannot read the node's file, and the node, which had
/// moved so many times before, leads to another copy now that can be read in this range. The caller holds nothing.
///
/// Errors: [`Error::Wait`] while the file moves.
pub(crate) fn leads_away(
    pool: &Pool,
    node: impl FnOnce() -> Result<Arc<Node>>,
    (seen, range): (u32, &Range<u64>),
    error: Error,
) -> Result<bool> {
    if !is_unreadable(error) {
        return Ok(false);
    }
    let (op, node) = (&mut Op::begin(pool), node()?);
    if node.is_dir() || !resolve::generations::knows_copies(op) {
        return Ok(false);
    }
    if data::mirrors::cannot_read(op, &node, seen, error.errno()) {
        return Ok(true);
    }
    match lead_away(op, &node, seen, range, error.errno()) {
        Err(Error::Wait(cause)) => Err(Error::Wait(cause)),
        led => Ok(led.unwrap_or(false)),
    }
}

/// Leads a node to a copy that can be read. Returns false if there is none.
///
/// Errors: [`Error::Wait`] while the file moves.
fn lead_away(op: &mut Op<'_>, node: &Arc<Node>, seen: u32, range: &Range<u64>, errno: Errno) -> Result<bool> {
    let _alone = node.take()?;
    if node.moves() != seen {
        return Ok(true);
    }
    let held = op.claim_file(node.id, 1)?;
    op.dir_cache.idle_files.close(node);
    if node.opened().is_some_and(|open| open.backing.is_some() || open.is_written()) {
        return Ok(false);
    }
    let own = resolve::places::primary(op, node)?;
    let Ok(Some(number)) = own.branch.reads(|| generation::read(own.fd.as_fd())) else { return Ok(false) };
    let names: Vec<PoolPath> = op.nodes.names(node.id).map(|(dir, name)| join(&dir, &name)).collect();
    let Some(other) = readable_copy(op, node, (&own.attr, number), &names, range) else { return Ok(false) };
    let shown = moves::make_room::shown_ino(op, node)?;
    let reopen = |flags| {
        let fd = other.branch.reads(|| beneath::reopen(&other.fd, flags))?;
        Ok(other.branch.reopen_for_read(fd, flags))
    };
    let lead = Lead::prepare(op, node, reopen)?;
    {
        let _right = op.rights.to_copy([own.attr.key(), other.attr.key()]);
        let is_same = |file: BorrowedFd<'_>| generation::read(file) == Ok(Some(number));
        if !is_same(own.fd.as_fd()) || !is_same(other.fd.as_fd()) {
            return Ok(false);
        }
        // A disk that takes no mark any more has lost this copy until the pool is mounted again.
        let _ = own.branch.changes(|| generation::write(own.fd.as_fd(), Generation::OUT_OF_DATE));
    }
    op.unreadable.put(own.attr.key(), own.branch.id, names.clone());
    lead.announce();
    let branch = other.branch;
    lead.go(op, node, other.attr.key(), shown, (&branch, other.fd));
    names_show_another(op, node);
    drop(held);
    op.kernel.load().invalidate_attr(node.id);
    let name = names.first().map_or("a file".shown(), |name| name.shown());
    tracing::warn!(
        "{name}: {} cannot read it ({errno}); it is read from {}, and its copy there is to be made again",
        own.branch.path.shown(),
        branch.path.shown()
    );
    Ok(true)
}

/// Returns a copy that holds the same under all names of the file and can be read in this range: rather one of a disk that is well
/// and awake.
fn readable_copy(
    op: &Op<'_>,
    node: &Node,
    (own, number): (&Attr, Generation),
    names: &[PoolPath],
    range: &Range<u64>,
) -> Option<Candidate> {
    if !number.shared {
        // It is the only one.
        return None;
    }
    let (parent, dir, name) = op.nodes.names_in(node.id).next()?;
    let dirs = resolve::dirs::dirs_of(op, parent, &dir, None);
    let (copies, pinned) = resolve::generations::pinned_copies(op, &dirs, &name);
    let mut candidates: Vec<Candidate> = copies
        .iter()
        .map(|(index, attr)| (op.branches.as_slice()[index].clone(), *attr))
        .zip(pinned)
        .map(|((branch, attr), fd)| Candidate { branch, attr, fd })
        .filter(|Candidate { branch, attr, fd }| {
            let is_alike = attr.is_regular() && attr.size == own.size && attr.nlink == own.nlink;
            is_alike
                && attr.key() != own.key()
                && !op.unreadable.holds(attr.key())
                && branch.reads(|| generation::read(fd.as_fd())) == Ok(Some(number))
                && names.iter().all(|name| links::holds(branch.root(), name, attr))
        })
        .collect();
    candidates.sort_by_key(|it| (!it.branch.health.is_well(), rest::may_sleep(it.branch.id)));
    candidates.into_iter().find(|it| it.branch.reads(|| can_read(&it.fd, &it.attr, range)).is_ok())
}

/// Reads a range of a file.
fn can_read(file: &OwnedFd, attr: &Attr, range: &Range<u64>) -> Result<(), Errno> {
    let file = beneath::reopen(file, OFlags::RDONLY | OFlags::NONBLOCK)?;
    let (mut at, end) = (range.start, range.end.min(attr.size));
    let mut buffer = vec![0; usize::try_from(end.saturating_sub(at)).unwrap_or(0)];
    while at < end {
        match rustix::io::pread(&file, &mut buffer[..(end - at) as usize], at) {
            Ok(0) => return Err(Errno::IO),
            Ok(read) => at += read as u64,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Returns whether the daemon is to read a file that has copies, because its branch has failed to read something.
pub(crate) fn must_be_served(op: &Op<'_>, branch: &Branch, file: BorrowedFd<'_>) -> bool {
    resolve::generations::knows_copies(op)
        && branch.health.has_failed_to_read()
        && branch.reads(|| generation::read(file)).is_ok_and(|it| it.is_some_and(|it| it.shared))
}
