//! Opening and closing files.

use crate::config::{CacheFiles, Func, PassthroughIo};
use crate::door::Caller;
use crate::kernel::BackingFile;
use crate::node::Node;
use crate::node::handles::FileHandle;
use crate::node::open_file::{self, FileLocation, FileUse, IdleState, OpenFile};
use crate::node::passthrough::{self, OpenFlags, Sharing};
use crate::node::recent::last_opens::LastOpens;
use crate::ops::attrs::setattr;
use crate::ops::data;
use crate::ops::moves;
use crate::ops::read_cache;
use crate::ops::reserve;
use crate::ops::resolve;
use crate::ops::resolve::generations::Outdated;
use crate::paths::Uses;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::{HandleId, NodeId};
use canopy_branch::branch::Branch;
use canopy_branch::branch::headroom::PassthroughWriter;
use canopy_branch::branch::traffic::Traffic;
use canopy_branch::fs::magic;
use canopy_branch::fs::stat::{self, Attr, FileKey};
use canopy_sys::creds;
use canopy_sys::shown::Show as _;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Whether a branch has enough free space for a handle that reads and writes past the daemon.
pub(crate) enum Room {
    /// Free space does not matter for this handle.
    Any,
    Ample(PassthroughWriter),
    Scarce,
}

/// A file just opened on its branch that no other handle had open.
struct FirstOpen {
    branch: Arc<Branch>,
    fd: Arc<OwnedFd>,
    /// The descriptor for reopening the file.
    pinned: Arc<OwnedFd>,
    /// The file's identity, if readers may read through `pinned`.
    reads: Option<FileKey>,
    idle: IdleState,
    attr: Attr,
}

/// The pages of a file that the kernel may have cached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CachedPages {
    None,
    /// The file is as it was at its last open.
    Unchanged,
    Any,
}

/// A new handle, valid until it is released, and the flags for the kernel's answer.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    pub handle: HandleId,
    pub travel: OpenFlags,
}

/// Opens a file. `flags` are those of open(2). `kill_suidgid` is set for an `O_TRUNC` open whose caller may not
/// keep set-id bits.
///
/// While any handle of the node is open, every further handle uses the same file.
///
/// Errors: `ESTALE` makes the kernel look the name up again before it retries the open (`link-cow`).
pub fn open(pool: &Pool, caller: &Caller, id: NodeId, flags: u32, kill_suidgid: bool) -> Result<Opened> {
    loop {
        let (node, mut moves) = (|| pool.nodes.get(id), 0);
        match open_shown(pool, caller, id, (flags, kill_suidgid), &mut moves) {
            Err(error) if moves::heal::leads_away(pool, node, (moves, &(0..0)), error)? => {}
            opened => return opened,
        }
    }
}

/// Opens the copy that is shown, after the node has moved `moves` times.
fn open_shown(
    pool: &Pool,
    caller: &Caller,
    id: NodeId,
    (flags, kill_suidgid): (u32, bool),
    moves: &mut u32,
) -> Result<Opened> {
    let op = &mut Op::begin(pool);
    data::cow::break_link(op, caller, id, flags)?;
    let node = op.nodes.get(id)?;
    *moves = node.moves();
    resolve::dirs::cache_wanted_dir(op);
    let trust = if resolve::generations::knows_copies(op) {
        resolve::places::trust_to_change(op, &node)
    } else {
        None
    };
    data::detach::detach_before_write(op, caller, &node, flags)?;
    let has_others = has_other_copies(op, &node);
    // An open for writing waits until a move of the file has finished.
    let writes = open_file::writes(branch_flags(op, flags));
    let stays = if writes { Some(node.pin_location()?) } else { None };
    let mut mirrors = if writes { data::mirrors::lock_for_open(op, &node) } else { None };
    let held = op.using(Uses::node(id));
    if node.is_dir() {
        return Err(Error::IsDirectory);
    }
    resolve::generations::must_be_current(op, &node, trust)?;
    if let Some(mirrors) = &mut mirrors {
        data::mirrors::begin(op, &node, trust, mirrors)?;
    }
    let opened = open_node(op, caller, &node, flags, kill_suidgid);
    if let Some(mut mirrors) = mirrors.filter(|_| node.has_mirrors()) {
        if opened.is_ok() {
            mirrors.users += 1;
            if branch_flags(op, flags).contains(OFlags::TRUNC) {
                data::mirrors::emptied(&mut mirrors);
            }
        }
        drop((mirrors, held, stays));
        data::mirrors::end_if_unused(op, &node);
    }
    if let Some(key) = node.key() {
        op.last_opens.put(key, if has_others { 0 } else { caller.pid });
    }
    resolve::generations::or_elsewhere(op, &node, opened)
}

/// Returns whether other branches hold a name of a file that was made just now. Whoever opens it has not brought them since,
/// which times alone do not tell.
fn has_other_copies(op: &mut Op<'_>, node: &Node) -> bool {
    let is_new = node.key().is_some_and(|key| LastOpens::may_be_together(key.birth));
    if !is_new || op.branches.as_slice().len() < 2 {
        return false;
    }
    let trust = resolve::dirs::cache_trust(op);
    let _held = op.using(Uses::node(node.id));
    op.nodes.names_in(node.id).any(|(parent, path, name)| {
        let dirs = resolve::dirs::dirs_of(op, parent, &path, trust);
        dirs.only_holder(&name).is_none() && dirs.copies(&name).count() > 1
    })
}

pub(crate) fn open_node(
    op: &Op<'_>,
    caller: &Caller,
    node: &Arc<Node>,
    flags: u32,
    kill_suidgid: bool,
) -> Result<Opened> {
    let branch_flags = flags_for(op, node, flags);
    // An open file with users is shared. An idle one is reused only if the name still leads to it.
    let (kept, first) = match node.opened() {
        Some(_) => (None, None),
        None => match kept(op, node, branch_flags) {
            Some(kept) => (Some(kept), None),
            None => {
                let first = open_first(op, node, branch_flags)?;
                op.dir_cache.admit(first.fd.as_fd())?;
                (None, Some(first))
            }
        },
    };
    let copy = first.as_ref().filter(|_| open_file::only_reads(branch_flags));
    let copy = copy.and_then(|first| read_cache::consult(op, node, &first.branch, &first.fd, &first.attr));
    // Held until the backing file is published: the kernel allows one backing file per node.
    let mut slot = node.open().lock();
    let proven = |open: &Arc<OpenFile>| kept.as_ref().is_some_and(|kept| Arc::ptr_eq(open, kept));
    let (fd, open, sharing, room) =
        match (slot.upgrade().filter(|open| open.users() > 0 || proven(open)), first) {
            // The name leads to a new node now.
            (Some(open), _)
                if open.is_detached() && !data::detach::may_join(op, caller, node, branch_flags) =>
            {
                return Err(Error::Stale);
            }
            (Some(open), _) => {
                let open = FileUse::new(open);
                leave_wrong_copy(&open, branch_flags);
                let fd = join_open_file(op, node, &open, branch_flags)?;
                let backing = open.backing.as_ref().map(|file| file.id());
                let room = match backing {
                    Some(_) => room(op, &open.location().branch, &fd.0, branch_flags, None),
                    None => Room::Any,
                };
                (fd, open, Sharing::Shared { backing }, room)
            }
            (None, Some(FirstOpen { branch, fd, pinned, reads, idle, attr })) => {
                // A file that is being copied elsewhere would have to stay.
                // Whoever has changed it since it was looked at has closed it again.
                let copy = copy.filter(|copy| copy.is_right(&*fd));
                let (backing, room) = match node.location_lock().try_read() {
                    // What is read from a copy is read through the daemon, so that it can stop at any moment.
                    Some(_) if copy.is_none() => register(op, node, &branch, &fd, branch_flags, &attr),
                    _ => (None, Room::Any),
                };
                let sharing = Sharing::First { backing: backing.as_ref().map(|file| file.id()) };
                let fd = (fd, branch.traffic);
                let place = FileLocation::new(branch, pinned, reads);
                let open = FileUse::new(Arc::new(OpenFile::new(node, place, backing, idle)));
                if let Some(copy) = copy {
                    open.read_from(copy);
                }
                if let Some(kept) = std::mem::replace(&mut *slot, Arc::downgrade(&open)).upgrade() {
                    op.dir_cache.idle_files.give_up(&kept);
                }
                (fd, open, sharing, room)
            }
            (None, None) => {
                // The last handle was closed after the check above.
                drop(slot);
                return open_node(op, caller, node, flags, kill_suidgid);
            }
        };
    drop(slot);
    if kill_suidgid && branch_flags.contains(OFlags::TRUNC) {
        open.changes(|| setattr::kill_suidgid(fd.0.as_fd(), caller))?;
    }
    opened(op, caller, node, fd, branch_flags, open, sharing, room, true)
}

/// Returns the idle file that the node's last reader left open, if the name still leads to it.
fn kept(op: &Op<'_>, node: &Node, flags: OFlags) -> Option<Arc<OpenFile>> {
    if !open_file::only_reads(flags) || !resolve::acts_on_own_file(op, Func::Open) {
        return None;
    }
    let open = op.dir_cache.idle_files.of(node)?;
    let (branch, file) = {
        let place = open.location();
        (place.branch.id, place.reads?)
    };
    resolve::via_cached_parent(op, node, |_, at, dir, name, key| {
        let same = at.id == branch && key == file && stat::at(dir, name).is_ok_and(|attr| attr.key() == key);
        same.then_some(())
    })?;
    Some(open)
}

/// Stops reading from a copy if a handle with these flags may change the file, or if others have changed it.
fn leave_wrong_copy(open: &OpenFile, flags: OFlags) {
    if open.copy().is_some_and(|copy| open_file::writes(flags) || !copy.is_right(&*open.location().fd)) {
        open.leave_copy();
    }
}

/// Returns a descriptor for another handle of a file that is already open.
fn join_open_file(
    op: &Op<'_>,
    node: &Node,
    open: &OpenFile,
    flags: OFlags,
) -> Result<(Arc<OwnedFd>, &'static Traffic)> {
    let place = open.location();
    if place.reads.is_some() && open_file::only_reads(flags) {
        return Ok((place.fd.clone(), place.branch.traffic));
    }
    let fd = place.branch.reads(|| open_on_branch(op, node, &place.branch, &*place.fd, flags));
    let fd = fd.map_err(|errno| refused(errno, node, flags))?;
    let fd = place.branch.reopen_for_read(fd, flags);
    op.dir_cache.admit(fd.as_fd())?;
    Ok((Arc::new(fd), place.branch.traffic))
}

/// Opens the copy that `func.open` chooses: the node's own file, unless the policy picks another copy.
fn open_first(op: &Op<'_>, node: &Arc<Node>, flags: OFlags) -> Result<FirstOpen> {
    let idle = || op.dir_cache.idle_files.begin();
    if resolve::acts_on_own_file(op, Func::Open)
        && !flags.contains(OFlags::TRUNC)
        && let Some(first) = resolve::via_cached_parent(op, node, |_, branch, dir, name, key| {
            // The name may lead to something else by now. Opening that must neither block nor change it.
            let idle = idle();
            let safe_flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(dir, name, safe_flags, Mode::empty()).ok()?;
            let attr = stat::of(fd.as_fd()).ok().filter(|attr| attr.key() == key && attr.is_regular())?;
            if open_file::writes(flags) {
                // A failure is told below.
                drop(resolve::generations::outdate_others(op, fd.as_fd()).ok()?);
            }
            let fd = Arc::new(branch.reopen_for_read(fd, safe_flags));
            let reads = open_file::only_reads(flags).then_some(key);
            Some(FirstOpen { branch: branch.clone(), pinned: fd.clone(), fd, reads, idle, attr })
        })
    {
        return Ok(first);
    }
    let primary = resolve::places::chosen(op, Func::Open, node, None, Attr::is_regular)?;
    let fd = primary.branch.reads(|| open_on_branch(op, node, &primary.branch, &primary.fd, flags));
    let fd = fd.map_err(|errno| refused(errno, node, flags))?;
    let fd = Arc::new(primary.branch.reopen_for_read(fd, flags));
    Ok(FirstOpen {
        branch: primary.branch,
        fd,
        pinned: primary.fd.into_shared()?,
        reads: None,
        idle: idle(),
        attr: primary.attr,
    })
}

/// Opens a file on its branch. With `nfsopenhack`, this includes a file whose mode denies the daemon write access.
fn open_on_branch(
    op: &Op<'_>,
    node: &Node,
    branch: &Branch,
    fd: &impl AsFd,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    // Whoever still waits for a lease has changed nothing: neither this copy nor what is known of the others.
    let file = resolve::writable::reopen(op, node, branch, fd, flags - OFlags::TRUNC)?;
    let outdated = if open_file::writes(flags) {
        resolve::generations::outdate_others(op, file.as_fd())?
    } else {
        Outdated::default()
    };
    if flags.contains(OFlags::TRUNC) {
        let emptied = resolve::writable::reopen(op, node, branch, fd, flags);
        // Then it can be emptied on another disk.
        emptied.inspect_err(|_| outdated.take_back(file.as_fd()))
    } else {
        Ok(file)
    }
}

/// Returns the flags for opening the file on its branch, given the caller's flags.
pub(crate) fn branch_flags(op: &Op<'_>, flags: u32) -> OFlags {
    let mut flags = OFlags::from_bits_retain(flags as _)
        & (OFlags::ACCMODE
            | OFlags::APPEND
            | OFlags::DIRECT
            | OFlags::DSYNC
            | OFlags::SYNC
            | OFlags::NOATIME
            | OFlags::NONBLOCK
            | OFlags::TRUNC);
    if op.config.writeback {
        // With the writeback cache, the kernel reads the rest of a partly written page and computes the
        // offset of appended data itself.
        if flags & OFlags::ACCMODE == OFlags::WRONLY {
            flags = (flags - OFlags::ACCMODE) | OFlags::RDWR;
        }
        flags -= OFlags::APPEND;
    }
    flags
}

/// As [`branch_flags`], for a file. What chattr(1) has made append-only can be opened for appending only, whatever caches it:
/// then its data go past the writeback cache.
fn flags_for(op: &Op<'_>, node: &Arc<Node>, flags: u32) -> OFlags {
    let usual = branch_flags(op, flags);
    let asked = OFlags::from_bits_retain(flags as _);
    let appends = op.config.writeback && open_file::writes(asked) && asked.contains(OFlags::APPEND);
    if appends && resolve::places::primary(op, node).is_ok_and(|file| file.attr.is_append_only()) {
        usual | OFlags::APPEND
    } else {
        usual
    }
}

/// Returns whether the branch's free space allows a handle of this file with these flags to use passthrough.
pub(crate) fn room(
    op: &Op<'_>,
    branch: &Arc<Branch>,
    fd: &Arc<OwnedFd>,
    flags: OFlags,
    attr: Option<&Attr>,
) -> Room {
    // With `ro`, the daemon serves a handle that only writes, but while others read the file by passthrough
    // the file cannot move to another branch.
    let only_writes = flags & OFlags::ACCMODE == OFlags::WRONLY;
    let measured =
        || measures_room(op, PassthroughIo::Auto) || only_writes && measures_room(op, PassthroughIo::Ro);
    if !open_file::writes(flags) || !measured() {
        return Room::Any;
    }
    let asked = if attr.is_none() { stat::of(fd.as_fd()).ok() } else { None };
    let Some(attr) = attr.or(asked.as_ref()) else { return Room::Scarce };
    op.headroom.admit(branch, fd, flags, attr).map_or(Room::Scarce, Room::Ample)
}

/// Returns whether `passthrough.io` has this value and free space matters, because full branches move files.
fn measures_room(op: &Op<'_>, option: PassthroughIo) -> bool {
    let config = &op.config;
    config.passthrough == option && config.move_when_full.0.is_some()
}

/// Registers a file for passthrough if this handle wants it and the branch has room for what it may write.
pub(crate) fn register(
    op: &Op<'_>,
    node: &Node,
    branch: &Arc<Branch>,
    fd: &Arc<OwnedFd>,
    flags: OFlags,
    attr: &Attr,
) -> (Option<Box<dyn BackingFile>>, Room) {
    if op.no_passthrough.load(Ordering::Relaxed)
        || data::mirrors::is_wanted(op, node)
        || !passthrough::wants_passthrough(op.config.passthrough, flags)
        || passthrough::may_lose_direct(flags)
        || op.config.nullrw
        || may_be_emptied_early(op, branch, attr)
        // A mapping of the branch's own file is not refused, because the kernel looks at the flags of the pool's inode.
        || attr.is_append_only()
        || op.stacked.read().contains(&branch.id)
    {
        return (None, Room::Any);
    }
    let served = || {
        let keeps = measures_room(op, PassthroughIo::Auto);
        op.detached.waits(attr.key())
            || moves::heal::must_be_served(op, branch, fd.as_fd())
            || keeps && op.headroom.readers_must_be_served(branch, attr.mtime.sec)
    };
    if !open_file::writes(flags) && served() {
        return (None, Room::Any);
    }
    let room = room(op, branch, fd, flags, Some(attr));
    match room {
        // No other handle is open, so the daemon serves all further handles and the file can move.
        Room::Scarce => (None, room),
        Room::Any | Room::Ample(_) => (backing(op, branch, fd, attr.key()), room),
    }
}

/// Returns whether an open with `O_TRUNC` may empty a file before what it holds is in the trash: the kernel opens backing files with
/// the flags of its client, and a FUSE server may do then what other filesystems are asked to do later (`FUSE_ATOMIC_O_TRUNC`).
fn may_be_emptied_early(op: &Op<'_>, branch: &Branch, attr: &Attr) -> bool {
    op.config.trash.keep_overwritten() && (branch.kind == magic::FUSE || attr.dev != branch.dev)
}

fn backing(op: &Op<'_>, branch: &Branch, fd: &OwnedFd, key: FileKey) -> Option<Box<dyn BackingFile>> {
    // The kernel writes with the ids that the thread has now.
    let kept = reserve::keeps_reserve(op, key.dev);
    let _nobody = if kept { Some(creds::without_reserve().ok()?) } else { None };
    match op.kernel.load().open_backing(fd.as_fd()) {
        Ok(id) => Some(id),
        Err(errno @ (Errno::PERM | Errno::NOTTY | Errno::OPNOTSUPP)) => {
            if !op.no_passthrough.swap(true, Ordering::Relaxed) {
                tracing::warn!("passthrough is off: the kernel refuses backing files ({errno})");
            }
            None
        }
        Err(Errno::LOOP) => {
            let mut stacked = op.stacked.write();
            if !stacked.contains(&branch.id) {
                stacked.push(branch.id);
                tracing::warn!(
                    "passthrough is off for {}: it is itself a stacked filesystem \
                     (passthrough.max-stack-depth=2 allows one level)",
                    branch.path.shown()
                );
            }
            None
        }
        Err(errno) => {
            tracing::debug!("no passthrough for a file on {}: {errno}", branch.path.shown());
            None
        }
    }
}

#[allow(clippy::too_many_arguments)]
pub(crate) fn opened(
    op: &Op<'_>,
    caller: &Caller,
    node: &Arc<Node>,
    (fd, traffic): (Arc<OwnedFd>, &'static Traffic),
    flags: OFlags,
    open: FileUse,
    sharing: Sharing,
    room: Room,
    known_before: bool,
) -> Result<Opened> {
    let by_name = op.config.cache_files == CacheFiles::PerProcess && is_listed(op, caller);
    let branch = open.location().branch.clone();
    let serves = open.backing.is_none();
    let pages = if serves { cached_pages(op, node, &fd, known_before) } else { CachedPages::None };
    open.opened_by(caller.pid);
    // Nobody begins to write while cached pages are dropped.
    let alone = serves.then(|| node.open().lock());
    let (mut handle, written) = FileHandle::new(node.clone(), (fd, traffic), flags, open);
    let valid = pages == CachedPages::Unchanged || written;
    let mut travel = passthrough::decide(&op.config, flags, sharing, by_name, valid);
    if serves && !travel.direct_io && !travel.keep_cache {
        // Not by the kernel once it has the answer: it may take its time, and also drops pages that are being
        // written by then. A read before their write reaches the daemon would cache the old data for good.
        if pages != CachedPages::None && !written {
            op.kernel.load().drop_pages(node.id);
        }
        travel.keep_cache = true;
    }
    drop(alone);
    let quietly = || closes_quietly(op, node, &branch);
    travel.no_flush = passthrough::no_flush(op.config.flush_on_close, flags, travel.passthrough, quietly)
        && !(open_file::writes(flags) && node.has_mirrors());
    handle.apply_open_flags(&travel);
    traffic.count_open(handle.passthrough);
    if handle.maps_past_daemon() {
        data::mapped::may_be_mapped(op, node, known_before);
    }
    if let (Room::Ample(passed), Some(_)) = (room, travel.passthrough) {
        handle.headroom = Some(passed);
    }
    if handle.writable() {
        op.figures.writer_opened();
    }
    let id = op.files.new_id();
    if let Some(records) = op.handle_records.get() {
        handle.record_in(records, id);
    }
    op.files.insert(id, handle);
    Ok(Opened { handle: id, travel })
}

/// Returns what the kernel may have cached of a file that is being opened.
fn cached_pages(op: &Op<'_>, node: &Node, fd: &OwnedFd, known_before: bool) -> CachedPages {
    let full = op.config.cache_files == CacheFiles::AutoFull && known_before;
    let now = if full { stat::of(fd.as_fd()).ok() } else { None };
    let now = now.map_or(open_file::NO_FINGERPRINT, |attr| open_file::fingerprint(&attr));
    match node.swap_fingerprint(now) {
        // Of a node that another process has served the kernel may have pages.
        None if op.succeeds.load(Ordering::Relaxed) => CachedPages::Any,
        None => CachedPages::None,
        Some(before) if before == now && full => CachedPages::Unchanged,
        Some(_) => CachedPages::Any,
    }
}

/// Returns whether closing this file cannot report an error, on any branch it may have moved to by then.
fn closes_quietly(op: &Op<'_>, node: &Node, branch: &Branch) -> bool {
    let may_move = op.config.move_when_full.0.is_some();
    // The branch's answer does not cover another filesystem mounted inside the branch.
    branch.closes_quietly
        && node.key().is_some_and(|key| key.dev == branch.dev)
        && (!may_move || op.branches.iter().all(|branch| branch.closes_quietly))
}

fn is_listed(op: &Op<'_>, caller: &Caller) -> bool {
    let comm = std::fs::read(format!("/proc/{}/comm", caller.pid)).unwrap_or_default();
    let comm = comm.strip_suffix(b"\n").unwrap_or(&comm);
    op.config.cache_process_names.iter().any(|name| name.as_bytes() == comm)
}

/// Handles close(2) of one of a handle's descriptors: returns a write error that the branch reports only
/// on close, as network filesystems do.
pub fn flush(pool: &Pool, handle: HandleId) -> Result<()> {
    let handle = pool.files.get(handle)?;
    if handle.writable()
        && handle.node.has_mirrors()
        && let Some((_, settled)) = data::mirrors::settle(&mut Op::begin(pool), &handle.node)
    {
        settled?;
    }
    // Held until the duplicate is closed: a move of the file waits for this reference.
    let fd = handle.fd();
    let copy = rustix::io::fcntl_dupfd_cloexec(&*fd, 0)?;
    Ok(handle.open.changes(|| canopy_sys::fd::close(copy))?)
}

/// Releases a handle after its last descriptor was closed.
pub fn release(pool: &Pool, handle: HandleId) -> Result<()> {
    let op = &mut Op::begin(pool);
    let handle = op.files.remove(handle)?;
    if handle.open.is_written() {
        handle.node.changed();
    }
    if op.config.drop_cache_on_close {
        // Twice: pages that were dirty on the first call are clean on the second.
        for _ in 0..2 {
            let _ = rustix::fs::fadvise(&*handle.fd(), 0, NonZeroU64::new(0), Advice::DontNeed);
        }
    }
    // The next open looks whether there is a copy on a faster disk meanwhile. One that finds the file open does not.
    if op.config.read_cache.is_empty() {
        op.dir_cache.idle_files.keep(&handle, &op.branches);
    }
    let was_writable = handle.writable();
    let has_mirrors = was_writable && handle.node.has_mirrors();
    let knows_copies = resolve::generations::knows_copies(op);
    let node = (was_writable && (knows_copies || has_mirrors)).then(|| handle.node.clone());
    drop(handle);
    if was_writable {
        op.figures.writer_closed();
    }
    if let Some(node) = node.as_ref().filter(|_| has_mirrors) {
        data::mirrors::released(op, node);
    }
    if let Some(node) = node {
        op.nodes.names(node.id).for_each(|(dir, name)| resolve::generations::note_closed(op, &dir, &name));
    }
    Ok(())
}

/// Returns the error for a file that could not be opened on its branch with flags of open(2).
fn refused(errno: Errno, node: &Node, flags: OFlags) -> Error {
    match errno {
        // So does its caller want it.
        Errno::AGAIN if flags.contains(OFlags::NONBLOCK) => errno.into(),
        Errno::AGAIN => node.waits_for_lease(errno, open_file::writes(flags)),
        errno => errno.into(),
    }
}
