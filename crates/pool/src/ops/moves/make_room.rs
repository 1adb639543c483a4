//! Moving a file off a full branch: the file moves to a branch with space, and the operation runs again there.

use crate::config::Func;
use crate::dir::merged::{Copies, MergedDir};
use crate::dir::symlinks::Symlinks;
use crate::node::handles::FileHandle;
use crate::node::{Node, Orphan};
use crate::ops::freed::Patience;
use crate::ops::moves;
use crate::ops::moves::lead::Lead;
use crate::ops::names;
use crate::ops::read_cache;
use crate::ops::reserve;
use crate::ops::resolve;
use crate::ops::resolve::acl::At;
use crate::ops::trash;
use crate::paths::Uses;
use crate::pool::Op;
use canopy_base::error::{Error, Failure, is_full};
use canopy_base::ids::BranchId;
use canopy_base::path::{PoolPath, join, split};
use canopy_branch::branch::Branch;
use canopy_branch::branch::space::Space;
use canopy_branch::fs::stat::{self, Attr, FileKey};
use canopy_branch::fs::{beneath, generation};
use canopy_branch::relocate::Losses;
use canopy_branch::relocate::file::{FileMove, can_leave};
use canopy_branch::relocate::journal::Original;
use canopy_branch::relocate::lease::LeasedFile;
use canopy_branch::relocate::links;
use canopy_policy::placement::{Set, confine};
use canopy_policy::{self as policy, BranchView, Mode, Policy, ThreadRandom};
use canopy_sys::shown::Show as _;
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a move starts over because the file changed meanwhile.
const ATTEMPTS: u32 = 3;

/// How long a file stays where it is after a walk over its branch has not found all its names, or after it could not be
/// leased. Without this, each page that is written back could start another attempt.
const WALK_AGAIN: Duration = Duration::from_secs(30);

/// Returns whether this is the error of writing to or truncating through a read-only descriptor.
fn is_read_only_fd_error(errno: Errno) -> bool {
    matches!(errno, Errno::BADF | Errno::INVAL)
}

/// Why a file does not move.
#[derive(Clone, Copy)]
pub(super) enum NotMoved {
    /// The file cannot move to any branch.
    File(Errno),
    /// The file cannot move to this branch.
    Branch(Errno),
}

impl Failure for NotMoved {
    fn errno(&self) -> Errno {
        let (NotMoved::File(errno) | NotMoved::Branch(errno)) = self;
        *errno
    }
}

impl NotMoved {
    /// Classifies the error of a step of the move.
    fn of(errno: Errno) -> NotMoved {
        match errno {
            Errno::AGAIN | Errno::BUSY | Errno::TXTBSY | Errno::INTR => NotMoved::File(errno),
            _ => NotMoved::Branch(errno),
        }
    }
}

/// A file that can move or be copied, as it was when it was checked.
pub(super) struct Movable {
    pub(super) source: Arc<Branch>,
    pub(super) attr: Attr,
    pub(super) names: Vec<PoolPath>,
    pub(super) original: Original,
    /// Other branches that hold an old copy of it.
    pub(super) old_on: SmallVec<[BranchId; 2]>,
    /// The copy that the target holds already, if one of several goes.
    pub(super) there: Option<LeasedFile>,
    pub(super) reason: Reason,
    /// Only who asks for a move may accept them; a full branch does not.
    pub(super) losses: Losses,
}

/// Why a file moves, or gets a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// Its branch is full.
    Full,
    /// A client wants it.
    Asked,
}

/// Runs an operation on a node's file. When its branch is full, moves the file and runs the operation again. The
/// file cannot move while the operation runs. `wanted` is the additional space that the operation needs, in bytes.
///
/// The caller holds no lock; the locks that the operation takes come after the node's `moving` in the lock order.
pub(crate) fn with_room<T>(
    op: &mut Op<'_>,
    node: &Arc<Node>,
    wanted: u64,
    mut operation: impl FnMut(&mut Op<'_>) -> canopy_base::error::Result<T>,
) -> canopy_base::error::Result<T> {
    let mut moved = 0;
    let mut patience = Patience::default();
    loop {
        let moving = node.pin_location()?;
        let moves = node.moves();
        let attr = || written_attr(node);
        let (state, nears) = (op.state(), reserve::nears_reserve(op, node, wanted));
        let result = reserve::take_space(state, nears, attr, || operation(op));
        drop(moving);
        match result {
            Err(error)
                if is_full(error.errno()) && patience.tries_again(op, node.key().map(|key| key.dev)) => {}
            // Of what others have removed nobody has promised that it stays.
            Err(error) if trash::gives_way_to(op, node, error.errno(), wanted) => {}
            // A target may fill up while the file is copied to it, or while other handles write the file there.
            Err(error) if is_full(error.errno()) && moved < 2 * op.branches.len() => {
                if !make_room(op, node, moves, wanted)? {
                    return Err(error);
                }
                moved += 1;
            }
            // The handle is still read-only: reopening it failed after a move that was given up.
            Err(error) if is_read_only_fd_error(error.errno()) && write_again(op, node)? => {}
            other => return other,
        }
    }
}

fn written_attr(node: &Node) -> Option<Attr> {
    let open = node.opened()?;
    stat::of(open.location().fd.as_fd()).ok()
}

/// Reopens for writing what a move has left read-only. Returns true if there was anything.
///
/// Errors: [`Error::Wait`] while the file moves, or is leased.
fn write_again(op: &Op<'_>, node: &Arc<Node>) -> canopy_base::error::Result<bool> {
    if moves::freeze::revoked(op.state(), node).is_empty() {
        // The operation itself makes no sense, as is mostly so.
        return Ok(false);
    }
    let _alone = node.take()?;
    moves::freeze::restore_writers(op.state(), node).map_err(|errno| node.waits_for_lease(errno, true))
}

/// Moves a file to a branch with space. Returns true if the file has moved since its move count was `seen`.
///
/// Errors: [`Error::Wait`] while another writer of the file moves it.
fn make_room(op: &mut Op<'_>, node: &Arc<Node>, seen: u32, wanted: u64) -> canopy_base::error::Result<bool> {
    let Some(policy) = op.config.move_when_full.0 else { return Ok(false) };
    // Other writers of the file come upon the move here or where they take `moving`, and later find it moved.
    let _alone = node.take()?;
    let _copying = op.state().stuck_operations.moving();
    if node.moves() != seen {
        return Ok(true);
    }
    if node.rare().stays_until.lock().is_some_and(|until| Instant::now() < until) {
        return Ok(false);
    }
    let mut tried: SmallVec<[BranchId; 4]> = SmallVec::new();
    let mut attempts = 0;
    let mut frozen = None;
    loop {
        let moved = movable(op, node, None, Reason::Full).map_err(NotMoved::File).and_then(|file| {
            let target = choose_target(op, policy, &file, wanted, &tried).map_err(NotMoved::File)?;
            tried.push(target.id);
            let needed = (file.attr.blocks * 512).saturating_add(wanted);
            trash::clear(op, &target, needed.saturating_add(target.min_free_or(op.config.min_free)));
            let still = match &mut frozen {
                Some(still) => still,
                none => {
                    let held = moves::freeze::freeze(op, node).inspect_err(|errno| {
                        if *errno == Errno::OPNOTSUPP {
                            warn_of_no_leases(op, &file.source);
                        }
                    });
                    none.insert(held.map_err(NotMoved::File)?)
                }
            };
            let state = op.state();
            let wanted = || !state.kernel.load().caller_is_killed();
            // An error may come from either branch; the health check finds out which.
            let carry = || carry(op, node, &file, &target, still.as_ref(), &wanted);
            let carried = target.reads(|| file.source.reads(carry));
            file.names.iter().for_each(|name| resolve::dirs::dir_rewritten(op, split(name).0));
            carried.map(|()| (file, target))
        });
        match moved {
            Ok((file, target)) => {
                tracing::info!(
                    "{}: moved to {}, for {} is full",
                    file.names.first().map_or("a file without a name".shown(), |name| name.shown()),
                    target.path.shown(),
                    file.source.path.shown()
                );
                return Ok(true);
            }
            Err(NotMoved::File(Errno::AGAIN)) if attempts < ATTEMPTS => {
                attempts += 1;
                tried.clear();
            }
            Err(NotMoved::Branch(errno)) => tracing::debug!("a file cannot move to a branch: {errno}"),
            Err(NotMoved::File(errno)) => {
                tracing::debug!("a file on a full branch cannot move: {errno}");
                if matches!(errno, Errno::MLINK | Errno::OPNOTSUPP) {
                    *node.rare().stays_until.lock() = Some(Instant::now() + WALK_AGAIN);
                }
                return Ok(false);
            }
        }
    }
}

fn warn_of_no_leases(op: &Op<'_>, branch: &Branch) {
    let mut warned = op.unleased.write();
    if !warned.contains(&branch.id) {
        warned.push(branch.id);
        tracing::warn!(
            "{}: files stay there when it is full, for its filesystem gives no leases: who writes them could not be \
             told from who does not",
            branch.path.shown()
        );
    }
}

/// Returns the node's file with all its names, if it can move, or be copied to a branch.
///
/// Errors: `EBUSY` for a file that a handle writes by passthrough, `ETXTBSY` for one that [stays](Self::may_switch) for
/// its readers, `EEXIST` when another branch, or the one that is to
/// get a copy, also holds one of its names, `EMLINK` when not all of its names can be found.
pub(super) fn movable(
    op: &mut Op<'_>,
    node: &Arc<Node>,
    copy_to: Option<BranchId>,
    reason: Reason,
) -> Result<Movable, Errno> {
    let original = if copy_to.is_some() { Original::Stays } else { Original::Goes };
    let primary = {
        let _held = op.using(Uses::node(node.id));
        resolve::places::primary(op, node).map_err(Error::errno)?
    };
    if is_written_past_daemon(op, node) {
        return Err(Errno::BUSY);
    }
    if original == Original::Goes {
        op.dir_cache.idle_files.close(node);
        may_switch(op, node, primary.attr.key(), reason)?;
    }
    if !can_leave(&primary.attr) {
        return Err(Errno::PERM);
    }
    let source = primary.branch;
    if (source.mode == Mode::Ro && original == Original::Goes) || op.branches.index_of(source.id).is_none() {
        return Err(Errno::ROFS);
    }
    // Without keeping its path in place, as it may take a while; the names are checked again before they change.
    let known = op.nodes.names(node.id).map(|(dir, name)| join(&dir, &name));
    let names = source.reads(|| links::all_names(source.root(), &primary.attr, known))?;
    let generation = if resolve::generations::knows_copies(op) {
        source.reads(|| generation::read(primary.fd.as_fd()))?
    } else {
        None
    };
    let mut old_on = SmallVec::new();
    for name in &names {
        let (dir, name) = split(name);
        let others =
            op.branches.iter().filter(|branch| copy_to.map_or(branch.id != source.id, |to| branch.id == to));
        for other in others {
            let find = || {
                let dir = beneath::dir(other.root(), dir)?;
                Ok((stat::at(dir.as_fd(), name)?, dir))
            };
            match other.reads(find) {
                // Nobody sees it, and a copy may take its place. Names of a file that has several change one by one, but
                // those that still lead to the old copy stay hidden, for it is older than the new one.
                Ok((attr, dir))
                    if resolve::generations::is_old_copy(op, (dir.as_fd(), name, &attr), generation) =>
                {
                    old_on.push(other.id);
                }
                // After the move, the pool could show the other file.
                Ok(_) => return Err(Errno::EXIST),
                Err(errno) if beneath::is_absent(errno) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(Movable {
        source,
        attr: primary.attr,
        names,
        original,
        old_on,
        there: None,
        reason,
        losses: Losses::Refused,
    })
}

/// Returns the branch that the policy picks, except the file's own branch and those already tried: among those where
/// a new file of this path would go.
fn choose_target(
    op: &Op<'_>,
    policy: Policy,
    file: &Movable,
    wanted: u64,
    tried: &[BranchId],
) -> Result<Arc<Branch>, Errno> {
    let needed = (file.attr.blocks * 512).saturating_add(wanted);
    let (path, name) = file.names.first().map_or((&b""[..], &b""[..]), |name| split(name));
    let level = |at: &[u8], set: Option<Set<'_>>| -> Result<Vec<BranchView>, Errno> {
        let dirs = MergedDir::open(Symlinks::NEVER, &op.branches, at);
        let view = |(index, branch): (usize, &Arc<Branch>)| {
            let attr = dirs.get(index).and_then(|dir| stat::of(dir).ok());
            let ruled_out =
                branch.id == file.source.id || tried.contains(&branch.id) || file.old_on.contains(&branch.id);
            BranchView {
                mode: if ruled_out { Mode::Ro } else { branch.mode },
                unwell: !branch.health.is_well(),
                min_free: branch.min_free_or(op.config.min_free).max(needed),
                present: attr.is_some(),
                mtime: attr.map_or(0, |attr| attr.mtime.sec),
                // Read now: the cached value may be from before the branch filled up.
                space: Space::of(branch.root()).ok().map(|space| trash::counted(op, branch, needed, space)),
                outside: false,
                asleep: false,
            }
        };
        let mut views: Vec<BranchView> = op.branches.iter().enumerate().map(view).collect();
        if let Some(set) = set {
            confine(policy, &mut views, |index| set.holds(&op.branches.as_slice()[index].path));
        }
        Ok(views)
    };
    let choose = |set| policy::create_climbing(policy, path, |at| level(at, set), &mut ThreadRandom);
    let config = &op.config;
    let chosen = config.placement.first(path, name, choose)?;
    let index = chosen.ok().and_then(|chosen| chosen.first().copied()).ok_or(Errno::NOSPC)?;
    Ok(op.branches.as_slice()[index].clone())
}

/// Moves a node's file and all its handles to a branch, or copies the file there. The caller holds the node's `moving` exclusively.
pub(super) fn carry(
    op: &mut Op<'_>,
    node: &Arc<Node>,
    file: &Movable,
    target: &Arc<Branch>,
    still: &LeasedFile,
    wanted: &dyn Fn() -> bool,
) -> Result<(), NotMoved> {
    let note =
        FileMove::announce(&file.source, target, file.original, &file.names).map_err(NotMoved::Branch)?;
    if let Err(why) = prepare(op, node, file, target, still) {
        note.erase();
        return Err(why);
    }
    let names = file.names.clone();
    let copied = match &file.there {
        None => {
            let fate = (file.original, file.losses);
            FileMove::copy(&file.source, target, fate, still, names, note, wanted)
        }
        Some(copy) => FileMove::onto(&file.source, target, still, names, copy, note),
    };
    let mut carry = copied.map_err(NotMoved::of)?;
    if file.original == Original::Stays {
        // Whoever opened it before has not brought this copy.
        op.last_opens.put(file.attr.key(), 0);
    }
    if file.original == Original::Stays && file.old_on.contains(&target.id) {
        carry.replace();
    }
    // From here on, no other request uses one of its names or opens it.
    let held = op.claim_file(node.id, file.names.len()).map_err(NotMoved::File)?;
    op.dir_cache.idle_files.close(node);
    if file.original == Original::Goes {
        read_cache::leaves(op, &file.source, || Some(file.attr));
    }
    let orphan = node.orphan().is_some();
    if op.branches.index_of(target.id).is_none() || op.branches.index_of(file.source.id).is_none() {
        return Err(NotMoved::Branch(Errno::ROFS));
    }
    let is_shown = match file.there {
        Some(_) => node.key() == Some(file.attr.key()),
        None => file.original == Original::Goes || shows_copy(op, file, target)?,
    };
    if !is_shown {
        // What handles go on using must not lose its name, or they would use another file than those who come later.
        let has_open =
            |handle: &FileHandle| Arc::ptr_eq(&handle.node, node) && handle.leads_to(&file.attr.key());
        if file.original == Original::Goes && !op.files.matching(has_open).is_empty() {
            return Err(NotMoved::File(Errno::TXTBSY));
        }
        switch(op, &mut carry, file, target)?;
        drop(held);
        carry.finish();
        op.space.clear();
        return Ok(());
    }
    may_switch(op, node, file.attr.key(), file.reason).map_err(NotMoved::File)?;
    let number = shown_ino(op, node).map_err(|error| NotMoved::File(error.errno()))?;
    let reopened = || -> Result<_, Errno> {
        let lead = Lead::prepare(op, node, |flags| carry.reopen(flags))?;
        let pinned = || carry.reopen(OFlags::PATH);
        let orphan =
            if orphan { Some(Orphan { branch: target.clone(), fd: pinned()?, kept: false }) } else { None };
        Ok((lead, pinned()?, orphan, carry.key()?))
    };
    let (lead, pinned, orphan, key) = reopened().map_err(NotMoved::Branch)?;
    lead.announce();
    switch(op, &mut carry, file, target)?;
    // Nothing below can fail.
    lead.go(op, node, key, number, (target, pinned));
    if let Some(orphan) = orphan {
        node.set_orphan(Arc::new(orphan));
    }
    drop(held);
    carry.finish();
    if file.there.is_none() {
        op.moved.count(file.attr.blocks * 512);
    }
    op.space.clear();
    op.kernel.load().invalidate_attr(node.id);
    Ok(())
}

/// The rule for every way in which handles are led to another file: a move, whoever wants it, and a copy that is shown
/// from then on. They are led there together, or not at all. The kernel cannot be given another file for handles that it
/// serves itself (passthrough), so that they would read old data beside the size of the new; such a file stays.
///
/// Where the branch is full, readers that were separated from the writer before (`detach`) keep the old file, with its
/// size and times: the pool may promise the writer room, or the readers what it writes, and promises room.
///
/// Holds from one look to the next only while the file is claimed, and without idle files.
///
/// Errors: `ETXTBSY` for a file that stays.
fn may_switch(op: &Op<'_>, node: &Arc<Node>, file: FileKey, reason: Reason) -> Result<(), Errno> {
    if node.opened().is_some_and(|open| open.backing.is_some()) {
        return Err(Errno::TXTBSY);
    }
    let separated = |handle: &FileHandle| handle.passthrough && handle.node.key() == Some(file);
    if reason == Reason::Asked && !op.files.matching(separated).is_empty() {
        Err(Errno::TXTBSY)
    } else {
        Ok(())
    }
}

fn switch(op: &Op<'_>, carry: &mut FileMove<'_>, file: &Movable, target: &Branch) -> Result<(), NotMoved> {
    // What the copy is to be equal to is looked at once more.
    let right = op.rights.to_copy([file.attr.key()]);
    let switched = carry.switch();
    drop(right);
    let path = file.names.first().map_or(&b""[..], |name| name.as_slice());
    resolve::generations::tell_apart(target, path, carry.set_aside());
    for name in &file.names {
        let (dir, name) = split(name);
        resolve::dirs::name_created(op, dir, name, target.id);
    }
    switched.map_err(NotMoved::of)
}

/// Returns whether lookups will lead to the copy that a branch is to get. Then the node must stand for it as well, or a
/// client that knows the node would write a file that others do not see.
fn shows_copy(op: &Op<'_>, file: &Movable, target: &Branch) -> Result<bool, NotMoved> {
    let to = op.branches.index_of(target.id).ok_or(NotMoved::Branch(Errno::ROFS))?;
    let (dir, name) = split(file.names.first().ok_or(NotMoved::File(Errno::NOENT))?);
    let mut copies =
        resolve::generations::copies(op, &MergedDir::open(Symlinks::NEVER, &op.branches, dir), name);
    copies.found.retain(|(index, _)| *index != to);
    if let Some(current) = &mut copies.current {
        current.push(to);
    }
    would_show(op, copies, to, file.attr).map_err(NotMoved::File)
}

/// Returns whether the pool will show the copy that a branch is to get beside others.
pub(super) fn would_show(op: &Op<'_>, mut copies: Copies, to: usize, attr: Attr) -> Result<bool, Errno> {
    let at = copies.found.partition_point(|(index, _)| *index < to);
    copies.found.insert(at, (to, attr));
    Ok(resolve::choose::shown(op, Func::Getattr, &copies).map_err(Error::errno)? == to)
}

/// Returns whether a handle writes the file by passthrough, or its names now lead to another node.
fn is_written_past_daemon(op: &Op<'_>, node: &Arc<Node>) -> bool {
    let Some(open) = node.opened() else { return false };
    open.is_detached()
        || (open.backing.is_some()
            && !op.files.matching(|h| Arc::ptr_eq(&h.node, node) && h.writes_past_daemon()).is_empty())
}

/// Creates the directories of all names on the target, and checks that the leased file is still this one.
fn prepare(
    op: &mut Op<'_>,
    node: &Node,
    file: &Movable,
    target: &Branch,
    still: &LeasedFile,
) -> Result<(), NotMoved> {
    let _held = op.using(Uses::node(node.id));
    let index = op.branches.index_of(target.id).ok_or(NotMoved::Branch(Errno::ROFS))?;
    for name in &file.names {
        let dir = split(name).0;
        let mut dirs = MergedDir::open(Symlinks::NEVER, &op.branches, dir);
        names::create::bring_dir(op, &mut dirs, index, dir).map_err(NotMoved::Branch)?;
    }
    if stat::of(still.as_fd()).map_err(NotMoved::File)?.key() == file.attr.key() {
        Ok(())
    } else {
        Err(NotMoved::File(Errno::AGAIN))
    }
}

/// Returns the inode number that callers see.
pub(crate) fn shown_ino(op: &Op<'_>, node: &Arc<Node>) -> canopy_base::error::Result<u64> {
    let primary = resolve::places::primary(op, node)?;
    let at = At::Opened(primary.fd.as_fd());
    Ok(resolve::show_file(op, node, &primary.branch, primary.attr, at).ino)
}
