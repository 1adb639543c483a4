//! Operations on the data of open files: read, write, sync, allocate, seek, copy.

use crate::door::Caller;
use crate::node::Node;
use crate::node::handles::FileHandle;
use crate::node::handles::mirrors::{Mirror, Mirrors};
use crate::ops::attrs::setattr::kill_suidgid;
use crate::ops::data;
use crate::ops::moves;
use crate::ops::readdir;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::HandleId;
use canopy_branch::fs::stat;
use canopy_sys::ioctl::reflink;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::{Errno, IoSlice, ReadWriteFlags};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A handle together with the flags of one read or write request.
#[derive(Clone, Copy, Debug)]
pub struct Via {
    handle: HandleId,
    /// The current open flags; `None` if they are those of the open.
    flags: Option<OFlags>,
    /// The kernel reads pages into its page cache.
    pages: bool,
}

impl Via {
    /// Takes the current open(2) flags. They may differ from those of the open: fcntl(F_SETFL) changes `O_APPEND` and
    /// `O_DIRECT` without a request, and pwritev2(2) has flags for a single write.
    pub fn with_flags(handle: HandleId, flags: u32) -> Via {
        Via { handle, flags: Some(OFlags::from_bits_retain(flags as _)), pages: false }
    }

    pub fn for_pages(self, pages: bool) -> Via {
        Via { pages, ..self }
    }
}

impl From<HandleId> for Via {
    fn from(handle: HandleId) -> Via {
        Via { handle, flags: None, pages: false }
    }
}

/// The origin of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteKind {
    /// The kernel writes back cached pages, on behalf of no caller and through any writable handle.
    pub from_cache: bool,
    /// The caller, if it may not keep set-id bits (`FUSE_WRITE_KILL_SUIDGID`).
    pub kill_suidgid: Option<Caller>,
}

/// The most that one COPY_FILE_RANGE copies, in bytes. A client cannot be interrupted while it waits for an answer,
/// so each answer has to come soon.
const COPIED_AT_ONCE: u64 = 16 << 20;
/// Bytes copied between two checks whether the caller has been killed.
const STEP: usize = 4 << 20;

/// How long a write that has begun waits for the end of a move before it looks again.
const AGAIN: Duration = Duration::from_millis(10);

/// What lseek(2) searches for: `SEEK_DATA` or `SEEK_HOLE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    Data,
    Hole,
}

/// Returns the flags that the branch's descriptor has but the caller's open file has since cleared.
fn cleared_flags(handle: &FileHandle, now: OFlags) -> OFlags {
    (handle.fd_flags() - now) & (OFlags::APPEND | OFlags::DIRECT)
}

/// Reads into `buffer` and returns the number of bytes; fewer than requested only at the end of the file, or before an
/// error. Pages are read to the end of the file or not at all: the kernel takes what is missing for a hole.
///
/// Errors: [`Error::Wait`] while the file moves, for the first page of one that others write with `O_DIRECT`.
pub fn read(pool: &Pool, via: impl Into<Via>, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    let via = via.into();
    let handle = pool.files.get(via.handle)?;
    if pool.config().nullrw {
        buffer.fill(0);
        return Ok(buffer.len());
    }
    let range = offset..offset + buffer.len() as u64;
    loop {
        let (node, moves) = (|| Ok(handle.node.clone()), handle.node.moves());
        let (done, failed) = read_there(&handle, via, offset, buffer)?;
        match failed {
            Some(error) if moves::heal::leads_away(pool, node, (moves, &range), error)? => {}
            Some(error) if done == 0 || via.pages => return Err(error),
            _ => return Ok(done),
        }
    }
}

/// Reads from the file where it is now. Returns the number of bytes, and the error that came after them.
fn read_there(
    handle: &FileHandle,
    via: Via,
    offset: u64,
    buffer: &mut [u8],
) -> Result<(usize, Option<Error>)> {
    let overtaken = if via.pages { handle.open.fetching(&handle.node)? } else { None };
    let _order = overtaken.map(|overtaken| overtaken.order.read());
    let (mut fd, traffic) = handle.counted_fd();
    let mut direct = handle.fd_flags().contains(OFlags::DIRECT);
    if direct && cleared_flags(handle, via.flags.unwrap_or(handle.flags)).contains(OFlags::DIRECT) {
        (fd, direct) = (handle.plain_to_read()?, false);
    }
    let from_copy = if direct { 0 } else { read_copy(handle, offset, buffer) };
    let (mut done, mut failed) = (from_copy, None);
    while done < buffer.len() {
        match handle.open.reads(|| rustix::io::pread(&*fd, &mut buffer[done..], offset + done as u64)) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => continue,
            // The kernel reads the rest of a page that it writes to, through a write-only handle.
            Err(Errno::BADF) if done == 0 && handle.flags.contains(OFlags::WRONLY) => {
                fd = handle.open.plain_to_read()?;
                continue;
            }
            Err(errno) => {
                failed = Some(errno.into());
                break;
            }
        }
        if direct && done < buffer.len() {
            // The remainder may not be aligned as O_DIRECT requires.
            if !via.pages {
                break;
            }
            (fd, direct) = (handle.plain_to_read()?, false);
        }
    }
    traffic.count_read(done - from_copy);
    if let Some(overtaken) = overtaken.filter(|_| failed.is_none()) {
        overtaken.fetched(offset..offset + buffer.len() as u64);
    }
    Ok((done, failed))
}

/// Reads what there is in the copy of a file, if it has one. What the copy cannot give is read from the file.
fn read_copy(handle: &FileHandle, offset: u64, buffer: &mut [u8]) -> usize {
    let Some(copy) = handle.open.copy() else { return 0 };
    let mut done = 0;
    while done < buffer.len() {
        let at = offset + done as u64;
        let Some((file, upto)) = copy.at(at) else { break };
        let end = usize::try_from(upto - at)
            .map_or(buffer.len(), |left| buffer.len().min(done.saturating_add(left)));
        match rustix::io::pread(file, &mut buffer[done..end], at) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => {
                tracing::warn!("a cached copy cannot be read, so its file is: {errno}");
                handle.open.leave_copy();
                break;
            }
        }
    }
    copy.counts.read(done);
    done
}

/// Writes `data` and returns the number of bytes; fewer than requested only after an error. Where the kernel passes no
/// count on, everything is written, or the error is returned: pages that it writes back (fs/fuse/file.c
/// fuse_writepage_end), and O_DIRECT on a file that is cached (fuse_get_res_by_io makes EIO of a count).
///
/// When the branch is full, the file moves to another branch and the rest is written there (`moveonenospc`).
pub fn write(pool: &Pool, via: impl Into<Via>, offset: u64, data: &[u8], kind: WriteKind) -> Result<usize> {
    let op = &mut Op::begin(pool);
    let via = via.into();
    let handle = op.files.get(via.handle)?;
    if op.config.nullrw {
        return Ok(data.len());
    }
    let mut flags = via.flags.unwrap_or(handle.flags);
    let counted = !kind.from_cache && (handle.is_direct() || !flags.contains(OFlags::DIRECT));
    let mut done = 0;
    // Where the end of a file with mirrors was, and how often it had moved.
    let mut end = None;
    let all = loop {
        let failovers = handle.node.failovers();
        let all = moves::make_room::with_room(op, &handle.node, data.len() as u64, |op| {
            let mut mirrors = data::mirrors::for_change(op, &handle.node)?;
            let moves = handle.node.moves();
            if mirrors.is_none() {
                // Others may have appended there since, but for a mirror that has the data, and has become the file.
                end = end.filter(|(_, before)| *before != moves);
            } else if end.is_none() && appends(op, flags, kind) {
                end = Some((handle.open.reads(|| stat::of(handle.fd().as_fd()))?.size, moves));
            }
            let (at, exact) = (end.map_or(offset, |(size, _)| size), end.is_some());
            let target = Target { mirrors: mirrors.as_deref_mut(), offset: at, exact };
            write_there(op, &handle, flags, target, data, kind, &mut done)?;
            if !counted && done < data.len() {
                // The rest, which may not be aligned as O_DIRECT requires.
                flags -= OFlags::DIRECT;
                let target = Target { mirrors: mirrors.as_deref_mut(), offset: at, exact };
                write_there(op, &handle, flags, target, data, kind, &mut done)?;
            }
            Ok(())
        });
        match all {
            Err(_) if data::mirrors::has_led(op, &handle.node, failovers) => {}
            // It has begun, so it waits here.
            Err(Error::Wait(_)) if done > 0 => std::thread::sleep(AGAIN),
            other => break other,
        }
    };
    match all {
        Err(error) if done == 0 || !counted => Err(error),
        _ => Ok(done),
    }
}

/// Returns whether the branch is to find out where the end of the file is. With the writeback cache, the kernel does.
fn appends(op: &Op<'_>, flags: OFlags, kind: WriteKind) -> bool {
    flags.contains(OFlags::APPEND) && !kind.from_cache && !op.config.writeback
}

/// Where data are written.
struct Target<'m> {
    /// The other copies that get them.
    mirrors: Option<&'m mut Mirrors>,
    offset: u64,
    /// At this offset, also of a handle that appends.
    exact: bool,
}

/// Writes the data after the first `done` bytes to the file on its current branch, and to its mirrors.
fn write_there(
    op: &Op<'_>,
    handle: &FileHandle,
    now: OFlags,
    Target { mut mirrors, offset, exact }: Target<'_>,
    data: &[u8],
    kind: WriteKind,
    done: &mut usize,
) -> Result<()> {
    let (own, traffic) = handle.counted_fd();
    let is_plain = kind.from_cache || exact || mirrors.is_some();
    let (fd, held) = if is_plain || !cleared_flags(handle, now).is_empty() {
        (handle.plain_fd()?, OFlags::empty())
    } else {
        (own, handle.fd_flags())
    };
    if let Some(caller) = &kind.kill_suidgid {
        drop_set_id_before_write(op, handle, fd.as_fd(), caller)?;
    }
    let mut extra = ReadWriteFlags::empty();
    if !kind.from_cache {
        let gained = |flag| now.contains(flag) && !held.contains(flag);
        // With the writeback cache, the kernel computes the offset of appended data itself.
        extra.set(ReadWriteFlags::APPEND, gained(OFlags::APPEND) && !op.config.writeback && !is_plain);
        extra.set(ReadWriteFlags::DSYNC, gained(OFlags::DSYNC));
        extra.set(ReadWriteFlags::SYNC, gained(OFlags::SYNC));
    }
    // The first read of pages cannot run concurrently with a write, because the node's `moving` is held.
    let overtaken = handle.open.overtaken();
    let overtakes = overtaken.filter(|_| handle.is_direct() && !kind.from_cache);
    let overtaken = overtaken.filter(|_| kind.from_cache);
    let _alone = overtakes.map(|overtaken| overtaken.order.write());
    let _beside = overtaken.map(|overtaken| overtaken.order.read());
    while *done < data.len() {
        let mut rest = &data[*done..];
        if let Some(overtaken) = overtaken {
            let (newer, len) = overtaken.next(offset + *done as u64, offset + data.len() as u64);
            *done += newer as usize;
            rest = &rest[newer as usize..][..len as usize];
            if rest.is_empty() {
                continue;
            }
        }
        let at = offset + *done as u64;
        let write = || {
            handle.open.changes(|| {
                let written = if extra.is_empty() {
                    rustix::io::pwrite(&*fd, rest, at)
                } else {
                    rustix::io::pwritev2(&*fd, &[IoSlice::new(rest)], at, extra)
                };
                // No filesystem should write nothing. It must neither be tried for ever nor count as written.
                written.and_then(|n| if n == 0 { Err(Errno::IO) } else { Ok(n) })
            })
        };
        let written = match &mut mirrors {
            Some(mirrors) => mirrors.write(write, rest, at, extra),
            None => write(),
        };
        match written {
            // The own copy has failed, and another one has it.
            Err(_) if mirrors.as_ref().is_some_and(|mirrors| mirrors.failed.is_some()) => {
                return Err(Error::Stale);
            }
            Ok(n) => {
                traffic.count_write(n);
                *done += n;
            }
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        if let (Some(overtakes), Ok(n)) = (overtakes, written) {
            overtakes.written(at..at + n as u64);
        }
        if held.contains(OFlags::DIRECT) {
            break;
        }
    }
    Ok(())
}

fn drop_set_id_before_write(
    op: &Op<'_>,
    handle: &FileHandle,
    fd: BorrowedFd<'_>,
    caller: &Caller,
) -> Result<()> {
    if handle.open.changes(|| kill_suidgid(fd, caller))? {
        // The answer to a write carries no attributes, so the kernel would keep a stale set-id bit.
        op.kernel.load().invalidate_attr(handle.node.id);
    }
    Ok(())
}

pub fn fsync(pool: &Pool, handle: HandleId, data_only: bool) -> Result<()> {
    let handle = pool.files.get(handle)?;
    if handle.node.has_mirrors()
        && let Some(synced) = data::mirrors::sync(&mut Op::begin(pool), &handle.node, data_only)
    {
        synced?;
        return sync_replacement(pool, &handle.node);
    }
    let fd = handle.fd();
    handle.open.changes(|| if data_only { rustix::fs::fdatasync(&*fd) } else { rustix::fs::fsync(&*fd) })?;
    // A move of the file waits for its users.
    drop(fd);
    sync_replacement(pool, &handle.node)
}

/// Waits until files are gone from disk that this one has replaced on other branches. After a power cut they would be
/// shown again, and hide what is synced now.
fn sync_replacement(pool: &Pool, node: &Node) -> Result<()> {
    let replaces = node.rare_if_any().map(|rare| &rare.replaces);
    let Some(replaces) = replaces.filter(|replaces| replaces.swap(false, Ordering::Relaxed)) else {
        return Ok(());
    };
    let synced =
        pool.nodes.names_in(node.id).try_for_each(|(dir, ..)| readdir::fsyncdir(pool, dir.id, false));
    synced.inspect_err(|_| replaces.store(true, Ordering::Relaxed))
}

/// Runs fallocate(2) with its `mode`: the branch decides whether it can punch, zero, collapse or insert.
pub fn fallocate(pool: &Pool, handle: HandleId, mode: u32, offset: u64, len: u64) -> Result<()> {
    let op = &mut Op::begin(pool);
    let handle = op.files.get(handle)?;
    let mode = FallocateFlags::from_bits_retain(mode);
    let gives_back = FallocateFlags::PUNCH_HOLE | FallocateFlags::COLLAPSE_RANGE;
    let wanted = if mode.intersects(gives_back) { 0 } else { len };
    let allocate = |fd: &OwnedFd| loop {
        match rustix::fs::fallocate(fd, mode, offset, len) {
            Err(Errno::INTR) => continue,
            other => return other,
        }
    };
    loop {
        let failovers = handle.node.failovers();
        let done = moves::make_room::with_room(op, &handle.node, wanted, |op| {
            let own = || handle.open.changes(|| allocate(&handle.fd()));
            let Some(mut mirrors) = data::mirrors::for_change(op, &handle.node)? else { return Ok(own()?) };
            let other = |mirror: &Mirror| mirror.branch.changes(|| allocate(&mirror.fd));
            let done = mirrors.on_all(true, |_| own(), other);
            if mirrors.failed.is_some() { Err(Error::Stale) } else { Ok(done?) }
        });
        if done.is_ok() || !data::mirrors::has_led(op, &handle.node, failovers) {
            return done;
        }
    }
}

/// Returns the offset of the next data or hole at or after `offset`. Errors: `ENXIO` beyond the end.
///
/// Not supported with the writeback cache: the kernel sends LSEEK without writing back first (fs/fuse/file.c
/// fuse_lseek), so data that has not reached the branch would appear as a hole and be lost in copies. After
/// `ENOSYS`, the kernel treats the whole file as data.
pub fn lseek(pool: &Pool, handle: HandleId, offset: u64, whence: Whence) -> Result<u64> {
    if pool.config().writeback {
        return Err(Error::Unsupported);
    }
    let handle = pool.files.get(handle)?;
    let from = match whence {
        Whence::Data => SeekFrom::Data(offset),
        Whence::Hole => SeekFrom::Hole(offset),
    };
    let found = handle.open.reads(|| match rustix::fs::seek(&*handle.fd(), from) {
        // Here, it does not mean a missing device.
        Err(Errno::NXIO) => Ok(None),
        other => other.map(Some),
    });
    Ok(found?.ok_or(Errno::NXIO)?)
}

/// Runs copy_file_range(2): copies at most `COPIED_AT_ONCE`, or everything if the branch can share the blocks.
/// The caller asks again for the rest. A killed caller ends the copy early.
///
/// Errors: on `EXDEV` and `EOPNOTSUPP`, the kernel copies by itself.
pub fn copy_file_range(
    pool: &Pool,
    (from, from_offset): (HandleId, u64),
    (to, to_offset): (HandleId, u64),
    len: u64,
) -> Result<u64> {
    let op = &mut Op::begin(pool);
    let (from, to) = (op.files.get(from)?, op.files.get(to)?);
    if to.node.has_mirrors() {
        // All copies get what the kernel writes.
        return Err(Errno::XDEV.into());
    }
    // One call copies at most 0x7ffff000 bytes (MAX_RW_COUNT in include/linux/fs.h).
    let mut len = len.min(0x7fff_f000);
    if from.node.id == to.node.id || len > COPIED_AT_ONCE {
        // Within one file, the target may lie beyond the end. Data copied there must not be copied again.
        let source = from.open.reads(|| stat::of(from.fd().as_fd()))?;
        len = len.min(source.size.saturating_sub(from_offset));
    }
    if len > COPIED_AT_ONCE {
        // The target cannot move to another branch meanwhile.
        let _moving = to.node.pin_location()?;
        let (source, target) = (from.fd(), to.fd());
        let clone =
            || reflink::clone_range((source.as_fd(), from_offset), (target.as_fd(), to_offset), len).ok();
        if to.open.tries(clone).is_some() {
            return Ok(len);
        }
        len = COPIED_AT_ONCE;
    }
    let len = len as usize;
    let mut done = 0;
    let all = moves::make_room::with_room(op, &to.node, len as u64, |op| {
        let ((source, read), (target, written)) = (from.counted_fd(), to.counted_fd());
        // A full branch first takes as much as fits.
        while done < len && !(done != 0 && op.kernel.load().caller_is_killed()) {
            let (mut at, mut into) = (from_offset + done as u64, to_offset + done as u64);
            let left = (len - done).min(STEP);
            let copy =
                || rustix::fs::copy_file_range(&*source, Some(&mut at), &*target, Some(&mut into), left);
            // The error may come from either branch; the health check finds out which.
            match to.open.reads(|| from.open.reads(copy)) {
                Ok(0) => break,
                Ok(copied) => {
                    read.count_read(copied);
                    written.count_write(copied);
                    done += copied;
                }
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    });
    match all {
        Err(error) if done == 0 => Err(error),
        _ => Ok(done as u64),
    }
}

/// Syncs every branch's filesystem. Returns the first error, after all branches have been synced.
pub fn syncfs(pool: &Pool) -> Result<()> {
    let op = &mut Op::begin(pool);
    let mut result = Ok(());
    for branch in op.branches.iter() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let sync =
            || canopy_branch::fs::beneath::open(branch.root(), b"", flags).and_then(rustix::fs::syncfs);
        result = result.and(branch.changes(sync).map_err(Error::Branch));
    }
    result
}
