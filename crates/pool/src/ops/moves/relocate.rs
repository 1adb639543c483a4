//! Moving a file, a symlink or an empty directory to a branch that the client names, or copying it there.
//!
//! Files move as they do when a branch is full (`make_room`), but a client that wants to write comes first: a file that is open
//! for writing stays, and a move ends when one arrives.

use crate::dir::merged::MergedDir;
use crate::dir::symlinks::Symlinks;
use crate::door::Act;
use crate::door::Caller;
use crate::node::Node;
use crate::ops::moves;
use crate::ops::moves::make_room::{Movable, NotMoved, Reason};
use crate::ops::names;
use crate::ops::resolve;
use crate::ops::trash;
use crate::paths::{Changing, Uses};
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_base::path::{join, split};
use canopy_branch::branch::space::Space;
use canopy_branch::branch::{Branch, Branches};
use canopy_branch::fs::beneath;
use canopy_branch::fs::reserved::is_reserved;
use canopy_branch::fs::stat::{self, Attr};
use canopy_branch::relocate::copy::same_data;
use canopy_branch::relocate::file::FileMove;
use canopy_branch::relocate::journal::Original;
use canopy_branch::relocate::lease::{LeasedFile, leased_by_another, readable};
use canopy_branch::relocate::{self, COPIED_AT_ONCE, Losses};
use canopy_policy::Mode;
use canopy_sys::ioctl::relocate::{Relocation, What};
use canopy_sys::thread::ioprio;
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use smallvec::smallvec;
use std::cell::Cell;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a move with a rate sleeps between two checks whether it is still wanted.
const NAP: Duration = Duration::from_millis(20);

/// A symlink to move or copy: its node, its name in a directory, and what becomes of the original.
struct Link<'l> {
    node: &'l Arc<Node>,
    dir: NodeId,
    name: &'l [u8],
    original: Original,
    losses: Losses,
}

/// What becomes of a file.
struct Transfer<'t> {
    source: &'t Arc<Branch>,
    target: &'t Arc<Branch>,
    what: What,
    /// Bytes in a second; 0 for no limit.
    rate: u64,
    losses: Losses,
}

/// Moves an entry of a directory from one branch to another. A file moves with all its names, or not at all. Of a
/// directory, the copy on the old branch goes, which must be empty; the new branch gets one if no other has.
///
/// If the wish is to copy it, a file or symlink stays where it is, and the new branch gets a copy of it with all its
/// names. If several branches hold it, the copy that the pool shows is copied, whichever is named. What looks the same on the new
/// branch and was never known as a copy, as from before the rule, becomes one if it holds the same.
///
/// If the wish is to drop it, a file leaves its branch because others hold the same. The copy that the pool shows then,
/// whichever is named, is compared with it, and stands for it.
///
/// Errors:
/// - `EACCES` for a caller who does not administer the pool
/// - `EINVAL` for a branch that the pool does not have
/// - `EROFS` when a branch may not be changed, or creates nothing
/// - `ESTALE` when the entry is not on the old branch; if it is to be dropped, when no other holds it
/// - `EEXIST` when it is on others as well; if it is copied, when it is on the new branch; if it is to be dropped, when
///   the other copy looks different or has not all of its names
/// - `EBADMSG` when what is to be known as a copy, or to stand for one that is dropped, differs in content
/// - `ENOTUNIQ` when it is to be dropped, and a rule wants as many copies
/// - `EBUSY` when the file is open for writing, or a client wants to write it
/// - `ENOLCK` when a process holds a lease on the file, which it has opened by its path on the branch
/// - `ETXTBSY` when the kernel reads the file for a client by itself, which would go on reading the old one
/// - `EMLINK` when the file has a name outside of the branch
/// - `EPERM` when it is immutable or append-only
/// - `EOPNOTSUPP` for anything that is neither file, symlink nor directory, for a directory that is to be copied, for
///   anything but a file that is to be dropped, on a filesystem without leases, and when the new branch cannot hold
///   its owner, its mode or one of its attributes, unless the wish accepts that
/// - `ENOSPC` when the new branch would have less free space than its minfreespace
/// - `EREMOTE` when the new branch is itself a pool
/// - `ENOTEMPTY` when the old branch holds something in the directory
/// - `EAGAIN` when it has changed meanwhile, `EINTR` when a signal has arrived
pub(crate) fn relocate(pool: &Pool, caller: &Caller, dir: NodeId, wish: &Relocation<'_>) -> Result<()> {
    pool.admits(caller, Act::Relocate)?;
    if matches!(wish.name, b"" | b"." | b"..") || wish.name.contains(&b'/') {
        return Err(Error::Invalid);
    }
    let op = &mut Op::begin(pool);
    let find = |path| op.branches.iter().find(|branch| branch.path.as_os_str().as_bytes() == path).cloned();
    let (source, target) = &find(wish.from).zip(find(wish.to)).ok_or(Error::Invalid)?;
    if source.id == target.id {
        return Err(Error::Invalid);
    }
    let keeps = wish.what == What::Copy;
    let may_change = |branch: &Branch| branch.mode != Mode::Ro && branch.health.is_well();
    let gives = if keeps { source.health.is_well() } else { may_change(source) };
    let takes = may_change(target) && target.mode != Mode::Nc || wish.what == What::Drop;
    if !gives || !takes {
        return Err(Errno::ROFS.into());
    }
    let entry = names::lookup::lookup(pool, dir, wish.name)?;
    let relocated = op.nodes.get(entry.node).map_err(Error::errno).and_then(|node| {
        if wish.idle {
            ioprio::yield_disks();
        }
        let losses = if wish.lossy { Losses::Accepted } else { Losses::Refused };
        let relocated = match () {
            () if !entry.attr.is_regular() && wish.what == What::Drop => Err(Errno::OPNOTSUPP),
            () if node.is_dir() && keeps => Err(Errno::OPNOTSUPP),
            () if node.is_dir() => relocate_dir(op, &node, dir, wish.name, source, target),
            () if entry.attr.is_symlink() => {
                let original = if keeps { Original::Stays } else { Original::Goes };
                let link = Link { node: &node, dir, name: wish.name, original, losses };
                relocate_symlink(op, &link, source, target)
            }
            () if entry.attr.is_regular() => {
                let transfer = Transfer { source, target, what: wish.what, rate: wish.rate, losses };
                relocate_file(op, &node, (dir, wish.name), &transfer)
            }
            () => Err(Errno::OPNOTSUPP),
        };
        ioprio::reset();
        relocated
    });
    names::lookup::take_back(op, entry.node);
    Ok(relocated?)
}

fn relocate_file(
    op: &mut Op<'_>,
    node: &Arc<Node>,
    place: (NodeId, &[u8]),
    transfer: &Transfer<'_>,
) -> Result<(), Errno> {
    let Transfer { source, target, what, rate, losses } = *transfer;
    if has_writers(op, node) {
        return Err(Errno::BUSY);
    }
    let _alone = node.take_now().ok_or(Errno::BUSY)?;
    node.begin_move();
    // A client may have opened it since.
    if has_writers(op, node) {
        return Err(Errno::BUSY);
    }
    let _copying = op.state().stuck_operations.moving();
    let (mut file, target) = match what {
        What::Move => (moves::make_room::movable(op, node, None, Reason::Asked)?, target.clone()),
        What::Copy => {
            let file = match moves::twin::twin(op, node, target)? {
                Some(file) => file,
                None => moves::make_room::movable(op, node, Some(target.id), Reason::Asked)?,
            };
            (file, target.clone())
        }
        What::Drop => moves::drop_copy::one_of_several(op, node, place, source)?,
    };
    file.losses = losses;
    let target = &target;
    if file.source.id != source.id && what == What::Move {
        return Err(Errno::STALE);
    }
    let source = &file.source;
    if file.there.is_none() {
        has_room(op, target, file.attr.blocks * 512)?;
    }
    let (frozen, leased);
    let still: &LeasedFile = if what == What::Drop && node.key() != Some(file.attr.key()) {
        // The node stands for another copy.

        leased = hold(&file).map_err(leased_by_another)?;
        &leased
    } else {
        frozen = moves::freeze::freeze(op, node).map_err(leased_by_another)?;
        frozen.as_ref()
    };
    if what == What::Copy && file.there.is_none() {
        let shared = source.changes(|| resolve::generations::share_generation(op, still.as_fd()));
        shared.map_err(|errno| match errno {
            // To the caller, this would say that it is not the owner of the pool.
            Errno::ACCESS => Errno::PERM,
            errno => errno,
        })?;
    }
    let (begun, steps) = (Instant::now(), Cell::new(0_u64));
    let state = op.state();
    let stops = || state.kernel.load().caller_is_interrupted() || node.is_awaited();
    let wanted = || {
        let copied = steps.get().saturating_mul(COPIED_AT_ONCE);
        if let Some(due) = copied.saturating_mul(1000).checked_div(rate) {
            let until = begun + Duration::from_millis(due.min(u64::from(u32::MAX)));
            // A process that wants to write the file on its branch breaks the lease.
            while Instant::now() < until && !stops() && still.check().is_ok() {
                std::thread::sleep(NAP.min(until.saturating_duration_since(Instant::now())));
            }
        }
        steps.set(steps.get() + 1);
        !stops()
    };
    if let Some(twin) = &file.there
        && !same_data(still, twin, file.attr.size, &wanted)?
    {
        return Err(Errno::BADMSG);
    }
    if let (What::Copy, Some(twin)) = (what, &file.there) {
        return moves::twin::join_copies(op, still, twin);
    }
    // An error may come from either branch; the health check finds out which.
    let carry = || moves::make_room::carry(op, node, &file, target, still, &wanted);
    let carried = target.reads(|| source.reads(carry));
    file.names.iter().for_each(|name| resolve::dirs::dir_rewritten(op, split(name).0));
    if what == What::Copy && carried.is_ok() {
        op.unreadable.made_again(&file.names);
    }
    carried.map_err(|(NotMoved::Branch(errno) | NotMoved::File(errno))| match errno {
        Errno::INTR if node.is_awaited() => Errno::BUSY,
        errno => errno,
    })
}

/// Holds the copy of a file that goes.
fn hold(file: &Movable) -> Result<LeasedFile, Errno> {
    let name = file.names.first().ok_or(Errno::NOENT)?;
    let source = &file.source;
    let pinned = source.reads(|| beneath::open(source.root(), name, OFlags::PATH | OFlags::NOFOLLOW))?;
    LeasedFile::hold(source.reads(|| readable(pinned))?)
}

fn has_writers(op: &Op<'_>, node: &Arc<Node>) -> bool {
    node.opened().is_some()
        && !op.files.matching(|handle| Arc::ptr_eq(&handle.node, node) && handle.writable()).is_empty()
}

/// Fails unless a branch keeps its minfreespace with so many more bytes.
fn has_room(op: &Op<'_>, branch: &Branch, bytes: u64) -> Result<(), Errno> {
    let space = branch.reads(|| Space::of(branch.root()))?;
    if space.readonly {
        return Err(Errno::ROFS);
    }
    let kept = branch.min_free_or(op.config.min_free);
    let wanted = bytes.saturating_add(kept);
    let space = if space.avail < wanted {
        trash::clear(op, branch, wanted);
        branch.reads(|| Space::of(branch.root()))?
    } else {
        space
    };
    let left = space.avail.checked_sub(bytes).ok_or(Errno::NOSPC)?;
    if left < kept { Err(Errno::NOSPC) } else { Ok(()) }
}

fn relocate_symlink(op: &mut Op<'_>, link: &Link<'_>, source: &Branch, target: &Branch) -> Result<(), Errno> {
    has_room(op, target, 0)?;
    let path = op.nodes.dir_path(link.dir).map_err(Error::errno)?;
    let (name, full) = (link.name, join(&path, link.name));
    let note = FileMove::announce(source, target, link.original, std::slice::from_ref(&full))?;
    let brought = {
        let _held = op.using(Uses::node(link.node.id).and(Uses::name(link.dir, name)));
        let mut dirs = MergedDir::open(Symlinks::NEVER, &op.branches, &path);
        indices(&op.branches, source, target).and_then(|(from, to)| {
            dirs.copies(name).get(from).ok_or(Errno::STALE)?;
            names::create::bring_dir(op, &mut dirs, to, &path)
        })
    };
    let moved = target
        .reads(|| source.reads(|| brought.and_then(|()| switch_symlink(op, link, &path, source, target))));
    note.erase();
    resolve::dirs::name_created(op, &path, name, target.id);
    resolve::dirs::dir_rewritten(op, &path);
    moved
}

fn switch_symlink(
    op: &mut Op<'_>,
    link: &Link<'_>,
    path: &[u8],
    source: &Branch,
    target: &Branch,
) -> Result<(), Errno> {
    let Link { node, dir, name, original, losses } = *link;
    // No other request uses it.
    let _held = op.claim_file(node.id, 1)?;
    let (from, to) = indices(&op.branches, source, target)?;
    if op.nodes.dir_path(dir).map_err(Error::errno)?.as_slice() != path {
        return Err(Errno::AGAIN);
    }
    let dirs = MergedDir::open(Symlinks::NEVER, &op.branches, path);
    let copies = dirs.copies(name);
    let is_shown = |(index, attr): (usize, &Attr)| (node.key() == Some(attr.key())).then_some(index);
    let from = match original {
        Original::Goes => from,
        Original::Stays => copies.iter().find_map(is_shown).ok_or(Errno::AGAIN)?,
    };
    let own = *copies.get(from).ok_or(Errno::STALE)?;
    let is_surplus = |index: usize| match original {
        Original::Goes => index != from && index != to,
        Original::Stays => index == to,
    };
    if copies.iter().any(|(index, _)| is_surplus(index)) {
        return Err(Errno::EXIST);
    }
    if own.nlink > 1 {
        // Its other names cannot be found.
        return Err(Errno::MLINK);
    }
    if node.key() != Some(own.key()) || !own.is_symlink() {
        return Err(Errno::AGAIN);
    }
    let number = moves::make_room::shown_ino(op, node).map_err(Error::errno)?;
    let (old, new) = dirs.get(from).zip(dirs.get(to)).ok_or(Errno::AGAIN)?;
    let key = relocate::move_symlink(old, new, name, &own, original, losses)?;
    if original == Original::Stays && !moves::make_room::would_show(op, copies, to, own)? {
        return Ok(());
    }
    op.nodes.moved(node, key, if resolve::keeps_inode_numbers(op) { number } else { 0 });
    op.kernel.load().invalidate_attr(node.id);
    Ok(())
}

/// Removes a directory's empty copy from a branch. Another branch gets a copy first, if none has one. The directory
/// that remains looks as the one that goes, if that was the one to be seen.
fn relocate_dir(
    op: &mut Op<'_>,
    node: &Arc<Node>,
    parent: NodeId,
    name: &[u8],
    source: &Branch,
    target: &Branch,
) -> Result<(), Errno> {
    let path = {
        let _held = op.using(Uses::node(node.id).and(Uses::name(parent, name)));
        let (from, to) = indices(&op.branches, source, target)?;
        let path = join(&op.nodes.dir_path(parent).map_err(Error::errno)?, name);
        let mut dirs = MergedDir::open(Symlinks::NEVER, &op.branches, &path);
        let own = dirs.own();
        own.get(from).ok_or(Errno::STALE)?;
        let dir = dirs.get(from).ok_or(Errno::NOENT)?;
        if !source.reads(|| is_empty(dir))? {
            return Err(Errno::NOTEMPTY);
        }
        if own.count() == 1 {
            has_room(op, target, 0)?;
            names::create::bring_dir(op, &mut dirs, to, &path)?;
        }
        path
    };
    let _held = op.claim(&smallvec![Changing::name(parent, name), Changing::Below(node.id)])?;
    let _not_cloning = resolve::locks::lock_for_change(op, path.clone())?;
    let (from, _) = indices(&op.branches, source, target)?;
    if node.key().is_some() || op.nodes.dir_path(node.id).map_err(Error::errno)? != path {
        return Err(Errno::AGAIN);
    }
    let dirs = MergedDir::open(Symlinks::NEVER, &op.branches, &path);
    let copies = dirs.own();
    let own = *copies.get(from).ok_or(Errno::STALE)?;
    // A branch that does not answer, or fails, may hold another copy; the one that remains must be known.
    let rest = copies.iter().map(|(index, _)| index).find(|index| *index != from).ok_or(Errno::AGAIN)?;
    let (old, new) = dirs.get(from).zip(dirs.get(rest)).ok_or(Errno::NOENT)?;
    relocate::remove_leftovers(old);
    if !source.reads(|| is_empty(old))? {
        return Err(Errno::NOTEMPTY);
    }
    if copies.first() == Some(from) && op.branches.as_slice()[rest].mode != Mode::Ro {
        let rest = &op.branches[rest];
        rest.changes(|| relocate::copy_metadata(old, new, &own))?;
        rest.changes(|| relocate::set_times(new, &own))?;
    }
    let above = MergedDir::open(Symlinks::NEVER, &op.branches, split(&path).0);
    let dir = above.get(from).ok_or(Errno::NOENT)?;
    let removed = relocate::with_times_kept(dir, || above.unlink(from, name, AtFlags::REMOVEDIR));
    resolve::dirs::dir_rewritten(op, split(&path).0);
    node.copies_changed();
    if let Some(dir) = node.dir_if_any() {
        let kept_open = dir.cached.lock().take();
        drop(kept_open);
    }
    op.kernel.load().invalidate_attr(node.id);
    removed
}

fn indices(branches: &Branches, source: &Branch, target: &Branch) -> Result<(usize, usize), Errno> {
    branches.index_of(source.id).zip(branches.index_of(target.id)).ok_or(Errno::ROFS)
}

/// Returns whether a directory on a branch has no entries but those under construction.
fn is_empty(dir: rustix::fd::BorrowedFd<'_>) -> Result<bool, Errno> {
    let fd = beneath::open(dir, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
    for entry in rustix::fs::Dir::read_from(&fd)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") && !is_reserved(name) {
            return Ok(false);
        }
    }
    Ok(stat::of(fd.as_fd())?.is_dir())
}
