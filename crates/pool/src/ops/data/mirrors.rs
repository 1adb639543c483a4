//! Files whose copies are written at the same time (`copies = 2, when = "written"`): from the open to the last close.
//!
//! The state on the disks is that of any copies (decision 512): the [mirrors](crate::node::handles::mirrors) are old while the file
//! may be written. So a crash, a process that takes over, and whatever looks at the names meet nothing new.

use crate::config::Func;
use crate::dir::merged::{MergedDir, Trust};
use crate::door::Caller;
use crate::node::Node;
use crate::node::handles::FileHandle;
use crate::node::handles::mirrors::{Locked, Mirror, Mirrors};
use crate::ops::moves;
use crate::ops::moves::lead::{Lead, names_show_another};
use crate::ops::names;
use crate::ops::names::create::mode_in;
use crate::ops::resolve;
use crate::ops::resolve::Place;
use crate::ops::resolve::places::Purpose;
use crate::pool::Op;
use canopy_base::error::{Error, Failure as _, Result, is_full, is_illness};
use canopy_base::path::{PoolPath, join};
use canopy_branch::branch::{Branch, Mode as BranchMode};
use canopy_branch::fs::beneath;
use canopy_branch::fs::generation::{self, Generation};
use canopy_branch::fs::stat::{self, FileKey};
use canopy_branch::relocate::links;
use canopy_sys::creds;
use canopy_sys::shown::Show as _;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// How long to wait for the end of a move before looking again.
const AGAIN: Duration = Duration::from_millis(10);

/// Returns whether a rule wants writes to this file to go to all its copies at once. Then the daemon serves its data.
pub(crate) fn is_wanted(op: &Op<'_>, node: &Node) -> bool {
    let placement = &op.config.placement;
    placement.knows_written()
        && op.nodes.names(node.id).any(|(dir, name)| placement.is_written_at_once(&join(&dir, &name)))
}

/// Locks what an open for writing may make mirrors of, until it has ended. The caller holds no path.
pub(crate) fn lock_for_open<'n>(op: &Op<'_>, node: &'n Node) -> Option<Locked<'n>> {
    // Also where no rule wants mirrors yet: an open that began before the rule must have ended.
    (resolve::generations::knows_copies(op) || node.has_mirrors()).then(|| node.lock_mirrors())
}

/// Prepares an open for writing: copies that are equal become mirrors, and from then on they have different numbers.
///
/// Errors: those of the node's own copy.
pub(crate) fn begin(op: &mut Op<'_>, node: &Arc<Node>, trust: Trust, mirrors: &mut Locked<'_>) -> Result<()> {
    if node.has_mirrors() {
        check(op, node, mirrors);
    } else if is_wanted(op, node)
        && node.opened().is_none_or(|open| !open.is_written() && open.backing.is_none())
        && let Some(found) = equal_copies(op, node, trust)
    {
        node.put_mirrors(mirrors, found);
    } else {
        return Ok(());
    }
    part(op, node, mirrors)?;
    Ok(())
}

/// Returns the copies of a file that are known to be equal to the node's own, ready to be written.
fn equal_copies(op: &Op<'_>, node: &Arc<Node>, trust: Trust) -> Option<Mirrors> {
    let places = resolve::places::places(op, node, trust, Purpose::Attributes).ok()?;
    let own = places.own().filter(|own| own.attr.is_regular())?;
    let read = |place: &Place| place.branch.reads(|| generation::read(place.fd.as_fd()));
    let number = read(own).ok().flatten().filter(|number| number.shared)?;
    let names: Vec<PoolPath> = op.nodes.names(node.id).map(|(dir, name)| join(&dir, &name)).collect();
    let is_equal = |place: &&Place| {
        let alike =
            place.attr.is_regular() && place.attr.size == own.attr.size && place.attr.nlink == own.attr.nlink;
        alike
            && place.attr.key() != own.attr.key()
            && place.branch.health.is_well()
            && place.branch.mode != BranchMode::Ro
            && !op.unreadable.holds(place.attr.key())
            && read(place) == Ok(Some(number))
            && names.iter().all(|name| links::holds(place.branch.root(), name, &place.attr))
    };
    let open = |place: &Place, flags| {
        let fd = place
            .branch
            .reads(|| resolve::writable::reopen(op, node, &place.branch, &place.fd, flags))
            .ok()?;
        Some(Mirror { branch: place.branch.clone(), fd, key: place.attr.key() })
    };
    let list: SmallVec<[Mirror; 1]> =
        places.all().filter(is_equal).filter_map(|place| open(place, OFlags::RDWR)).collect();
    if list.is_empty() { None } else { Some(Mirrors::of_equal(open(own, OFlags::RDONLY)?, list)) }
}

/// Lets mirrors go that cannot be written any more. The caller has locked them.
fn check(op: &Op<'_>, node: &Node, mirrors: &mut Locked<'_>) {
    if mirrors.moves != node.moves() || node.opened().is_some_and(|open| open.backing.is_some()) {
        mirrors.list.clear();
    }
    let is_there = |branch: &Branch| op.branches.index_of(branch.id).is_some();
    mirrors.retain(|_, mirror| is_there(&mirror.branch));
    if !mirrors.list.is_empty() && mirrors.own.as_ref().is_some_and(|own| !is_there(&own.branch)) {
        mirrors.failed.get_or_insert(Errno::NODEV);
    }
}

fn part(op: &Op<'_>, node: &Node, mirrors: &mut Mirrors) -> Result<(), Errno> {
    if !mirrors.is_apart() && !mirrors.list.is_empty() {
        let _right = op.rights.to_copy(mirrors.keys());
        mirrors.part()?;
    }
    if !mirrors.is_apart()
        && let Some(open) = node.opened()
    {
        // Those that were let go while all were equal have the number of this one, wherever they are.
        open.changes(|| resolve::generations::outdate_others(op, open.location().fd.as_fd()).map(drop))?;
        mirrors.now_alone();
    }
    Ok(())
}

/// Locks the node's mirrors for a change of the data, which may begin now. `None` if there are none.
///
/// Errors: `ESTALE` if the node's own copy has failed; then it is to be [led away](has_led).
pub(crate) fn for_change<'n>(op: &Op<'_>, node: &'n Node) -> Result<Option<Locked<'n>>> {
    if !node.has_mirrors() {
        return Ok(None);
    }
    let mut mirrors = node.lock_mirrors();
    check(op, node, &mut mirrors);
    match part(op, node, &mut mirrors) {
        Err(errno) if mirrors.failed.is_none() => return Err(errno.into()),
        _ if mirrors.failed.is_some() => return Err(Error::Stale),
        _ => {}
    }
    Ok((!mirrors.list.is_empty()).then_some(mirrors))
}

fn locked<'n>(op: &Op<'_>, node: &'n Node) -> Option<Locked<'n>> {
    if !node.has_mirrors() {
        return None;
    }
    let mut mirrors = node.lock_mirrors();
    check(op, node, &mut mirrors);
    (!mirrors.list.is_empty()).then_some(mirrors)
}

/// Changes the size of a file. `own` does that with the node's own copy, and perhaps more.
///
/// Errors: `ESTALE` if only the own copy has failed.
pub(crate) fn resize<T>(mirrors: &mut Mirrors, size: u64, own: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut done = own();
    let reached =
        |own: &Mirror| own.branch.reads(|| stat::of(own.fd.as_fd())).is_ok_and(|attr| attr.size == size);
    let concerns = match &done {
        Err(error) => {
            is_full(error.errno()) || is_illness(error.errno()) || mirrors.own.as_ref().is_some_and(reached)
        }
        Ok(_) => true,
    };
    if concerns {
        let failed = done.as_ref().err().map(|error| error.errno());
        let is_own = failed.is_some_and(|errno| is_full(errno) || is_illness(errno));
        let own = |_: &Mirror| if is_own { Err(failed.unwrap_or(Errno::IO)) } else { Ok(()) };
        let _ = mirrors.on_all(false, own, |mirror| set_size(mirror, size));
        if mirrors.failed.is_some() {
            done = Err(Error::Stale);
        }
    }
    done
}

fn set_size(mirror: &Mirror, size: u64) -> Result<(), Errno> {
    mirror.branch.changes(|| rustix::fs::ftruncate(&mirror.fd, size))
}

/// Empties the mirrors after an open with `O_TRUNC` has emptied the node's own copy.
pub(crate) fn emptied(mirrors: &mut Mirrors) {
    let _ = mirrors.on_all(false, |_| Ok::<_, Errno>(()), |mirror| set_size(mirror, 0));
}

/// Waits until all copies are on disk. `None` if the file has no mirrors.
pub(crate) fn sync(op: &mut Op<'_>, node: &Arc<Node>, data_only: bool) -> Option<Result<(), Errno>> {
    loop {
        let seen = node.failovers();
        let mut mirrors = locked(op, node)?;
        let synced = if mirrors.failed.is_some() {
            Err(Errno::STALE)
        } else {
            if !data_only && mirrors.is_apart() {
                mirrors.level();
            }
            mirrors.sync(data_only)
        };
        drop(mirrors);
        if synced.is_ok() || !has_led(op, node, seen) {
            return Some(synced);
        }
    }
}

/// Waits until all copies are on disk and equal, as after a close. The lock keeps them so. `None` if the file has no mirrors; what has
/// failed is in them.
pub(crate) fn settle<'n>(op: &mut Op<'_>, node: &'n Arc<Node>) -> Option<(Locked<'n>, Result<(), Errno>)> {
    loop {
        let mut mirrors = locked(op, node)?;
        let settled = if mirrors.failed.is_some() { Err(Errno::STALE) } else { seal(op, &mut mirrors) };
        if settled.is_ok() || mirrors.failed.is_none() {
            return Some((mirrors, settled));
        }
        drop(mirrors);
        has_led(op, node, node.failovers());
    }
}

fn seal(op: &Op<'_>, mirrors: &mut Mirrors) -> Result<(), Errno> {
    let _right = op.rights.to_copy(mirrors.keys());
    mirrors.seal()
}

/// Counts off a handle that could write, and is closed. With the last one, the copies are on disk and equal, and the mirrors go.
pub(crate) fn released(op: &mut Op<'_>, node: &Arc<Node>) {
    if node.has_mirrors() {
        let mut mirrors = node.lock_mirrors();
        mirrors.users = mirrors.users.saturating_sub(1);
        drop(mirrors);
        end_if_unused(op, node);
    }
}

/// Ends mirrors that no handle writes.
pub(crate) fn end_if_unused(op: &mut Op<'_>, node: &Arc<Node>) {
    let is_written = || {
        let writes = |other: &FileHandle| Arc::ptr_eq(&other.node, node) && other.writable();
        !op.files.matching(writes).is_empty()
    };
    if !node.has_mirrors() || node.lock_mirrors().users > 0 || is_written() {
        return;
    }
    if let Some((_, Err(errno))) = settle(op, node) {
        tracing::warn!("copies that were written together cannot be synced: {errno}");
    }
    let mut mirrors = node.lock_mirrors();
    // Somebody may have opened it again.
    if mirrors.users == 0 {
        node.take_mirrors(&mut mirrors);
    }
}

/// Says that the node's own copy cannot be read, after the node has moved `seen` times. Returns whether it has led away since.
pub(crate) fn cannot_read(op: &mut Op<'_>, node: &Arc<Node>, seen: u32, errno: Errno) -> bool {
    let before = node.failovers();
    match locked(op, node) {
        Some(mirrors) if mirrors.moves != seen => return false,
        Some(mut mirrors) => {
            if let Some(own) = &mirrors.own {
                let names = op.nodes.names(node.id).map(|(dir, name)| join(&dir, &name)).collect();
                op.unreadable.put(own.key, own.branch.id, names);
            }
            mirrors.failed = Some(errno);
        }
        None => return false,
    }
    has_led(op, node, before)
}

/// If the node's own copy has failed, leads the node with all its handles to a mirror, which becomes the newest copy before that.
/// Returns whether to make the change again that has failed, since it began after `seen` [such failures](Node::failovers): there, or
/// without mirrors. The caller holds nothing.
pub(crate) fn has_led(op: &mut Op<'_>, node: &Arc<Node>, seen: u32) -> bool {
    if !node.has_mirrors() || node.lock_mirrors().failed.is_none() {
        return node.failovers() != seen;
    }
    // It has begun, so it waits here.
    let _alone = loop {
        match node.take() {
            Ok(taken) => break taken,
            Err(_) => std::thread::sleep(AGAIN),
        }
    };
    let mut mirrors = node.lock_mirrors();
    let Some(errno) = node.take_failure(&mut mirrors) else { return true };
    while !mirrors.list.is_empty() {
        match lead(op, node, &mut mirrors) {
            Ok(to) => {
                tracing::warn!(
                    "a file that was written on two disks goes on on {}, for the other one failed ({errno})",
                    to.path.shown()
                );
                return true;
            }
            Err(why) => tracing::warn!("a copy cannot take the place of one that failed: {why}"),
        }
    }
    true
}

/// Leads the node to its first mirror, which is taken from the list. The caller has taken the node.
fn lead(op: &mut Op<'_>, node: &Arc<Node>, mirrors: &mut Mirrors) -> Result<Arc<Branch>, Errno> {
    let next = mirrors.list.remove(0);
    let names = op.nodes.names(node.id).count();
    let held = op.claim_file(node.id, names)?;
    if names == 0 || op.branches.index_of(next.branch.id).is_none() {
        return Err(Errno::STALE);
    }
    op.dir_cache.idle_files.close(node);
    let shown = moves::make_room::shown_ino(op, node).unwrap_or(node.kept_number());
    let branch = next.branch.clone();
    let reopen = |flags| {
        let fd = branch.reads(|| resolve::writable::reopen(op, node, &branch, &next.fd, flags))?;
        Ok(branch.reopen_for_read(fd, flags))
    };
    let led = Lead::prepare(op, node, reopen)?;
    let pinned = beneath::reopen(&next.fd, OFlags::PATH)?;
    let (former, key) = (mirrors.own.take(), next.key);
    mirrors.own = Some(next);
    if let (Some(former), Some(next)) = (&former, &mirrors.own) {
        // As far as the disk can say.
        let _ = canopy_branch::relocate::level_metadata(
            former.fd.as_fd(),
            next.fd.as_fd(),
            generation::ATTRIBUTE,
        );
    }
    // From here on, it is the newest copy: a process that takes over looks at the numbers.
    led.announce();
    let newest = {
        let _right =
            op.rights.to_copy(mirrors.keys().into_iter().chain(former.as_ref().map(|former| former.key)));
        let before = former.as_ref().and_then(|former| former.generation().ok().flatten());
        mirrors.succeed(before.map_or(0, |before| before.number))
    };
    if let Err(errno) = newest {
        if let Some(next) = std::mem::replace(&mut mirrors.own, former) {
            let _ = branch.changes(|| generation::write(next.fd.as_fd(), Generation::OUT_OF_DATE));
        }
        // What it has been called for a moment must not be newer.
        let _ = mirrors.renumber(0);
        mirrors.failed = None;
        led.give_up();
        return Err(errno);
    }
    led.go(op, node, key, shown, (&branch, pinned));
    mirrors.moves = node.moves();
    names_show_another(op, node);
    drop(held);
    op.kernel.load().invalidate_attr(node.id);
    Ok(branch)
}

/// Makes the other copies of a file that has just been created on a branch, and has its number. Where that fails, the file is on fewer
/// disks until the mover has copied it. Returns the branches that hold it besides.
pub(crate) fn create<'b>(
    op: &'b Op<'_>,
    caller: &Caller,
    dirs: &mut MergedDir<'b>,
    (path, name): (&[u8], &[u8]),
    (first, fd, key): (usize, &OwnedFd, FileKey),
    mode: u32,
) -> Option<(Mirrors, SmallVec<[usize; 2]>)> {
    let full = join(path, name);
    if !op.config.placement.knows_written() || !op.config.placement.is_written_at_once(&full) {
        return None;
    }
    let wanted = op.config.placement.copies(&full) - 1;
    let list = op.branches.as_slice();
    let Ok(Some(Generation { number, shared: false })) = list[first].reads(|| generation::read(fd.as_fd()))
    else {
        return None;
    };
    let mut taken: SmallVec<[usize; 4]> = SmallVec::new();
    // Branches on one disk count as one.
    let taken_with = |taken: &mut SmallVec<[usize; 4]>, index: usize| {
        taken.extend((0..list.len()).filter(|&other| list[other].dev == list[index].dev));
    };
    taken_with(&mut taken, first);
    let (mut mirrors, mut on) = (SmallVec::new(), SmallVec::new());
    while mirrors.len() < wanted {
        let chosen = resolve::choose::choose_for_create(op, Func::Create, dirs, (path, name), &taken);
        let Some(index) = chosen.ok().and_then(|chosen| chosen.first().copied()) else { break };
        let older = number.saturating_sub(1 + mirrors.len() as u64);
        let made = list[index].changes(|| {
            names::create::bring_dir(op, dirs, index, path)?;
            let dir = dirs.get(index).ok_or(Errno::NOENT)?;
            make_old_copy(caller, dir, name, mode, older)
        });
        taken_with(&mut taken, index);
        match made {
            Ok((fd, key)) => {
                dirs.name_created(name, index);
                mirrors.push(Mirror { branch: list[index].clone(), fd, key });
                on.push(index);
            }
            Err(errno) => tracing::debug!("{}: no copy of a new file: {errno}", list[index].path.shown()),
        }
    }
    if mirrors.is_empty() {
        return None;
    }
    let own = beneath::reopen(fd, OFlags::RDONLY).ok()?;
    let own = Mirror { branch: list[first].clone(), fd: own, key };
    Some((Mirrors::of_new(own, mirrors, number), on))
}

/// Makes an empty copy, which is older than the file.
fn make_old_copy(
    caller: &Caller,
    dir: BorrowedFd<'_>,
    name: &[u8],
    mode: u32,
    number: u64,
) -> Result<(OwnedFd, FileKey), Errno> {
    let fd = {
        let _as_caller = creds::assume(caller.uid, caller.gid, caller.umask)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(dir, name, flags, mode_in(caller, dir, mode)?)?
    };
    let made = generation::write(fd.as_fd(), Generation { number, shared: true })
        .and_then(|()| stat::of(fd.as_fd()))
        .map(|attr| attr.key());
    match made {
        Ok(key) => Ok((fd, key)),
        Err(errno) => {
            let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
            Err(errno)
        }
    }
}

/// Has the first change of a file's data say that other copies are old, where that could not be said when a handle that writes was
/// taken over, as on a disk that is read-only for now.
pub(crate) fn part_before_change(node: &Node) {
    let mut slot = node.lock_mirrors();
    if !node.has_mirrors() {
        node.put_mirrors(&mut slot, Mirrors::default());
    }
    slot.users += 1;
}

/// Gives a new file its mirrors. Without them, if others have opened it already.
pub(crate) fn attach(node: &Node, mirrors: Mirrors) {
    let is_empty = |copy: &Mirror| stat::of(copy.fd.as_fd()).is_ok_and(|attr| attr.size == 0);
    // An open for writing is under way where the lock is taken.
    if let Some(mut slot) = node.try_lock_mirrors()
        && node.opened().is_none_or(|open| !open.is_written() && open.backing.is_none())
        && !node.has_mirrors()
        && mirrors.own.as_ref().is_some_and(is_empty)
    {
        node.put_mirrors(&mut slot, mirrors);
    }
}
