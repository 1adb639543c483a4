//! Changing attributes: chmod, chown, truncate, utimens, and the clearing of set-id bits.
//!
//! A change of mode, owner or times goes to every copy that the action policy chooses, including the copy that is open,
//! so that copies do not diverge depending on the call. A truncation through a handle or by open(2) changes only the
//! open file, as a write does. Only truncate(2) by name changes all copies.

use crate::config::Func;
use crate::dir::merged::Trust;
use crate::door::Caller;
use crate::node::Node;
use crate::node::handles::FileHandle;
use crate::ops::data;
use crate::ops::moves;
use crate::ops::names;
use crate::ops::owed;
use crate::ops::read_cache;
use crate::ops::resolve;
use crate::ops::resolve::opened_copies::OpenedCopies;
use crate::ops::resolve::places::{Chosen, Places, Purpose};
use crate::ops::resolve::{Place, PlaceFd};
use crate::paths::Uses;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::{HandleId, NodeId};
use canopy_branch::fs::stat::{self, Attr, S_ISGID, S_ISUID, S_IXGRP, Time};
use canopy_branch::fs::{pinned, xattr};
use canopy_branch::relocate::lease;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    Now,
    At(Time),
}

/// What to change; `None` leaves a field alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permission bits; the type is ignored.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// The truncation clears set-id bits, as the caller may not keep them (`FATTR_KILL_SUIDGID`).
    pub kill_suidgid: bool,
}

/// How long to wait for a RELEASE that the kernel has not sent yet. Only a request that clears set-id bits on another
/// user's file waits, once.
const LATE_RELEASE: Duration = Duration::from_millis(30);

impl SetAttr {
    fn changes_nothing(&self) -> bool {
        *self == SetAttr { kill_suidgid: self.kill_suidgid, ..SetAttr::default() }
    }
}

/// Changes attributes and returns the resulting ones. If a part fails, the parts before it are undone where
/// possible. A truncation cannot be undone, so it comes after the changes of owner and mode.
///
/// A request that changes nothing asks to clear set-id bits and file capabilities. The kernel sends it before a
/// write, fallocate or copy by a caller that may not keep them, because the daemon agreed at INIT to clear them
/// (`FUSE_HANDLE_KILLPRIV_V2`; fs/fuse/dir.c fuse_setattr strips `ATTR_KILL_*` and sends the rest).
pub fn setattr(
    pool: &Pool,
    caller: &Caller,
    id: NodeId,
    handle: Option<HandleId>,
    set: &SetAttr,
) -> Result<Attr> {
    let op = &mut Op::begin(pool);
    let _changes = pool.figures.changes();
    let node = op.nodes.get(id)?;
    let trust = resolve::places::trust_to_change(op, &node);
    let handle = handle.and_then(|h| pool.files.get(h).ok()).filter(|h| Arc::ptr_eq(&h.node, &node));
    let with_data = handle.is_some() || is_by_open(&node, caller, set);
    if handle.is_none() && resolve::generations::knows_copies(op) {
        let _held = op.using(Uses::node(node.id));
        resolve::generations::must_be_current(op, &node, trust)?;
    }
    let attr = |op: &mut Op<'_>| set_attributes(op, caller, &node, trust, handle.as_deref(), set, with_data);
    // Before room is made for the caller, with no more rights to it than he has.
    let kept = if set.size == Some(0) && !node.is_dir() {
        let _held = op.using(Uses::node(node.id));
        names::keep::keep_emptied(op, &node, || open_or_own(op, &node, handle.as_deref()))?
    } else {
        None
    };
    let changed = match set.size {
        // The name leads to another node now.
        Some(_) if handle.is_none() && node.opened().is_some_and(|open| open.is_detached()) => {
            Err(Error::Stale)
        }
        // Some filesystems allocate space as soon as a file grows.
        Some(size) if !node.is_dir() => loop {
            let failovers = node.failovers();
            let set = moves::make_room::with_room(op, &node, size, |op| {
                match data::mirrors::for_change(op, &node)? {
                    Some(mut mirrors) => data::mirrors::resize(&mut mirrors, size, || attr(op)),
                    None => attr(op),
                }
            });
            if set.is_err() && data::mirrors::has_led(op, &node, failovers) {
                continue;
            }
            break set.map_err(|error| match error {
                Error::Branch(errno) => node.waits_for_lease(errno, true),
                other => other,
            });
        },
        // Times of data that the kernel has cached.
        _ if handle.is_some() && (set.atime.is_some() || set.mtime.is_some()) => {
            let _apart = data::mirrors::for_change(op, &node);
            attr(op)
        }
        _ => attr(op),
    };
    if let (Some(_), Some(open)) = (set.size, node.opened()) {
        open.leave_copy();
    }
    if let (Err(_), Some(kept)) = (&changed, kept) {
        kept.take_back(op);
    }
    changed
}

fn set_attributes(
    op: &mut Op<'_>,
    caller: &Caller,
    node: &Arc<Node>,
    trust: Trust,
    handle: Option<&FileHandle>,
    set: &SetAttr,
    with_data: bool,
) -> Result<Attr> {
    let _held = op.using(Uses::node(node.id));
    if set.changes_nothing() {
        if node.is_dir() {
            return names::lookup::dir_attr(op, node, trust, false);
        }
        let own = kill_privileges(op, node, caller)?;
        return resolve::places::file_attr_at(op, node, &own);
    }
    let by_policy = set.uid.is_some() || set.gid.is_some() || set.mode.is_some() || !with_data;
    if !by_policy {
        let own = change_data(op, node, caller, handle, set)?;
        return resolve::places::file_attr_at(op, node, &own);
    }
    let _not_cloning = resolve::locks::keep_from_cloning(op, node)?;
    let purpose = match set.size {
        Some(_) if !with_data => Purpose::Truncation,
        _ => Purpose::Attributes,
    };
    let places = resolve::places::places(op, node, trust, purpose)?;
    let mut changed = Chosen::new();
    let result = change(op, node, &places, &mut changed, caller, set, handle.is_some(), with_data);
    let result = result
        .and_then(|()| if with_data { change_data(op, node, caller, handle, set).map(drop) } else { Ok(()) });
    if result.is_err() {
        for place in changed {
            let (before, fd) = (&place.attr, place.fd.as_fd());
            let (uid, gid) = (Uid::from_raw(before.uid), Gid::from_raw(before.gid));
            let _ = rustix::fs::chownat(fd, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH);
            let _ = pinned::chmod(fd, Mode::from_raw_mode(before.mode & 0o7777));
        }
    }
    node.copies_changed();
    result?;
    owed::note_attributes(op, node, places.indices());
    resolve::places::attr_at(op, node, &places)
}

/// Applies the changes that policies decide on: with `with_data`, all but size and times. Adds to `changed` the
/// places whose owner or mode has changed.
#[allow(clippy::too_many_arguments)]
fn change<'p>(
    op: &Op<'_>,
    node: &Node,
    places: &'p Places,
    changed: &mut Chosen<'p>,
    caller: &Caller,
    set: &SetAttr,
    by_handle: bool,
    with_data: bool,
) -> Result<()> {
    let mut on_each = |func, undo: bool, change: &dyn Fn(&Place) -> Result<(), Errno>| {
        let chosen = resolve::places::chosen_places(op, func, places, by_handle)?;
        // Whoever calls undoes all of them.
        let result = resolve::places::change_each(op, places, &chosen, change, resolve::places::no_undo);
        if undo {
            changed.extend(chosen);
        }
        result
    };
    let mut writable = OpenedCopies::default();
    if set.size.is_some() && !with_data {
        let chosen = resolve::places::chosen_places(op, Func::Truncate, places, by_handle)?;
        // If nothing is changed before it, the only one is opened when it is truncated, unless it is open for writing already.
        let is_first = set.uid.is_none() && set.gid.is_none() && set.mode.is_none();
        if chosen.len() > 1 || !is_first || resolve::generations::knows_copies(op) {
            writable = OpenedCopies::open(op, node, &chosen, OFlags::WRONLY)?;
        }
    }
    if set.uid.is_some() || set.gid.is_some() {
        let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
        on_each(Func::Chown, true, &|place| {
            following(op, place, || {
                rustix::fs::chownat(&place.fd, c"", uid, gid, AtFlags::EMPTY_PATH)?;
                // The branch checks what the daemon may keep, which may be more than its caller may.
                match without_set_id(&place.attr, || caller.is_in_group(place.attr.gid)) {
                    Some(mode) => pinned::chmod(place.fd.as_fd(), mode),
                    None => Ok(()),
                }
            })
        })?;
    }
    if let Some(mode) = set.mode {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        on_each(Func::Chmod, true, &|place| following(op, place, || pinned::chmod(place.fd.as_fd(), mode)))?;
    }
    if with_data {
        return Ok(());
    }
    if let Some(size) = set.size {
        let kill = set.kill_suidgid.then_some(caller);
        on_each(Func::Truncate, false, &|place| {
            let opens = || resolve::writable::reopen(op, node, &place.branch, &place.fd, OFlags::WRONLY);
            truncate(writable.of(place).unwrap_or(place.fd.as_fd()), opens, size, kill)
        })?;
    }
    if let Some(times) = times(set) {
        let set = |place: &Place| pinned::set_times(place.fd.as_fd(), &times);
        on_each(Func::Utimens, false, &|place| following(op, place, || set(place)))?;
    }
    Ok(())
}

/// Runs a change of a place that its copy in a cache follows.
fn following(op: &Op<'_>, place: &Place, change: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    read_cache::following(op, &place.branch, Some(&place.attr), || lease::readable(&place.fd), change)
}

/// Returns the file of a handle, or a node's own file.
fn open_or_own(op: &Op<'_>, node: &Arc<Node>, handle: Option<&FileHandle>) -> Result<Place> {
    let Some(handle) = handle else { return resolve::places::primary(op, node) };
    let (branch, fd) = (handle.open.location().branch.clone(), handle.fd());
    let attr = branch.reads(|| stat::of(fd.as_fd()))?;
    Ok(Place { index: None, branch, fd: PlaceFd::Shared(fd), attr })
}

/// Clears set-id bits and file capabilities, as a request that changes nothing asks.
///
/// The request has one of two causes: the caller writes the file, or it calls chown(-1, -1), which clears set-id
/// bits even for root but only the owner may call (fs/attr.c notify_change turns it into a chmod). If no handle is
/// open for writing, the cause is the latter.
fn kill_privileges(op: &Op<'_>, node: &Arc<Node>, caller: &Caller) -> Result<Place> {
    let primary = resolve::places::primary(op, node)?;
    let left = without_set_id(&primary.attr, || caller.is_in_group(primary.attr.gid));
    let mut written = node.opened().is_some_and(|open| open.is_written());
    if left.is_some() && (caller.keeps_set_id(&primary.attr) || !caller.owner_or_capable(&primary.attr)) {
        // The cause decides here. The last writer may have closed the file already: the kernel sends RELEASE late.
        let since = Instant::now();
        while written && since.elapsed() < LATE_RELEASE {
            std::thread::sleep(Duration::from_millis(1));
            written = node.opened().is_some_and(|open| open.is_written());
        }
    }
    if let Some(mode) = left.filter(|_| !(written && caller.keeps_set_id(&primary.attr))) {
        if !written && !caller.owner_or_capable(&primary.attr) {
            return Err(Errno::PERM.into());
        }
        let outdate = || resolve::generations::outdate_others(op, primary.fd.as_fd());
        let outdated = primary.branch.changes(outdate);
        let _right = outdated.map_err(|errno| node.waits_for_lease(errno, false))?;
        primary.branch.changes(|| pinned::chmod(primary.fd.as_fd(), mode))?;
    }
    if primary.attr.is_regular() {
        match primary.branch.changes(|| xattr::remove(primary.fd.as_fd(), b"security.capability")) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(primary)
}

/// Changes size and times of the open file, whatever its branch's mode, as writes do. The only times that come through a
/// handle are those of data that the kernel has cached (writeback).
fn change_data(
    op: &Op<'_>,
    node: &Arc<Node>,
    caller: &Caller,
    handle: Option<&FileHandle>,
    set: &SetAttr,
) -> Result<Place> {
    let file = open_or_own(op, node, handle)?;
    if let Some(size) = set.size {
        let kill = set.kill_suidgid.then_some(caller);
        let opens = || resolve::writable::reopen(op, node, &file.branch, &file.fd, OFlags::WRONLY);
        file.branch.changes(|| {
            if handle.is_some() || !resolve::generations::knows_copies(op) {
                return truncate(file.fd.as_fd(), opens, size, kill);
            }
            // The file may be open for reading alone, by O_RDONLY | O_TRUNC.
            let opened = opens()?;
            let _right = resolve::generations::outdate_others(op, opened.as_fd())?;
            truncate(opened.as_fd(), opens, size, kill)
        })?;
    }
    if let Some(times) = times(set) {
        file.branch.changes(|| following(op, &file, || pinned::set_times(file.fd.as_fd(), &times)))?;
    }
    Ok(file)
}

/// Returns whether this may be the `O_TRUNC` of an open(2) by the same caller. The file is already open then.
fn is_by_open(node: &Node, caller: &Caller, set: &SetAttr) -> bool {
    set.size == Some(0) && node.opened().is_some_and(|open| open.may_be_open_truncate(caller.pid))
}

/// Returns the mode without the set-id bits that a write or chown must clear, or `None` if all can stay.
///
/// On anything but a directory these are setuid, and setgid if the group may execute or the caller is not in it
/// (fs/attr.c setattr_should_drop_suidgid).
fn without_set_id(attr: &Attr, in_group: impl FnOnce() -> bool) -> Option<Mode> {
    if attr.is_dir() || attr.mode & (S_ISUID | S_ISGID) == 0 {
        return None;
    }
    let mut mode = attr.mode & 0o7777 & !S_ISUID;
    if mode & S_ISGID != 0 && (mode & S_IXGRP != 0 || !in_group()) {
        mode &= !S_ISGID;
    }
    (mode != attr.mode & 0o7777).then(|| Mode::from_raw_mode(mode))
}

/// Clears set-id bits as the branch would for a caller that may not keep them. Returns true if any were set.
pub(crate) fn kill_suidgid(fd: BorrowedFd<'_>, caller: &Caller) -> Result<bool, Errno> {
    let attr = stat::of(fd)?;
    if attr.mode & (S_ISUID | S_ISGID) == 0 {
        return Ok(false);
    }
    if let Some(mode) = without_set_id(&attr, || caller.is_in_group(attr.gid)) {
        pinned::chmod(fd, mode)?;
    }
    Ok(true)
}

/// Truncates the file behind a descriptor, by that descriptor if it is open for writing. `opens` opens it so.
fn truncate(
    file: BorrowedFd<'_>,
    opens: impl FnOnce() -> Result<OwnedFd, Errno>,
    size: u64,
    kill: Option<&Caller>,
) -> Result<(), Errno> {
    match rustix::fs::ftruncate(file, size) {
        // It is open for reading only, or with O_PATH.
        Err(Errno::INVAL | Errno::BADF) => {
            rustix::fs::ftruncate(opens()?, size)?;
        }
        other => other?,
    }
    if let Some(caller) = kill {
        kill_suidgid(file, caller)?;
    }
    Ok(())
}

/// Returns the times to set, if any.
fn times(set: &SetAttr) -> Option<Timestamps> {
    (set.atime.is_some() || set.mtime.is_some())
        .then(|| Timestamps { last_access: spec(set.atime), last_modification: spec(set.mtime) })
}

fn spec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(t)) => Timespec { tv_sec: t.sec, tv_nsec: i64::from(t.nsec) as _ },
    }
}
