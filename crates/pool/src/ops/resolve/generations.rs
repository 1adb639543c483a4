//! Copies that rules ask for: which of them are current, and how changes keep it so.
//!
//! A pool without a rule about copies reads no generation and pays for nothing here.

use super::Place;
use super::places::{Chosen, Places, Purpose};
use crate::dir::merged::{Copies, MergedDir, Trust};
use crate::node::Node;
use crate::node::rights::{CopyRight, WriteRight};
use crate::ops::resolve;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result, is_illness};
use canopy_base::ids::NodeId;
use canopy_base::path::join;
use canopy_branch::branch::Branch;
use canopy_branch::fs::generation::{self, Generation};
use canopy_branch::fs::pinned;
use canopy_branch::fs::stat::{self, Attr};
use canopy_branch::relocate::aside;
use canopy_branch::relocate::closed::ClosedSince;
use canopy_sys::shown::Show as _;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// A change of all current copies of a file, which may end at any step on any disk. Its [`CopyRight`] is that of its [`Change`].
///
/// The first copy gets a larger number and changes. Each of the others is marked as out of date, changes, and gets a number
/// that is larger still; last of all, the first gets it too. Each filesystem keeps the order of its own steps, whatever
/// becomes of those on others, so copies with the same number are the same after a crash as well.
pub(super) struct Round {
    before: Generation,
    first: u64,
    last: u64,
}

impl Round {
    /// Changes the copies in this order. The result is that of the first.
    pub(super) fn run(
        &self,
        order: &[&Place],
        mut change: impl FnMut(&Place) -> Result<(), Errno>,
    ) -> Result<()> {
        let Some((first, others)) = order.split_first() else { return Ok(()) };
        let put = |place: &Place, number, shared| {
            place.branch.changes(|| generation::write(place.fd.as_fd(), Generation { number, shared }))
        };
        put(first, self.first, false)?;
        if let Err(errno) = first.branch.changes(|| change(first)) {
            // A change that has failed has changed nothing.
            let _ = put(first, self.before.number, self.before.shared);
            return Err(errno.into());
        }
        let mut all_same = false;
        for other in others {
            let changed = put(other, Generation::OUT_OF_DATE.number, false)
                .and_then(|()| {
                    other.branch.changes(|| {
                        change(other)?;
                        same_time(first.fd.as_fd(), other.fd.as_fd())
                    })
                })
                .and_then(|()| put(other, self.last, true));
            // One that fails stays out of date, until it is made again.
            all_same |= changed.is_ok();
        }
        if all_same {
            // If this fails, the others are newer. They hold the same.
            let _ = put(first, self.last, true);
        }
        Ok(())
    }
}

/// Gives a copy the modification time of another one: both have just been changed, one after the other.
fn same_time(first: BorrowedFd<'_>, other: BorrowedFd<'_>) -> Result<(), Errno> {
    let (time, before) = (stat::of(first)?.mtime, stat::of(other)?.mtime);
    if time == before {
        return Ok(());
    }
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let modified = Timespec { tv_sec: time.sec, tv_nsec: i64::from(time.nsec) as _ };
    pinned::set_times(other, &Timestamps { last_access: omit, last_modification: modified })
}

/// Returns whether a rule says how many copies it wants.
pub(crate) fn knows_copies(op: &Op<'_>) -> bool {
    op.config.placement.knows_copies()
}

/// Looks up a name on each branch, and finds out which copies are current.
pub(crate) fn copies(op: &Op<'_>, dirs: &MergedDir<'_>, name: &[u8]) -> Copies {
    let mut copies = dirs.copies(name);
    compare_generations(op, &mut copies, |_, index| {
        generation::read_at(dirs.get(index).ok_or(Errno::NOENT)?, name)
    });
    copies
}

/// As `copies`, and pins each copy (`O_PATH`). The descriptors are in the order of the copies.
pub(crate) fn pinned_copies(
    op: &Op<'_>,
    dirs: &MergedDir<'_>,
    name: &[u8],
) -> (Copies, SmallVec<[OwnedFd; 1]>) {
    let (mut copies, pinned) = dirs.pinned_copies(name);
    compare_generations(op, &mut copies, |at, _| generation::read(pinned[at].as_fd()));
    (copies, pinned)
}

/// Finds out which of several copies are current: none, as long as one of them cannot tell. `read` gets the position of a
/// copy and the index of its branch.
pub(crate) fn compare_generations(
    op: &Op<'_>,
    copies: &mut Copies,
    read: impl Fn(usize, usize) -> Result<Option<Generation>, Errno>,
) {
    if copies.count() < 2 || !knows_copies(op) || copies.any_dir() {
        return;
    }
    let mut known: SmallVec<[(usize, Option<Generation>); 4]> = SmallVec::new();
    let mut unreadable = false;
    let read_all = || {
        let read = |(at, (index, attr)): (usize, &(usize, Attr))| {
            if attr.is_regular() {
                op.branches.as_slice()[*index].reads(|| read(at, *index))
            } else {
                Ok(None)
            }
        };
        copies.found.iter().enumerate().map(read).collect()
    };
    let found = generation::read_together(read_all);
    for ((index, _), generation) in copies.found.iter().zip(found) {
        match generation {
            Ok(generation) => known.push((*index, generation)),
            Err(errno) => {
                copies.error.get_or_insert(errno);
                // Nobody waits for a branch that fails as a whole.
                unreadable |= op.branches.as_slice()[*index].health.is_well();
            }
        }
    }
    let generations: SmallVec<[_; 4]> = known.iter().map(|(_, generation)| *generation).collect();
    if unreadable {
        // It may be the newest, or old.
        copies.current = Some(SmallVec::new());
    } else if generations.iter().any(Option::is_some) {
        let mut current: SmallVec<[usize; 2]> =
            generation::current(&generations).map(|at| known[at].0).collect();
        let is_bad = |index: &usize| copies.get(*index).is_some_and(|it| op.unreadable.holds(it.key()));
        if current.iter().any(|index| !is_bad(index)) {
            current.retain(|index| !is_bad(index));
        }
        copies.current = Some(current);
    }
}

/// The copy of a file on one branch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyOn {
    /// The path of the branch.
    pub branch: Vec<u8>,
    /// It is up to date, as far as rules about copies know.
    pub current: bool,
    /// It is known to be a copy of the others.
    pub known: bool,
}

/// Says of each copy of a name whether it is up to date, and known as a copy. What is no regular file is neither old nor known.
///
/// Errors: the branch whose copy cannot tell.
pub(crate) fn judge(
    op: &Op<'_>,
    dirs: &MergedDir<'_>,
    name: &[u8],
) -> Result<Vec<CopyOn>, (Option<usize>, Error)> {
    let copies = dirs.copies(name);
    if let (false, Some(_)) = (copies.any(), copies.error) {
        return Err((None, copies.missing()));
    }
    let mut generations: SmallVec<[Option<Generation>; 4]> = SmallVec::new();
    let read_all = || {
        let read = |(index, attr): (usize, &Attr)| {
            let read = || generation::read_at(dirs.get(index).ok_or(Errno::NOENT)?, name);
            let is_compared = knows_copies(op) && copies.count() > 1 && attr.is_regular();
            if is_compared { op.branches.as_slice()[index].reads(read) } else { Ok(None) }
        };
        copies.iter().map(read).collect()
    };
    for ((index, _), found) in copies.iter().zip(generation::read_together(read_all)) {
        match found {
            // Nobody waits for a branch that fails as a whole.
            Err(_) if !op.branches.as_slice()[index].health.is_well() => generations.push(None),
            read => generations.push(read.map_err(|errno| (Some(index), Error::Branch(errno)))?),
        }
    }
    let current: SmallVec<[usize; 4]> = generation::current(&generations).collect();
    let copy = |(at, (index, _)): (usize, (usize, &Attr))| CopyOn {
        branch: op.branches.as_slice()[index].path.as_os_str().as_bytes().to_vec(),
        current: current.contains(&at),
        known: generations[at].is_some(),
    };
    Ok(copies.iter().enumerate().map(copy).collect())
}

/// A change of a file's copies that is about to happen. Nobody makes them differ, or copies them, before it is dropped.
#[derive(Default)]
pub(super) struct Change<'p> {
    _right: Option<CopyRight<'p>>,
    /// Which copies change one after the other. `None` if only this copy can have its number, or none was ever made.
    pub(super) round: Option<(Round, Chosen<'p>)>,
}

/// Prepares a change of a file's current copies.
///
/// Errors: `ESTALE` if another copy has become newer since they were looked at.
pub(super) fn begin_change<'p>(
    op: &'p Op<'_>,
    places: &'p Places,
    chosen: &[&'p Place],
) -> Result<Change<'p>> {
    if !knows_copies(op) {
        return Ok(Change::default());
    }
    let Some(own) = places.own().filter(|own| own.attr.is_regular()) else { return Ok(Change::default()) };
    let Some(&first) = chosen.iter().find(|place| place.index == own.index).or(chosen.first()) else {
        return Ok(Change::default());
    };
    let right = op.rights.to_copy(chosen.iter().map(|place| place.attr.key()));
    let before = generation::read(first.fd.as_fd()).ok().flatten();
    // It may have become the newest since then.
    let is_newer = |read: Generation| read.number > before.map_or(0, |before| before.number);
    if first.index != own.index && generation::read(own.fd.as_fd()).ok().flatten().is_some_and(is_newer) {
        return Err(Error::Stale);
    }
    let Some(before) = before.filter(|before| before.shared) else {
        // One that was being changed, when the newest was lost, is that now.
        if before == Some(Generation::OUT_OF_DATE) {
            let number = generation::next(0);
            let renew = || generation::write(first.fd.as_fd(), Generation { number, shared: false });
            first.branch.changes(renew)?;
        }
        return Ok(Change { _right: Some(right), round: None });
    };
    let mut order = Chosen::from_slice(&[first]);
    for &other in chosen.iter().filter(|place| place.index != first.index) {
        match generation::read(other.fd.as_fd()) {
            Ok(Some(read)) if read.number > before.number => return Err(Error::Stale),
            Ok(read) if read == Some(before) => order.push(other),
            // It is out of date, or will be.
            _ => {}
        }
    }
    let number = generation::next(before.number);
    let round = Round { before, first: number, last: number.saturating_add(1) };
    Ok(Change { _right: Some(right), round: Some((round, order)) })
}

/// Says that the other copies of a file are out of date. Nobody copies the file or changes others before this is dropped.
#[derive(Default)]
pub(crate) struct Outdated<'p> {
    _right: Option<WriteRight<'p>>,
    /// What the copy said of itself before it became newer than the others.
    before: Option<Generation>,
}

impl Outdated<'_> {
    /// Says that the others are as new as before: nothing has been changed, and can be here.
    pub(crate) fn take_back(&self, file: BorrowedFd<'_>) {
        if let Some(before) = self.before {
            let _ = generation::write(file, before);
        }
    }
}

/// Makes all other copies of a file out of date, on whatever disk they are, before its data change.
///
/// The new number is on disk when this returns: fdatasync(2) of data that are written later would not wait for it, and
/// after a power cut the old copies would seem to be the same as this one. From then on, nobody claims that others are equal
/// but the mover, which an open descriptor keeps away; without one, the right is held for the change.
///
/// Errors: `EAGAIN`, before anything has changed, while a lease keeps a pinned file from being opened. So whoever opens the
/// file does that first. After another error, the others are as new as before.
pub(crate) fn outdate_others<'p>(op: &'p Op<'_>, file: BorrowedFd<'_>) -> Result<Outdated<'p>, Errno> {
    if !knows_copies(op) {
        return Ok(Outdated::default());
    }
    let right = Some(op.rights.to_write(stat::of(file)?.key()));
    let (before, number) = match generation::read(file) {
        Ok(None) => return Ok(Outdated { _right: right, before: None }),
        // One that was being changed, when the newest was lost, is that now.
        Ok(Some(before)) if before.shared || before.number == Generation::OUT_OF_DATE.number => {
            (Some(before), before.number)
        }
        Ok(Some(_)) => return Ok(Outdated { _right: right, before: None }),
        // The pool shows this one.
        Err(_) => (None, 0),
    };
    let outdated = Outdated { _right: right, before };
    let put = generation::put(file, Generation { number: generation::next(number), shared: false });
    // It may have the number, and only not be sure to keep it.
    put.inspect_err(|_| outdated.take_back(file))?;
    Ok(outdated)
}

/// Says that another branch may get a copy of a file with the same number. This is on disk when it returns.
pub(crate) fn share_generation(op: &Op<'_>, file: BorrowedFd<'_>) -> Result<(), Errno> {
    let _right = op.rights.to_copy([stat::of(file)?.key()]);
    match generation::read(file)? {
        None if !knows_copies(op) => Ok(()),
        before => generation::share(file, before),
    }
}

/// Returns whether a file is known to be an old copy of one that has this generation.
pub(crate) fn is_old_copy(
    op: &Op<'_>,
    (dir, name, attr): (BorrowedFd<'_>, &[u8], &Attr),
    of: Option<Generation>,
) -> bool {
    let is_older =
        |copy: Option<Generation>| copy.zip(of).is_some_and(|(copy, newest)| copy.number < newest.number);
    knows_copies(op) && attr.is_regular() && generation::read_at(dir, name).is_ok_and(is_older)
}

/// Sets aside what a change of a name would take away: copies that are out of date, and were changed apart from those that are
/// shown, as on a disk that was used alone. What they hold is nowhere else. They are not among the copies any more then.
///
/// Errors: those of a branch that cannot keep what it holds.
pub(crate) fn spare_apart(
    op: &Op<'_>,
    dirs: &MergedDir<'_>,
    (path, name): (&[u8], &[u8]),
    copies: &mut Copies,
) -> Result<(), Errno> {
    let Some(current) = copies.current.as_ref().filter(|current| current.len() < copies.count()) else {
        return Ok(());
    };
    let branches = op.branches.as_slice();
    let number = |index: usize| -> Result<Option<Generation>, Errno> {
        let dir = dirs.get(index).ok_or(Errno::NOENT)?;
        branches[index].reads(|| generation::read_at(dir, name))
    };
    let Some(newest) = current.first().and_then(|index| number(*index).ok().flatten()) else { return Ok(()) };
    let mut spared: SmallVec<[usize; 2]> = SmallVec::new();
    for (index, attr) in copies.iter().filter(|(index, attr)| !current.contains(index) && attr.is_regular()) {
        let (Some(dir), branch) = (dirs.get(index), &branches[index]) else { continue };
        let number = match number(index) {
            // Nobody waits for a branch that fails as a whole.
            Err(_) if !branch.health.is_well() => continue,
            read => read?,
        };
        if generation::was_apart(number, newest.number) {
            let path = join(path, name);
            branch.changes(|| aside::give_way(branch.root(), (dir, &path), attr, newest.number))?;
            tell_apart(branch, &path, 1);
            dirs.copy_changed(index);
            spared.push(index);
        }
    }
    copies.found.retain(|(index, _)| !spared.contains(index));
    Ok(())
}

/// Tells that copies of a file have given way on a branch that were changed apart from it.
pub(crate) fn tell_apart(branch: &Branch, path: &[u8], names: usize) {
    if names > 0 {
        branch.health.count_set_aside(names);
        let (path, branch) = (String::from_utf8_lossy(path), branch.path.shown());
        tracing::warn!(
            "{path} was changed on {branch} alone, and elsewhere without it; what {branch} has is in its .canopy-aside (canopy copies)"
        );
    }
}

/// Gives a new file its first number if a rule wants copies of it: a larger one than that of whatever a branch that is
/// away holds under the name. Filesystems without extended attributes get no copies.
pub(crate) fn begin_generation(
    op: &Op<'_>,
    file: BorrowedFd<'_>,
    dir: &[u8],
    name: &[u8],
) -> Result<(), Errno> {
    let config = &op.config;
    if !config.placement.knows_copies() || config.placement.copies(&join(dir, name)) < 2 {
        return Ok(());
    }
    if !matches!(generation::read(file), Ok(None)) {
        return Ok(());
    }
    match generation::write(file, Generation { number: generation::next(0), shared: false }) {
        Err(Errno::OPNOTSUPP) => Ok(()),
        other => other,
    }
}

/// Notes that a file may lack a copy that a rule wants: it was written and closed, or has got this name.
pub(crate) fn note_closed(op: &Op<'_>, dir: &[u8], name: &[u8]) {
    let config = &op.config;
    if config.placement.knows_copies() {
        let path = join(dir, name);
        if config.placement.copies(&path) > 1 {
            op.closed.put(path);
        }
    }
}

/// Returns the files that may lack copies since an answer with the number `after`: 0 for the first time.
pub fn closed_since(pool: &Pool, after: u64) -> ClosedSince {
    pool.closed.since(after)
}

/// Returns the number before that of the first remembered file that may lack copies, and that of the last. A file gets
/// another one when it is closed again.
pub fn closed_numbers(pool: &Pool) -> (u64, u64) {
    pool.closed.numbers()
}

/// Returns which copies a removal of a name removes, in this order: all, and what the pool shows last.
pub(crate) fn removal_order(copies: &Copies, shown: usize) -> Option<SmallVec<[usize; 4]>> {
    copies.current.as_ref()?;
    let rest = |current: bool| {
        let of = move |(index, _): &(usize, &Attr)| *index != shown && copies.is_current(*index) == current;
        copies.iter().filter(of).map(|(index, _)| index)
    };
    Some(rest(false).chain(rest(true)).chain([shown]).collect())
}

/// Fails with `ESTALE` if a node stands for a copy that is out of date, or whose branch fails while another has one.
/// The kernel then looks the name up again. Where one copy cannot tell, the error is its own.
pub(crate) fn must_be_current(op: &Op<'_>, node: &Arc<Node>, trust: Trust) -> Result<()> {
    if !knows_copies(op) || node.is_dir() {
        return Ok(());
    }
    match resolve::places::places(op, node, trust, Purpose::Attributes) {
        Ok(places) => match places.undecided() {
            Some(error) => Err(error),
            None if !places.is_own_current() => Err(Error::Stale),
            None => Ok(()),
        },
        other => or_elsewhere(op, node, other.map(drop)),
    }
}

/// Turns an error of a failing branch into `ESTALE` if another branch shows a copy of the file. The kernel then looks
/// the name up again.
pub(crate) fn or_elsewhere<T>(op: &Op<'_>, node: &Node, result: Result<T>) -> Result<T> {
    match result {
        Err(error) if knows_copies(op) && is_illness(error.errno()) && is_elsewhere(op, node) => {
            Err(Error::Stale)
        }
        other => other,
    }
}

fn is_elsewhere(op: &Op<'_>, node: &Node) -> bool {
    let key = node.key();
    let found = |(parent, dir, name): (Arc<Node>, canopy_base::path::PoolPath, Box<[u8]>)| {
        let dirs = resolve::dirs::dirs_of(op, parent, &dir, None);
        let copies = copies(op, &dirs, &name);
        let shown = resolve::choose::shown(op, crate::config::Func::Getattr, &copies).ok()?;
        copies.get(shown).map(|attr| Some(attr.key()) != key)
    };
    op.nodes.names_in(node.id).find_map(found).unwrap_or(false)
}

/// Remembers which inode number clients know of a file, so that another copy can show it when this one is lost.
pub(crate) fn remember_number(op: &Op<'_>, node: &Node, copies: &Copies, number: u64) {
    if copies.current.as_ref().is_some_and(|current| current.len() > 1)
        && node.kept_number() == 0
        && resolve::keeps_inode_numbers(op)
    {
        op.nodes.number_known(node, number);
    }
}

/// Returns the inode number that clients know of the copy which was shown before under this name, if this is another
/// one.
pub(crate) fn inherited_number(
    op: &Op<'_>,
    parent: NodeId,
    dir: BorrowedFd<'_>,
    name: &[u8],
    attr: &Attr,
) -> Option<u64> {
    if !knows_copies(op) || !attr.is_regular() || !resolve::keeps_inode_numbers(op) {
        return None;
    }
    let former = op.nodes.child(parent, name)?;
    former.key().filter(|key| *key != attr.key())?;
    let number = Some(former.kept_number()).filter(|number| *number != 0)?;
    generation::read_at(dir, name).ok()?.map(|_| number)
}
