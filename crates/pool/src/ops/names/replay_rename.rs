//! Renames that a process had begun, and not answered, when it died.
//!
//! A rename of a single copy is one step of its branch, but the kernel's request does not tell whether it was made. A rename
//! of several copies has several steps. So a pool that outlives its process notes which copies it renames, and each step
//! before and after it. The next process does the rest. It goes forward only: what was to be done was found possible.

use super::rename::{RenameKind, Side, exchange_copies, rename_copy, rename_on_branch};
use crate::door::Caller;
use crate::ops::names;
use crate::ops::resolve;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_branch::branch::Branches;
use canopy_branch::fs::stat::Attr;
use canopy_sys::process::AtomicU64;
use rustix::fs::{AtFlags, FileType, Mode, RenameFlags};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// The words of a [`RenameIntent`].
pub const RENAME_INTENT_WORDS: usize = 16;

/// 1 once the words below are valid.
const BEGUN: usize = 0;
/// Which branches the pool has, by their paths.
const LIST: usize = 1;
/// One more than the branch of the last step that was begun.
const CURRENT: usize = 2;
/// The inode number of what that step moves.
const MOVES: usize = 3;
/// The branches that hold the old name and are renamed there, those that hold the new name, and those that are done.
const SOURCES: usize = 4;
const TARGETS: usize = 8;
const DONE: usize = 12;
/// A set of branches has as many bits.
const MOST: usize = 4 * u64::BITS as usize;

/// What a rename is about to do and has done, in words that outlive the process.
#[derive(Clone, Copy, Debug)]
pub struct RenameIntent<'a>(&'a [AtomicU64]);

impl<'a> RenameIntent<'a> {
    /// An intent in these words, [`RENAME_INTENT_WORDS`] of them. They are all zero, or another process has left them.
    #[must_use]
    pub fn new(words: &'a [AtomicU64]) -> RenameIntent<'a> {
        RenameIntent(words)
    }

    /// Forgets what was noted.
    pub fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Release));
    }

    fn get(&self, word: usize) -> u64 {
        self.0[word].load(Ordering::Acquire)
    }

    fn set(&self, word: usize, value: u64) {
        self.0[word].store(value, Ordering::Release);
    }

    fn has(&self, set: usize, index: usize) -> bool {
        self.get(set + index / 64) & 1 << (index % 64) != 0
    }

    fn add(&self, set: usize, index: usize) {
        self.0[set + index / 64].fetch_or(1 << (index % 64), Ordering::AcqRel);
    }

    fn begin(&self, list: u64, sources: impl Iterator<Item = usize>, targets: impl Iterator<Item = usize>) {
        self.clear();
        sources.for_each(|index| self.add(SOURCES, index));
        targets.for_each(|index| self.add(TARGETS, index));
        self.set(LIST, list);
        self.set(BEGUN, 1);
    }

    fn step(&self, index: usize, ino: u64) {
        // In between, no step counts as begun.
        self.set(CURRENT, 0);
        self.set(MOVES, ino);
        self.set(CURRENT, index as u64 + 1);
    }

    fn is_begun(&self, branches: &Branches) -> bool {
        self.get(BEGUN) != 0 && self.get(LIST) == list_mark(branches)
    }

    fn members(&self, set: usize) -> impl Iterator<Item = usize> + Clone {
        (0..MOST).filter(move |&index| self.has(set, index))
    }
}

fn list_mark(branches: &Branches) -> u64 {
    branches.iter().fold(1, |mark: u64, branch| mark.rotate_left(7) ^ branch.seed.number())
}

/// Notes the steps of a rename, if they are to be noted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RenameLog<'a>(pub(crate) Option<RenameIntent<'a>>);

impl RenameLog<'_> {
    /// Notes which copies will be renamed. With more branches than a set has bits, nothing is noted.
    pub(crate) fn begin(&self, branches: &Branches, sources: impl Iterator<Item = usize>, new: &Side) {
        let Some(intent) = self.0.filter(|_| branches.len() <= MOST) else { return };
        intent.begin(list_mark(branches), sources, new.copies.iter().map(|(index, _)| index));
    }

    /// Notes that the next step moves this file.
    pub(crate) fn step(&self, index: usize, moves: Option<&Attr>) {
        if let Some(intent) = self.0.filter(|intent| intent.get(BEGUN) != 0) {
            intent.step(index, moves.map_or(0, |attr| attr.ino));
        }
    }

    /// Notes that a step was made.
    pub(crate) fn done(&self, index: usize) {
        if let Some(intent) = self.0.filter(|intent| intent.get(BEGUN) != 0) {
            intent.add(DONE, index);
        }
    }

    /// Notes that all steps were undone.
    pub(crate) fn undone(&self) {
        if let Some(intent) = &self.0 {
            intent.clear();
        }
    }
}

/// Completes a rename that another process has begun; otherwise renames.
///
/// # Errors
/// As `rename`.
pub fn replay_rename(
    pool: &Pool,
    caller: &Caller,
    (parent, name): (NodeId, &[u8]),
    (new_parent, new_name): (NodeId, &[u8]),
    kind: RenameKind,
    intent: RenameIntent<'_>,
) -> Result<()> {
    let op = &mut Op::begin(pool);
    if complete_rename(op, (parent, name), (new_parent, new_name), kind, intent)? {
        return Ok(());
    }
    names::rename::rename_noted(pool, caller, (parent, name), (new_parent, new_name), kind, Some(intent))
}

/// Returns false if nothing was begun. The kernel has kept both directories locked since the rename began, so nobody
/// else has changed these names through the pool.
fn complete_rename(
    op: &mut Op<'_>,
    old: (NodeId, &[u8]),
    new: (NodeId, &[u8]),
    kind: RenameKind,
    intent: RenameIntent<'_>,
) -> Result<bool> {
    let _changes = op.state().figures.changes();
    let trust = resolve::dirs::cache_trust(op);
    let _held = names::rename::claim_rename(op, old, new)?;
    if !intent.is_begun(&op.branches) {
        return Ok(false);
    }
    let mut old = names::rename::side(op, old, trust)?;
    let mut new = names::rename::side(op, new, trust)?;
    let exchanges = kind == RenameKind::Exchange;
    let undoable = intent.members(SOURCES).count() > 1 || intent.members(TARGETS).count() > 1;
    // Of what is still to go, this may be the only name: that in the trash goes if it was made by the process before.
    let targets = intent.members(TARGETS).filter_map(|index| {
        let is_source = intent.has(SOURCES, index);
        match is_source && (intent.has(DONE, index) || was_made(intent, &old, &new, index)) {
            true if undoable => Some((index, &old)),
            true => None,
            false => Some((index, &new)),
        }
    });
    let kept = names::keep::keep_each(op, &new, kind, targets);
    for index in 0..op.branches.len() {
        let (from, to) = (intent.has(SOURCES, index), intent.has(TARGETS, index));
        let is_step = from || exchanges && to;
        if !is_step || intent.has(DONE, index) {
            continue;
        }
        let log = RenameLog(Some(intent));
        if was_made(intent, &old, &new, index) {
            // Noted before the next step begins, since this process may die too.
            log.done(index);
            continue;
        }
        let (side, path) = if from { (&mut new.dirs, &new.path) } else { (&mut old.dirs, &old.path) };
        names::create::bring_dir(op, side, index, path)?;
        log.step(index, if from { old.copies.get(index) } else { new.copies.get(index) });
        match (exchanges, from, to) {
            (false, ..) => rename_on_branch(&old, &new, index, undoable, kind).map(drop)?,
            (true, true, true) => exchange_copies(&old, &new, index).map(drop)?,
            (true, true, false) => rename_copy(&old, &new, index, RenameFlags::NOREPLACE)?,
            (true, false, _) => rename_copy(&new, &old, index, RenameFlags::NOREPLACE)?,
        }
        log.done(index);
    }
    for index in 0..op.branches.len() {
        old.dirs.name_created(old.name, index);
        new.dirs.name_created(new.name, index);
    }
    if exchanges {
        op.nodes.exchanged((old.parent, old.name), (new.parent, new.name));
    } else {
        remove_targets(intent, &old, &new, undoable)?;
        if kind.leaves_whiteout() && undoable {
            leave_whiteout(intent, &old);
        }
        op.nodes.renamed((old.parent, old.name), (new.parent, new.name));
        names::rename::note_replacement(op, &new);
    }
    kept.into_iter().for_each(|kept| kept.settle(op));
    names::rename::note_owed(op, &old, &new, kind);
    op.dir_cache.places_changed();
    tracing::debug!("a rename was completed that another process had begun");
    Ok(true)
}

/// Returns whether the last step that was begun, if it is this branch's, was made: what it moves is not where it was.
fn was_made(intent: RenameIntent<'_>, old: &Side, new: &Side, index: usize) -> bool {
    let from = if intent.has(SOURCES, index) { &old.copies } else { &new.copies };
    intent.get(CURRENT) == index as u64 + 1
        && from.get(index).is_none_or(|attr| attr.ino != intent.get(MOVES))
}

/// Removes the copies of the target that are still there: on branches that do not hold the source, and under the old name
/// where the two were exchanged.
fn remove_targets(intent: RenameIntent<'_>, old: &Side, new: &Side, undoable: bool) -> Result<()> {
    new.sync_unless_both(intent.members(SOURCES), |index| intent.has(TARGETS, index))?;
    for index in intent.members(TARGETS) {
        let side = match intent.has(SOURCES, index) {
            true if undoable => old,
            true => continue,
            false => new,
        };
        let Some(dir) = side.dirs.get(index) else { continue };
        let look = || rustix::fs::statat(dir, side.name, AtFlags::SYMLINK_NOFOLLOW);
        let flags = match side.dirs.branches[index].reads(look) {
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno.into()),
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => AtFlags::REMOVEDIR,
                // The whiteout that this rename has left already.
                FileType::CharacterDevice if stat.st_rdev == 0 => continue,
                _ => AtFlags::empty(),
            },
        };
        match side.dirs.unlink(index, side.name, flags) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(Error::from(errno)),
        }
    }
    Ok(())
}

fn leave_whiteout(intent: RenameIntent<'_>, old: &Side) {
    let Some(first) = intent.members(SOURCES).next() else { return };
    let made = old.dirs.get(first).ok_or(Errno::NOENT).and_then(|dir| {
        let device = rustix::fs::makedev(0, 0);
        let make = || rustix::fs::mknodat(dir, old.name, FileType::CharacterDevice, Mode::empty(), device);
        old.dirs.branches[first].changes(make)
    });
    match made {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => tracing::error!("a rename was completed, but could not leave a whiteout: {errno}"),
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use canopy_sys::process::{SharedWords, left_by_the_dead};

    /// A place in which one rename was noted, and answered, is used for another.
    #[test]
    fn a_step_has_its_own_file_and_rename() {
        let found = left_by_the_dead(
            || SharedWords::new(RENAME_INTENT_WORDS).unwrap(),
            |words| {
                let intent = RenameIntent::new(words);
                intent.begin(1, [0].into_iter(), [].into_iter());
                intent.step(0, 10);
                intent.add(DONE, 0);
                intent.begin(2, [1, 2].into_iter(), [].into_iter());
                intent.step(1, 21);
                intent.add(DONE, 1);
                intent.step(2, 22);
            },
            |words| {
                let intent = RenameIntent::new(words);
                let begun = intent.get(BEGUN) != 0;
                begun.then(|| {
                    let step = intent.get(CURRENT);
                    let moves = if step == 0 { 0 } else { intent.get(MOVES) };
                    (intent.get(LIST), intent.get(SOURCES), intent.get(DONE), step, moves)
                })
            },
        );
        let expected = [
            None,
            Some((1, 0b1, 0, 0, 0)),
            Some((1, 0b1, 0, 1, 10)),
            Some((1, 0b1, 0b1, 1, 10)),
            Some((2, 0b110, 0, 0, 0)),
            Some((2, 0b110, 0, 2, 21)),
            Some((2, 0b110, 0b10, 2, 21)),
            Some((2, 0b110, 0b10, 0, 0)),
            Some((2, 0b110, 0b10, 3, 22)),
        ];
        assert!(
            found.iter().all(|one| expected.contains(one)) && expected.iter().all(|one| found.contains(one)),
            "{found:?}"
        );
    }
}
