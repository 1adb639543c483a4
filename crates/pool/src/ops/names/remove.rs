//! Removing names: unlink and rmdir.

use crate::config::Func;
use crate::dir::merged::{Copies, MergedDir};
use crate::export::StableId;
use crate::node::{Node, Orphan};
use crate::ops::names;
use crate::ops::owed;
use crate::ops::read_cache;
use crate::ops::resolve;
use crate::paths::Uses;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_base::path::join;
use canopy_branch::fs::generation;
use canopy_branch::fs::reserved::is_reserved;
use canopy_branch::fs::stat::{self, Attr, Time};
use canopy_branch::journal::Change;
use canopy_branch::relocate;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Removes a name from every branch that the policy chooses.
///
/// Errors: `EROFS` if a branch must keep a copy, which would then become visible.
pub fn unlink(pool: &Pool, parent: NodeId, name: &[u8]) -> Result<()> {
    let op = &mut Op::begin(pool);
    let _changes = pool.figures.changes();
    let trust = resolve::dirs::cache_trust(op);
    let _held = op.using(Uses::name(parent, name));
    let (path, dirs) = resolve::dirs::dirs(op, parent, trust)?;
    if is_reserved(name) {
        return Err(Error::Absent);
    }
    // To pin a file and to look at it then costs less than to find its name twice.
    let (mut copies, pins) = match resolve::generations::pinned_copies(op, &dirs, name) {
        // Without descriptors, files can be removed all the same.
        (Copies { error: Some(Errno::MFILE | Errno::NFILE), .. }, _) => {
            (resolve::generations::copies(op, &dirs, name), SmallVec::new())
        }
        pinned => pinned,
    };
    let shown = resolve::choose::shown(op, Func::Getattr, &copies)?;
    if copies.get(shown).is_some_and(Attr::is_dir) {
        return Err(Error::IsDirectory);
    }
    let mut chosen = resolve::choose::choose_for_action(op, Func::Unlink, &copies)?;
    if let Some(order) = resolve::generations::removal_order(&copies, shown) {
        chosen = order.into_iter().rev().collect();
    }
    if copies.count() > 1 {
        let caller = op.kernel.load().caller_thread();
        chosen.retain(|index| !is_brought(op, caller, &dirs, name, &copies, *index));
    }
    resolve::choose::all_removable(op, std::iter::once(&copies))?;
    names::brake::check(op, &path, name)?;
    let victim = victim(op, (parent, name), &copies, |at, _| pins.into_iter().nth(at));
    if victim.is_none() {
        // Otherwise the file that the kernel knows is among the copies.
        rights_are_judged(op, (parent, name), &dirs, &copies)?;
    }
    resolve::generations::spare_apart(op, &dirs, (&path, name), &mut copies)?;
    chosen.retain(|index| copies.get(*index).is_some());
    let (who, mut kept) = (names::keep::keeper(op, &path, name, false), false);
    // Goes in reverse order: if one fails, the copy that was visible before is still there.
    for &index in chosen.iter().rev() {
        if copies.get(index).is_some_and(Attr::is_dir) {
            // This directory was hidden by the file. It is not a copy of it.
            continue;
        }
        kept |= names::keep::unlink(op, &dirs, (&path, name), (&copies, shown), index, who.as_ref())?;
    }
    owed::note(op, chosen, || Change::Clear(join(&path, name)));
    removed(op, parent, name, victim, kept);
    count_links_again(op, &copies);
    Ok(())
}

/// Has the kernel ask again how many links a file has of which one is gone. If it has copies, its names may lead to different nodes,
/// and the kernel has counted the links of one of these only.
pub(crate) fn count_links_again(op: &Op<'_>, copies: &Copies) {
    if copies.count() < 2 {
        return;
    }
    for (_, attr) in copies.iter().filter(|(_, attr)| !attr.is_dir() && attr.nlink > 1) {
        if let Some(node) = op.nodes.file(attr.key()) {
            op.kernel.load().invalidate_attr(node.id);
        }
    }
}

/// Checks that the kernel has judged the very file that a name leads to, or the owner of the directory, where that decides who may
/// remove or rename it: in a directory with the sticky bit, only its owner may (unlink(2), rmdir(2), rename(2)).
///
/// Errors: `ESTALE` if another has come there, directly on the branch. The kernel then looks the name up, and judges, again.
pub(crate) fn rights_are_judged(
    op: &Op<'_>,
    (parent, name): (NodeId, &[u8]),
    dirs: &MergedDir<'_>,
    copies: &Copies,
) -> Result<()> {
    // What is shown of a followed symlink is another file than the one that goes.
    if !copies.any() || !resolve::dirs::follow(op).is_plain() {
        return Ok(());
    }
    let Some(judged) = op.nodes.child(parent, name) else { return Ok(()) };
    let is_judged = match judged.key() {
        Some(key) => copies.iter().any(|(_, attr)| attr.key() == key),
        // A directory is its place. All that the kernel judges by is the owner that the pool shows.
        None => resolve::choose::shown(op, Func::Getattr, copies)
            .ok()
            .and_then(|shown| copies.get(shown))
            .is_some_and(|attr| attr.is_dir() && judged.is_told(attr.uid)),
    };
    if is_judged {
        return Ok(());
    }
    let is_sticky = |dir: BorrowedFd<'_>| {
        stat::of(dir).is_ok_and(|attr| Mode::from_raw_mode(attr.mode).contains(Mode::SVTX))
    };
    let any = copies.iter().filter_map(|(index, _)| dirs.get(index)).any(is_sticky);
    if any { Err(Error::Stale) } else { Ok(()) }
}

/// Returns whether the caller itself has brought a copy, equal in size and time, to its branch since it opened another in the pool:
/// mv(1) copies a file to a disk and then removes it from the pool. To remove both would lose the file. For a copy that
/// the pool makes, nobody has opened the other one last.
fn is_brought(
    op: &Op<'_>,
    caller: u32,
    dirs: &MergedDir<'_>,
    name: &[u8],
    copies: &Copies,
    index: usize,
) -> bool {
    let Some(attr) = copies.get(index).filter(|attr| attr.is_regular() || attr.is_symlink()) else {
        return false;
    };
    let is_source = |other: &Attr| {
        let is_equal = (other.size, other.mtime) == (attr.size, attr.mtime);
        is_equal && other.key() != attr.key() && op.last_opens.is_by(other.key(), caller, attr.btime)
    };
    // A clock elsewhere does not tell what was first.
    caller != 0
        && dirs.branches.as_slice()[index].stable_inodes
        && copies.iter().any(|(_, other)| is_source(other))
        && dirs.get(index).is_some_and(|dir| matches!(generation::read_at(dir, name), Ok(None)))
}

/// Removes a directory that is empty on all branches.
pub fn rmdir(pool: &Pool, parent: NodeId, name: &[u8]) -> Result<()> {
    let op = &mut Op::begin(pool);
    let _changes = pool.figures.changes();
    let trust = resolve::dirs::cache_trust(op);
    let _held = op.using(Uses::name(parent, name));
    let (path, dirs) = resolve::dirs::dirs(op, parent, trust)?;
    if is_reserved(name) {
        return Err(Error::Absent);
    }
    // A clone that has begun would bring the directory back on its branch.
    let _not_cloning = resolve::locks::lock_for_change(op, join(&path, name))?;
    let copies = dirs.copies(name);
    let shown = resolve::choose::shown(op, Func::Getattr, &copies)?;
    if !copies.get(shown).is_some_and(Attr::is_dir) {
        return Err(Error::NotDirectory);
    }
    rights_are_judged(op, (parent, name), &dirs, &copies)?;
    let chosen = resolve::choose::choose_for_action(op, Func::Rmdir, &copies)?;
    resolve::choose::all_removable(op, std::iter::once(&copies))?;
    // The branch itself refuses to remove the only copy if that has entries.
    let sole = copies.count() == 1;
    let keeps = !op.config.trash.is_empty();
    if !sole || keeps {
        all_empty(&dirs, &copies, name)?;
    }
    names::brake::check(op, &path, name)?;
    let going = names::keep::going(op, &dirs, shown, (&path, name));
    let remove = |index: usize| {
        // Of a followed symlink, the link itself is removed.
        let flags = if dirs.is_link(index, name) { AtFlags::empty() } else { AtFlags::REMOVEDIR };
        dirs.unlink(index, name, flags)
    };
    // Pins the directory before removing it: a client that still holds it must at any time find it by its name or
    // by the pin.
    let victim = pin_victim(op, parent, name, &dirs, &copies).map(|victim| orphan(op, victim, Fate::Pending));
    let mut gone: SmallVec<[usize; 4]> = SmallVec::new();
    for &index in chosen.iter().rev() {
        if !copies.get(index).is_some_and(Attr::is_dir) {
            continue;
        }
        let removed = match remove(index) {
            Err(Errno::NOTEMPTY | Errno::EXIST) if sole => {
                all_empty(&dirs, &copies, name).map_err(Error::errno).and_then(|()| remove(index))
            }
            other => other,
        };
        if let Err(errno) = removed
            && errno != Errno::NOENT
        {
            // Another process made an entry in it, or it is busy. Restores it on the other branches.
            let full = join(&path, name);
            for &restored in &gone {
                let list = op.branches.as_slice();
                let _ = names::create::clone_path(op, &list[index], &list[restored], &full, None);
            }
            if let Some(node) = victim {
                settle(op, &node);
            }
            return Err(errno.into());
        }
        gone.push(index);
    }
    if let Some(going) = going {
        going.gone(op, &path, name);
    }
    owed::note(op, gone, || Change::Clear(join(&path, name)));
    if let Some(node) = victim {
        let kept_open = node.dir_if_any().and_then(|dir| dir.cached.lock().take());
        drop(kept_open);
    }
    op.nodes.name_removed(parent, name);
    Ok(())
}

/// Checks that a directory is empty on all branches. Removes temporary directories that a crash left in it, since
/// clients can neither see nor remove them.
///
/// Errors: that of the branch's rmdir(2) for a directory with entries. It may differ from `ENOTEMPTY`.
pub(crate) fn all_empty(dirs: &MergedDir<'_>, copies: &Copies, name: &[u8]) -> Result<()> {
    let mut leftovers: SmallVec<[OwnedFd; 1]> = SmallVec::new();
    for (index, _) in copies.iter().filter(|(_, attr)| attr.is_dir()) {
        let dir = dirs.get(index).ok_or(Error::Absent)?;
        if dirs.is_link(index, name) {
            continue;
        }
        match dirs.branches[index].reads(|| contents(dir, name))? {
            Contents::Nothing => {}
            Contents::Leftovers(dir) => leftovers.push(dir),
            // Gets the branch's own error. If another process has emptied the directory, this removes it.
            Contents::Entries => dirs.unlink(index, name, AtFlags::REMOVEDIR)?,
        }
    }
    // Runs last: while another copy has entries, a temporary directory may be a clone of them in progress.
    leftovers.iter().for_each(|dir| relocate::remove_leftovers(dir.as_fd()));
    Ok(())
}

/// Pins the node that is about to lose a name, so that requests of clients that still hold it can be answered.
pub(crate) fn pin_victim(
    op: &Op<'_>,
    parent: NodeId,
    name: &[u8],
    dirs: &MergedDir<'_>,
    copies: &Copies,
) -> Option<Victim> {
    let pin = |_, index| dirs.follow.pin(dirs.get(index)?, name).ok();
    victim(op, (parent, name), copies, pin)
}

/// As `pin_victim`. `pin` gets the position of the copy that is the node and the index of its branch.
fn victim(
    op: &Op<'_>,
    (parent, name): (NodeId, &[u8]),
    copies: &Copies,
    pin: impl FnOnce(usize, usize) -> Option<OwnedFd>,
) -> Option<Victim> {
    let node = op.nodes.child(parent, name)?;
    let found = match node.key() {
        Some(key) => copies.found.iter().position(|(_, attr)| attr.key() == key),
        None => {
            let finds = |(index, attr): &(usize, Attr)| {
                StableId::of(&op.branches.as_slice()[*index], attr.key()).is_some_and(|it| it.id == node.id)
            };
            // Prefers the copy from which the directory's stable id comes.
            let any_dir = || copies.found.iter().position(|(_, attr)| attr.is_dir());
            copies.found.iter().position(finds).or_else(any_dir)
        }
    };
    let at = found?;
    let (index, attr) = copies.found[at];
    let fd = pin(at, index)?;
    let last = copies.count() == 1 && attr.nlink == 1;
    let orphan = Orphan { branch: op.branches.as_slice()[index].clone(), fd, kept: false };
    Some(Victim { node, orphan, birth: attr.btime, last })
}

/// What has become of the name of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is about to go.
    Pending,
    Removed,
    /// Its file is in the trash.
    Kept,
}

impl Fate {
    pub(crate) fn of(kept: bool) -> Fate {
        if kept { Fate::Kept } else { Fate::Removed }
    }
}

/// Updates the node table after a name was removed from the branches. `kept` is whether the file is in the trash.
pub(crate) fn removed(op: &Op<'_>, parent: NodeId, name: &[u8], victim: Option<Victim>, kept: bool) {
    let gone = victim.map(|victim| orphan(op, victim, Fate::of(kept)));
    op.nodes.name_removed(parent, name);
    if let Some(node) = gone {
        settle(op, &node);
    }
}

/// Stores the pinned file in its node. Must be called before the name is removed from the table, because a request
/// may come in between.
pub(crate) fn orphan(op: &Op<'_>, victim: Victim, fate: Fate) -> Arc<Node> {
    let Victim { node, mut orphan, birth, last } = victim;
    orphan.kept = fate == Fate::Kept && !node.is_dir();
    let linkless = || stat::of(orphan.fd.as_fd()).is_ok_and(|attr| attr.nlink == 0);
    let gone = !node.is_dir() && (last && fate == Fate::Removed || linkless());
    if let (true, Some(key)) = (gone, node.key()) {
        op.nodes.file_gone(key);
    }
    let orphan = Arc::new(orphan);
    if gone {
        orphan.branch.freed.now();
        read_cache::gone(op, &orphan.branch, &orphan.fd);
    } else if last && !node.is_dir() {
        // In the trash, its room may be needed.
        read_cache::leaves(op, &orphan.branch, || stat::of(orphan.fd.as_fd()).ok());
    }
    if gone || node.is_dir() {
        op.tick_guard.gone(birth, || orphan.clone());
    }
    node.set_orphan(orphan);
    op.dir_cache.idle_files.close(&node);
    node
}

/// Drops the pin after a name was removed, if the node has other names. A file with no links left keeps it, even if
/// a lookup in flight has put a name back into the table.
pub(crate) fn settle(op: &Op<'_>, node: &Node) {
    if op.nodes.names(node.id).next().is_none() {
        return;
    }
    let has_links = |orphan: &Orphan| stat::of(orphan.fd.as_fd()).is_ok_and(|attr| attr.nlink > 0);
    let unneeded = node.take_orphan_if(has_links);
    drop(unneeded);
}

/// A node that is about to lose a name.
pub(crate) struct Victim {
    node: Arc<Node>,
    orphan: Orphan,
    birth: Time,
    /// The name was the last link of the only copy.
    last: bool,
}

enum Contents {
    Nothing,
    /// Only temporary directories that a crash left while directories were cloned.
    Leftovers(OwnedFd),
    Entries,
}

fn contents(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Contents, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(fd.as_fd(), &mut buffer);
    let mut leftovers = false;
    while let Some(entry) = entries.next() {
        match entry?.file_name().to_bytes() {
            b"." | b".." => {}
            name if is_reserved(name) => leftovers = true,
            _ => return Ok(Contents::Entries),
        }
    }
    Ok(if leftovers { Contents::Leftovers(fd) } else { Contents::Nothing })
}
