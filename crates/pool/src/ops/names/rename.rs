//! Rename, in all its kinds, across branches.
//!
//! Each copy of the source is renamed on its own branch. Copies of the target on other branches are removed only
//! afterwards, when that is on disk, so that the new name always leads to the source or to the target. If a step fails, the earlier ones are
//! undone.

use super::replay_rename::{RenameIntent, RenameLog};
use crate::config::Func;
use crate::dir::merged::{Copies, MergedDir, Trust};
use crate::dir::symlinks::Symlinks;
use crate::door::Caller;
use crate::node::Node;
use crate::ops::data;
use crate::ops::external_changes;
use crate::ops::names;
use crate::ops::names::remove::Fate;
use crate::ops::owed;
use crate::ops::read_cache;
use crate::ops::reserve;
use crate::ops::reserve::DIRECTORY_GROWS;
use crate::ops::resolve;
use crate::ops::trash;
use crate::paths::{Changing, PathGuard, Scope, Uses};
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_base::path::join;
use canopy_branch::fs::reserved::{check_not_reserved, is_reserved};
use canopy_branch::fs::stat::{self, Attr};
use canopy_branch::journal::Change;
use canopy_branch::relocate::lease;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The flags of renameat2(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameKind {
    Replace,
    /// `RENAME_NOREPLACE`
    NoReplace,
    /// `RENAME_EXCHANGE`
    Exchange,
    /// `RENAME_WHITEOUT`: leaves a whiteout under the old name, which overlayfs needs of its upper layer.
    Whiteout,
    /// `RENAME_WHITEOUT | RENAME_NOREPLACE`
    WhiteoutNoReplace,
}

impl RenameKind {
    fn replaces(self) -> bool {
        matches!(self, RenameKind::Replace | RenameKind::Whiteout)
    }

    pub(crate) fn leaves_whiteout(self) -> bool {
        matches!(self, RenameKind::Whiteout | RenameKind::WhiteoutNoReplace)
    }
}

/// One of the two names of a rename: its directory on every branch, and its copies.
pub(crate) struct Side<'b, 'n> {
    pub(crate) parent: NodeId,
    pub(crate) name: &'n [u8],
    /// The path of the directory.
    pub(crate) path: canopy_base::path::PoolPath,
    pub(crate) dirs: MergedDir<'b>,
    pub(crate) copies: Copies,
}

impl Side<'_, '_> {
    fn held_by(&self, index: usize) -> bool {
        self.copies.get(index).is_some()
    }

    fn is_dir(&self, index: usize) -> bool {
        self.copies.get(index).is_some_and(Attr::is_dir)
    }

    /// Waits until what has just got the name on one of these branches is on disk with it, if other branches are about to
    /// lose their copies of the target, which these `held` before.
    ///
    /// Two filesystems keep no order of changes between them. If the removal of the target's last copy on another branch
    /// were on disk first, a power cut in between would leave nothing under the name. A branch that holds both keeps the
    /// order itself.
    pub(crate) fn sync_unless_both(
        &self,
        mut branches: impl Iterator<Item = usize> + Clone,
        held: impl Fn(usize) -> bool,
    ) -> Result<(), Errno> {
        let replaces = (0..self.dirs.branches.len()).any(&held);
        let both = branches.clone().any(held);
        match branches.next() {
            Some(first) if replaces && !both => self.sync(first),
            _ => Ok(()),
        }
    }

    /// Waits until what has just got the name on this branch is on disk with it. The data has to be there too: on one
    /// filesystem, a file that takes the place of another has been written before (ext4(5) `auto_da_alloc`).
    ///
    /// Errors: those of fsync(2). A filesystem that cannot sync directories keeps whatever order it keeps.
    pub(crate) fn sync(&self, index: usize) -> Result<(), Errno> {
        let Some(dir) = self.dirs.get(index) else { return Ok(()) };
        let sync = |name: &[u8], flags: OFlags| {
            let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let open = |name: &[u8], more| rustix::fs::openat(dir, name, flags | more, Mode::empty());
            let synced = match open(name, OFlags::empty()) {
                // Whoever holds a lease on the file does not hold up a rename: it is written with all others.
                Err(Errno::AGAIN) => open(b".", OFlags::DIRECTORY).and_then(rustix::fs::syncfs),
                opened => opened.and_then(rustix::fs::fsync),
            };
            match synced {
                Err(errno) if CANNOT_SYNC.contains(&errno) => Ok(()),
                other => other,
            }
        };
        self.dirs.branches[index].changes(|| {
            if stat::at(dir, self.name)?.is_regular() {
                sync(self.name, OFlags::empty())?;
            }
            sync(b".", OFlags::DIRECTORY)
        })
    }
}

/// The errors of opening or syncing what cannot be synced: by permission, or by its filesystem.
const CANNOT_SYNC: [Errno; 5] = [Errno::ACCESS, Errno::PERM, Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP];

/// What has been done on one branch, so that it can be undone.
pub(crate) enum Step {
    Moved,
    /// As `Moved`, and there is now a whiteout under the old name.
    MovedUnderWhiteout,
    /// The two names were exchanged. A plain rename must still remove the target, which now has the old name.
    Swapped,
    /// The file under the new name moved to the old one: an exchange on a branch that holds only the new name.
    MovedBack,
}

/// If there are more names than this below a renamed directory, all directories are opened again, instead of only those
/// among them.
const MAX_MOVED_NAMES: usize = 4096;

/// The known directories that a rename moves. `None` if there are many.
type MovedDirs = Option<Vec<Arc<Node>>>;

/// Renames a file or directory on every branch that the policy chooses.
///
/// Errors: `EXDEV` if the create policy preserves paths and the branch lacks the new directory, unless
/// `rename-exdev` names a substitute.
pub fn rename(
    pool: &Pool,
    caller: &Caller,
    parent: NodeId,
    name: &[u8],
    new_parent: NodeId,
    new_name: &[u8],
    kind: RenameKind,
) -> Result<()> {
    rename_noted(pool, caller, (parent, name), (new_parent, new_name), kind, None)
}

/// As `rename`. Notes in `intent`, if that is given, what it does, for a process that may have to complete it.
pub fn rename_noted(
    pool: &Pool,
    caller: &Caller,
    (parent, name): (NodeId, &[u8]),
    (new_parent, new_name): (NodeId, &[u8]),
    kind: RenameKind,
    intent: Option<RenameIntent<'_>>,
) -> Result<()> {
    let op = &mut Op::begin(pool);
    let log = RenameLog(intent);
    if is_reserved(name) {
        return Err(Error::Absent);
    }
    check_not_reserved(new_name)?;
    let _changes = pool.figures.changes();
    let exchanges = kind == RenameKind::Exchange;
    let mut trust = resolve::dirs::cache_trust(op);
    // All copies get the name, while nobody writes.
    let source = op.nodes.child(parent, name);
    let mut equal = source.as_ref().and_then(|node| data::mirrors::settle(op, node));
    // No operation below a directory may be in flight while the directory moves.
    let mut moves_dir = is_known_dir(op, parent, name) || exchanges && is_known_dir(op, new_parent, new_name);
    let names = [(parent, name), (new_parent, new_name)];
    let used = || Uses::name(parent, name).and(Uses::name(new_parent, new_name));
    let mut held = if moves_dir { claim_rename(op, names[0], names[1])? } else { op.using(used()) };
    let [mut old, mut new] = sides(op, names, trust)?;
    if !moves_dir && (is_dir(op, &mut old) || exchanges && is_dir(op, &mut new)) {
        drop((old, new, held, equal.take()));
        // Others may have changed either directory meanwhile: through the pool, of which the cache knows, or on the
        // branches.
        trust = resolve::dirs::cache_trust(op);
        held = claim_rename(op, names[0], names[1])?;
        [old, new] = sides(op, names, trust)?;
        moves_dir = true;
    }
    let moved = if moves_dir {
        known_dirs_at(op, [(parent, name), (new_parent, new_name)])
    } else {
        Some(Vec::new())
    };
    if kind.replaces() && old.copies.any() && new.copies.any() {
        names::brake::check(op, &new.path, new.name)?;
    }
    let kept = names::keep::keep_replaced(op, &old, &new, kind);
    let result = match kind {
        RenameKind::Exchange => exchange(op, &mut old, &mut new, log),
        _ => match replace(op, &mut old, &mut new, kind, log, kept.iter().any(|kept| kept.sole)) {
            Err(error) if error.errno() == Errno::XDEV && !kind.leaves_whiteout() => {
                names::exdev::rename_by_symlink(op, caller, &old, &mut new, kind)
            }
            result => result,
        },
    };
    kept.into_iter().for_each(|kept| kept.settle(op));
    if result.is_ok() && kind.replaces() {
        names::remove::count_links_again(op, &new.copies);
    }
    if moves_dir {
        places_moved(op, moved);
    }
    drop(held);
    result
}

/// Claims what a rename of directories changes: two names, and all below what they lead to.
pub(crate) fn claim_rename<'p>(
    op: &mut Op<'p>,
    old: (NodeId, &[u8]),
    new: (NodeId, &[u8]),
) -> Result<PathGuard<'p>> {
    let state = op.state();
    let scope =
        || {
            let mut scope: Scope = smallvec![];
            for (parent, name) in [old, new] {
                scope.push(Changing::name(parent, name));
                scope.extend(state.nodes.child(parent, name).map(|node| {
                    if node.is_dir() { Changing::Below(node.id) } else { Changing::Node(node.id) }
                }));
            }
            scope
        };
    loop {
        let wanted = scope();
        let held = op.claim(&wanted)?;
        // They may have come to lead elsewhere before they were claimed.
        if scope() == wanted {
            return Ok(held);
        }
    }
}

/// Returns the two names of a rename.
fn sides<'b, 'n>(
    op: &'b Op<'_>,
    [old, new]: [(NodeId, &'n [u8]); 2],
    trust: Trust,
) -> Result<[Side<'b, 'n>; 2]> {
    Ok([side(op, old, trust)?, side(op, new, trust)?])
}

/// Returns one of the two names of a rename.
pub(crate) fn side<'b, 'n>(
    op: &'b Op<'_>,
    (parent, name): (NodeId, &'n [u8]),
    trust: Trust,
) -> Result<Side<'b, 'n>> {
    let (path, mut dirs) = resolve::dirs::dirs(op, parent, trust)?;
    dirs.first()?;
    // A rename of a followed symlink moves the symlink itself.
    dirs.follow = Symlinks::NEVER;
    let copies = resolve::generations::copies(op, &dirs, name);
    names::remove::rights_are_judged(op, (parent, name), &dirs, &copies)?;
    Ok(Side { parent, name, path, dirs, copies })
}

/// Returns the known directories with these names, and those below them.
fn known_dirs_at(op: &Op<'_>, names: [(NodeId, &[u8]); 2]) -> MovedDirs {
    let mut nodes = Vec::new();
    for (parent, name) in names {
        let below = |node: &Arc<Node>| external_changes::known(op).dirs_below(node.id, MAX_MOVED_NAMES);
        match op.nodes.child(parent, name).filter(|node| node.is_dir()).map(|node| (below(&node), node)) {
            Some((Some(below), node)) => {
                nodes.push(node);
                nodes.extend(below);
            }
            Some((None, _)) => return None,
            None => {}
        }
    }
    Some(nodes)
}

/// Updates the cache after directories have been renamed. The caller has claimed them since before the
/// rename, so nobody caches what was there before.
fn places_moved(op: &Op<'_>, moved: MovedDirs) {
    let Some(nodes) = moved else { return op.dir_cache.places_changed() };
    nodes.iter().for_each(|node| op.dir_cache.moved(node));
}

/// Returns true if the kernel knows the name, and as a directory.
fn is_known_dir(op: &Op<'_>, parent: NodeId, name: &[u8]) -> bool {
    op.nodes.child(parent, name).is_some_and(|node| node.is_dir())
}

/// Returns true if the pool shows the name as a directory. A followed symlink may be shown as one.
fn is_dir(op: &Op<'_>, side: &mut Side<'_, '_>) -> bool {
    let follow = resolve::dirs::follow(op);
    if side.copies.any_dir() || follow.is_plain() {
        return side.copies.any_dir();
    }
    let as_named = std::mem::replace(&mut side.dirs.follow, follow);
    let found = side.dirs.copies(side.name).any_dir();
    side.dirs.follow = as_named;
    found
}

/// Renames `old` to `new`, replacing the target if `kind` allows it. `kept` is whether that is in the trash already.
pub(crate) fn replace<'b>(
    op: &'b Op<'_>,
    old: &mut Side<'b, '_>,
    new: &mut Side<'b, '_>,
    kind: RenameKind,
    log: RenameLog<'_>,
    kept: bool,
) -> Result<()> {
    let source = resolve::choose::shown(op, Func::Getattr, &old.copies)?;
    let target =
        if new.copies.any() { Some(resolve::choose::shown(op, Func::Getattr, &new.copies)?) } else { None };
    if !kind.replaces() {
        new.copies.must_be_absent()?;
    }
    let mut chosen = resolve::choose::choose_for_action(op, Func::Rename, &old.copies)?;
    resolve::choose::all_removable(op, std::iter::once(&old.copies))?;
    if kind.replaces() && old.copies.get(source).is_some_and(Attr::is_regular) {
        names::rename_copies::leave_failing_copies(op, new);
    }
    if let Some(target) = target {
        let same = |a: &Copies, b: &Copies| matches!((a.get(source), b.get(target)), (Some(a), Some(b)) if !a.is_dir() && a.key() == b.key());
        // If both are names of one file, rename(2) does nothing.
        if same(&old.copies, &new.copies) {
            return Ok(());
        }
        match (old.is_dir(source), new.is_dir(target)) {
            (true, false) => return Err(Error::NotDirectory),
            (false, true) => return Err(Error::IsDirectory),
            _ => {}
        }
        resolve::choose::all_removable(op, [&old.copies, &new.copies].into_iter())?;
        names::remove::all_empty(&new.dirs, &new.copies, new.name)?;
    }
    if names::link::preserves_paths(op) && chosen.iter().any(|&index| new.dirs.lacks(index)) {
        return Err(Error::CrossBranch);
    }
    if resolve::generations::knows_copies(op) && old.copies.get(source).is_some_and(Attr::is_regular) {
        names::rename_copies::spare_apart(op, new)?;
        names::rename_copies::prepare_copies(op, old, new, &mut chosen)?;
    }
    let victim = names::remove::pin_victim(op, new.parent, new.name, &new.dirs, &new.copies);
    // The branch renames a single copy atomically. The renames of several copies must be undoable, so a target is
    // exchanged with the source at first, and removed when all copies are renamed.
    let undoable = chosen.len() > 1 || new.copies.count() > 1;
    let mut done: SmallVec<[(usize, Step); 4]> = SmallVec::new();
    log.begin(&op.branches, chosen.iter().copied(), new);
    for &index in &chosen {
        log.step(index, old.copies.get(index));
        let step = names::create::bring_dir(op, &mut new.dirs, index, &new.path)
            .and_then(|()| rename_for_caller(op, old, new, index, undoable, kind));
        match step {
            Ok(step) => {
                new.dirs.name_created(new.name, index);
                if let Step::MovedUnderWhiteout = step {
                    old.dirs.name_created(old.name, index);
                }
                log.done(index);
                done.push((index, step));
            }
            Err(errno) => {
                undo(old, new, &done);
                log.undone();
                return Err(errno.into());
            }
        }
    }
    if let Err(errno) = new.sync_unless_both(chosen.iter().copied(), |index| new.held_by(index)) {
        undo(old, new, &done);
        log.undone();
        return Err(errno.into());
    }
    let mut removed_any = false;
    for index in (0..op.branches.len()).filter(|&index| new.held_by(index) && !chosen.contains(&index)) {
        let flags = if new.is_dir(index) { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match new.dirs.unlink(index, new.name, flags) {
            Ok(()) | Err(Errno::NOENT) => removed_any = true,
            Err(errno) if !removed_any => {
                undo(old, new, &done);
                log.undone();
                return Err(errno.into());
            }
            Err(errno) => tracing::error!("rename left an old copy of the target on a branch: {errno}"),
        }
    }
    for (index, step) in &done {
        if let Step::Swapped = step {
            let flags = if new.is_dir(*index) { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            if let Err(errno) = old.dirs.unlink(*index, old.name, flags) {
                old.dirs.name_created(old.name, *index);
                tracing::error!("rename left the replaced target under the old name: {errno}");
            }
        }
    }
    if let (true, true, Some(&first)) = (kind.leaves_whiteout(), undoable, chosen.first()) {
        // One whiteout is enough, even if several branches had the name.
        let made = old.dirs.get(first).ok_or(Errno::NOENT).and_then(|dir| {
            let device = rustix::fs::makedev(0, 0);
            let make =
                || rustix::fs::mknodat(dir, old.name, FileType::CharacterDevice, Mode::empty(), device);
            op.branches[first].changes(make)
        });
        old.dirs.name_created(old.name, first);
        if let Err(errno) = made {
            tracing::error!("a rename was done, but could not leave a whiteout: {errno}");
        }
    }
    note_owed(op, old, new, kind);
    let gone = victim.map(|victim| names::remove::orphan(op, victim, Fate::of(kept)));
    op.nodes.renamed((old.parent, old.name), (new.parent, new.name));
    read_cache::renamed(op, &join(&old.path, old.name), &join(&new.path, new.name));
    resolve::generations::note_closed(op, &new.path, new.name);
    if removed_any {
        note_replacement(op, new);
    }
    if let Some(node) = gone {
        names::remove::settle(op, &node);
    }
    Ok(())
}

/// Notes that a file has taken the place of others, whose removal from their branches may not be on disk.
pub(crate) fn note_replacement(op: &Op<'_>, new: &Side<'_, '_>) {
    if let Some(node) = op.nodes.child(new.parent, new.name).filter(|node| !node.is_dir()) {
        node.rare().replaces.store(true, Ordering::Relaxed);
    }
}

/// Exchanges two names on every branch that holds either.
fn exchange<'b>(
    op: &'b Op<'_>,
    old: &mut Side<'b, '_>,
    new: &mut Side<'b, '_>,
    log: RenameLog<'_>,
) -> Result<()> {
    for side in [&*old, &*new] {
        if !side.copies.any() {
            return Err(side.copies.missing());
        }
    }
    resolve::choose::all_removable(op, [&old.copies, &new.copies].into_iter())?;
    if resolve::generations::knows_copies(op) {
        names::rename_copies::prepare_exchange(op, old, new)?;
    }
    let mut done: SmallVec<[(usize, Step); 4]> = SmallVec::new();
    log.begin(&op.branches, old.copies.iter().map(|(index, _)| index), new);
    for index in 0..op.branches.len() {
        log.step(index, old.copies.get(index).or(new.copies.get(index)));
        let step = match (old.held_by(index), new.held_by(index)) {
            (false, false) => continue,
            (true, true) => exchange_copies(old, new, index),
            (true, false) => names::create::bring_dir(op, &mut new.dirs, index, &new.path)
                .and_then(|()| rename_copy(old, new, index, RenameFlags::NOREPLACE).map(|()| Step::Moved)),
            (false, true) => names::create::bring_dir(op, &mut old.dirs, index, &old.path).and_then(|()| {
                rename_copy(new, old, index, RenameFlags::NOREPLACE).map(|()| Step::MovedBack)
            }),
        };
        match step {
            Ok(step) => {
                old.dirs.name_created(old.name, index);
                new.dirs.name_created(new.name, index);
                log.done(index);
                done.push((index, step));
            }
            Err(errno) => {
                undo(old, new, &done);
                log.undone();
                return Err(errno.into());
            }
        }
    }
    note_owed(op, old, new, RenameKind::Exchange);
    op.nodes.exchanged((old.parent, old.name), (new.parent, new.name));
    Ok(())
}

/// Notes a rename for branches that are away.
pub(crate) fn note_owed(op: &Op<'_>, old: &Side, new: &Side, kind: RenameKind) {
    let on = (0..op.branches.len()).filter(|&index| old.held_by(index) || new.held_by(index));
    owed::note(op, on, || {
        let (from, to) = (join(&old.path, old.name), join(&new.path, new.name));
        match kind {
            RenameKind::Exchange => Change::Exchange(from, to),
            _ => Change::Rename(from, to),
        }
    });
}

/// As [`rename_on_branch`], with the caller's rights to space that the filesystem keeps: the directory may have to grow.
fn rename_for_caller(
    op: &Op<'_>,
    old: &Side,
    new: &Side,
    index: usize,
    undoable: bool,
    kind: RenameKind,
) -> Result<Step, Errno> {
    // A whiteout belongs to the daemon.
    let nears = !kind.leaves_whiteout() && new.dirs.branches[index].nears_reserve(DIRECTORY_GROWS);
    let rename = || Ok(rename_on_branch(old, new, index, undoable, kind)?);
    let source = || open_source(old, index).and_then(lease::readable);
    trash::making_way(op, &new.dirs.branches[index], || {
        read_cache::following(op, &new.dirs.branches[index], old.copies.get(index), source, || {
            reserve::take_space(op, nears, || None, rename).map_err(Error::errno)
        })
    })
}

/// Opens the source on one branch.
fn open_source(old: &Side, index: usize) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(old.dirs.get(index).ok_or(Errno::NOENT)?, old.name, flags, Mode::empty())
}

/// Renames the copy on one branch, in a way that can be undone if `undoable` and the filesystem allows it.
pub(crate) fn rename_on_branch(
    old: &Side,
    new: &Side,
    index: usize,
    undoable: bool,
    kind: RenameKind,
) -> Result<Step, Errno> {
    if kind.leaves_whiteout() && !undoable {
        // The branch renames and makes the whiteout in one step.
        let flags = if kind.replaces() { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        return rename_copy(old, new, index, flags | RenameFlags::WHITEOUT)
            .map(|()| Step::MovedUnderWhiteout);
    }
    if !kind.replaces() {
        return rename_copy(old, new, index, RenameFlags::NOREPLACE).map(|()| Step::Moved);
    }
    if undoable && new.held_by(index) {
        match exchange_copies(old, new, index) {
            // The filesystem cannot exchange names, so the rename replaces the target immediately.
            Err(Errno::INVAL) => {}
            other => return other,
        }
    }
    rename_copy(old, new, index, RenameFlags::empty()).map(|()| Step::Moved)
}

/// Exchanges the two names on one branch.
pub(crate) fn exchange_copies(old: &Side, new: &Side, index: usize) -> Result<Step, Errno> {
    rename_copy(old, new, index, RenameFlags::EXCHANGE).map(|()| Step::Swapped)
}

/// Renames the copy on one branch with these flags.
pub(crate) fn rename_copy(from: &Side, to: &Side, index: usize, flags: RenameFlags) -> Result<(), Errno> {
    let (source, target) =
        (from.dirs.get(index).ok_or(Errno::NOENT)?, to.dirs.get(index).ok_or(Errno::NOENT)?);
    let plainly = || rustix::fs::renameat(source, from.name, target, to.name);
    let done = from.dirs.branches[index].changes(|| {
        if flags.is_empty() {
            return plainly();
        }
        match rustix::fs::renameat_with(source, from.name, target, to.name, flags) {
            // The filesystem lacks the flag. The pool has already checked that the new name is free.
            Err(Errno::INVAL) if flags == RenameFlags::NOREPLACE => plainly(),
            other => other,
        }
    });
    from.dirs.copy_changed(index);
    to.dirs.copy_changed(index);
    done
}

/// Undoes steps, the last one first.
pub(crate) fn undo(old: &Side, new: &Side, done: &[(usize, Step)]) {
    for (index, step) in done.iter().rev() {
        let back = match step {
            Step::Moved => rename_copy(new, old, *index, RenameFlags::NOREPLACE),
            Step::MovedUnderWhiteout => rename_copy(new, old, *index, RenameFlags::empty()),
            Step::Swapped => exchange_copies(old, new, *index).map(drop),
            Step::MovedBack => rename_copy(old, new, *index, RenameFlags::NOREPLACE),
        };
        old.dirs.name_created(old.name, *index);
        new.dirs.name_created(new.name, *index);
        if let Err(errno) = back {
            tracing::error!("a rename that failed on one branch could not be taken back on another: {errno}");
        }
    }
}
