//! Changing attributes: chmod, chown, truncate, utimens, and the clearing of set-id bits.
//!
//! A change of mode, owner or times goes to every copy that the action policy chooses, including the copy that is open,
//! so that copies do not diverge depending on the call. A truncation through a handle or by open(2) changes only the
//! open file, as a write does. Only truncate(2) by name changes all copies.

use crate::branch::Branches;
use crate::branch::health::OpKind;
use crate::config::Func;
use crate::dir::merged::MergedDir;
use crate::error::{Error, Result};
use crate::fs::beneath::{self, ProcPath};
use crate::fs::stat::{self, Attr, S_ISGID, S_ISUID, S_IXGRP, Time};
use crate::ids::{Caller, HandleId, NodeId};
use crate::node::Node;
use crate::node::handles::FileHandle;
use crate::ops::aggregate;
use crate::ops::resolve::{Target, TargetFd};
use crate::pool::Pool;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use rustix::io::Errno;
use smallvec::SmallVec;
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

impl Pool {
    /// Changes attributes and returns the resulting ones. If a part fails, the parts before it are undone where
    /// possible. A truncation cannot be undone, so it comes after the changes of owner and mode.
    ///
    /// A request that changes nothing asks to clear set-id bits and file capabilities. The kernel sends it before a
    /// write, fallocate or copy by a caller that may not keep them, because the daemon agreed at INIT to clear them
    /// (`FUSE_HANDLE_KILLPRIV_V2`; fs/fuse/dir.c fuse_setattr strips `ATTR_KILL_*` and sends the rest).
    pub fn setattr(
        &self,
        caller: &Caller,
        id: NodeId,
        handle: Option<HandleId>,
        set: &SetAttr,
    ) -> Result<Attr> {
        let node = self.nodes.get(id)?;
        let handle = handle.and_then(|h| self.files.get(h).ok()).filter(|h| Arc::ptr_eq(&h.node, &node));
        let with_data = handle.is_some() || is_by_open(&node, caller, set);
        let attr = || self.set_attributes(caller, &node, handle.as_deref(), set, with_data);
        match set.size {
            // The name leads to another node now.
            Some(_) if handle.is_none() && node.opened().is_some_and(|open| open.is_detached()) => {
                Err(Error::Stale)
            }
            // Some filesystems allocate space as soon as a file grows.
            Some(size) if !node.is_dir() => self.with_room(&node, size, attr),
            _ => attr(),
        }
    }

    fn set_attributes(
        &self,
        caller: &Caller,
        node: &Arc<Node>,
        handle: Option<&FileHandle>,
        set: &SetAttr,
        with_data: bool,
    ) -> Result<Attr> {
        let _held = self.tree.shared();
        let branches = self.branches.load();
        if set.changes_nothing() {
            self.kill_privileges(&branches, node, caller)?;
        } else {
            self.change(&branches, node, handle, caller, set, with_data)?;
        }
        self.attr_of(&branches, node, None)
    }

    /// Applies the changes. `with_data`: size and times change on the open file alone.
    fn change(
        &self,
        branches: &Branches,
        node: &Arc<Node>,
        handle: Option<&FileHandle>,
        caller: &Caller,
        set: &SetAttr,
        with_data: bool,
    ) -> Result<()> {
        let mut undo: SmallVec<[(Target, Attr); 2]> = SmallVec::new();
        let mut run = || -> Result<()> {
            if set.uid.is_some() || set.gid.is_some() {
                let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
                self.on_copies(branches, node, Func::Chown, handle, Some(&mut undo), |fd| {
                    let before = stat::of(fd)?;
                    rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)?;
                    // The branch checks what the daemon may keep, which may be more than its caller may.
                    match without_set_id(&before, || caller.is_in_group(before.gid)) {
                        Some(mode) => rustix::fs::chmod(ProcPath::of(fd).as_bytes(), mode),
                        None => Ok(()),
                    }
                })?;
            }
            if let Some(mode) = set.mode {
                let mode = Mode::from_raw_mode(mode & 0o7777);
                self.on_copies(branches, node, Func::Chmod, handle, Some(&mut undo), |fd| {
                    rustix::fs::chmod(ProcPath::of(fd).as_bytes(), mode)
                })?;
            }
            if let Some(size) = set.size {
                let opened = handle.filter(|h| h.writable());
                let cut = |fd: BorrowedFd<'_>| truncate(fd, opened, size, set.kill_suidgid.then_some(caller));
                match with_data {
                    true => self.on_open_file(branches, node, cut)?,
                    false => self.on_copies(branches, node, Func::Truncate, None, None, cut)?,
                }
            }
            // The only times that come through a handle are those of data that the kernel has cached (writeback).
            if set.atime.is_some() || set.mtime.is_some() {
                let times = Timestamps { last_access: spec(set.atime), last_modification: spec(set.mtime) };
                let touch = |fd: BorrowedFd<'_>| {
                    let path = ProcPath::of(fd);
                    rustix::fs::utimensat(rustix::fs::CWD, path.as_bytes(), &times, AtFlags::empty())
                };
                match with_data {
                    true => self.on_open_file(branches, node, touch)?,
                    false => self.on_copies(branches, node, Func::Utimens, None, None, touch)?,
                }
            }
            Ok(())
        };
        let result = run();
        if result.is_err() {
            for (target, before) in undo.iter().rev() {
                let owner = (Uid::from_raw(before.uid), Gid::from_raw(before.gid));
                let _ =
                    rustix::fs::chownat(&target.fd, c"", Some(owner.0), Some(owner.1), AtFlags::EMPTY_PATH);
                let mode = Mode::from_raw_mode(before.mode & 0o7777);
                let _ = rustix::fs::chmod(ProcPath::of(&target.fd).as_bytes(), mode);
            }
        }
        result
    }

    /// Runs a change on the open file, whatever its branch's mode, as writes do.
    fn on_open_file(
        &self,
        branches: &Branches,
        node: &Arc<Node>,
        change: impl Fn(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<()> {
        let own = self.primary(branches, node)?;
        Ok(change(own.fd.as_fd()).map_err(|errno| own.branch.record_error(errno, OpKind::Change))?)
    }

    /// Runs a change on every copy that `func`'s policy chooses. If the results differ, the result of the shown copy
    /// counts. `undo` receives the former attributes of each changed copy.
    pub(crate) fn on_copies(
        &self,
        branches: &Branches,
        node: &Arc<Node>,
        func: Func,
        handle: Option<&FileHandle>,
        mut undo: Option<&mut SmallVec<[(Target, Attr); 2]>>,
        change: impl Fn(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<()> {
        // No other request clones a directory that has been removed.
        let dir = if node.is_dir() { self.nodes.locate(node.id)?.1 } else { None };
        let _not_cloning = dir.map(|path| self.lock_for_change(path)).transpose()?;
        let (targets, shown) = self.targets(branches, node, func, handle.is_some())?;
        let mut results: SmallVec<[(Option<usize>, aggregate::Outcome); 2]> = SmallVec::new();
        for target in targets {
            let before = if undo.is_some() { Some(stat::of(target.fd.as_fd())?) } else { None };
            let result = change(target.fd.as_fd());
            if let Err(errno) = result {
                self.record_change_error(branches, node, target.index, errno);
            }
            results.push((target.index, result));
            if let (Ok(()), Some(undo), Some(before)) = (result, undo.as_mut(), before) {
                undo.push((target, before));
            }
        }
        Ok(aggregate::by_search(&results, || Ok(shown))?)
    }

    /// Records the error of changing a node's copy. Without an index, the copy is a file that no name leads to.
    fn record_change_error(&self, branches: &Branches, node: &Arc<Node>, index: Option<usize>, errno: Errno) {
        match index {
            Some(index) => {
                branches[index].record_error(errno, OpKind::Change);
            }
            None => {
                let _ =
                    self.primary(branches, node).map(|own| own.branch.record_error(errno, OpKind::Change));
            }
        }
    }

    /// Returns the copies of a node that an action function changes, and the index of the branch that is shown.
    ///
    /// `by_handle`: the open file is among them whatever its branch's mode, as that mode binds only the policies.
    pub(crate) fn targets(
        &self,
        branches: &Branches,
        node: &Arc<Node>,
        func: Func,
        by_handle: bool,
    ) -> Result<(SmallVec<[Target; 2]>, Option<usize>)> {
        let mut targets = SmallVec::new();
        if node.is_dir() {
            let (_, Some(path)) = self.nodes.locate(node.id)? else {
                let orphan = node.orphan.lock().clone().ok_or(Error::Stale)?;
                let fd = rustix::io::fcntl_dupfd_cloexec(&orphan.fd, 0)?;
                targets.push(Target { index: None, fd: TargetFd::Pinned(fd) });
                return Ok((targets, None));
            };
            let dirs = MergedDir::open(self.follow(), branches, &path);
            let copies = dirs.own();
            for index in self.choose_for_action(func, branches, &copies)? {
                let fd = rustix::io::fcntl_dupfd_cloexec(dirs.get(index).ok_or(Error::Absent)?, 0)?;
                targets.push(Target { index: Some(index), fd: TargetFd::Pinned(fd) });
            }
            let shown = self.shown(Func::Getattr, branches, &copies)?;
            return Ok((targets, Some(shown)));
        }
        let primary = self.primary(branches, node)?;
        let key = primary.attr.key();
        for (dir, name) in self.nodes.names(node.id) {
            let dirs = MergedDir::open(self.follow(), branches, &dir);
            let copies = dirs.copies(&name);
            let is_primary = |index: usize| copies.get(index).is_some_and(|attr| attr.key() == key);
            let Some(own) = copies.iter().map(|(index, _)| index).find(|&index| is_primary(index)) else {
                continue;
            };
            let chosen = match self.choose_for_action(func, branches, &copies) {
                Ok(chosen) => chosen,
                Err(_) if by_handle => SmallVec::new(),
                Err(error) => return Err(error),
            };
            for index in chosen {
                // Neither a hard link of the file nor a file of another type is a copy.
                let is_copy =
                    |attr: &Attr| attr.dirent_type() == primary.attr.dirent_type() && !is_primary(index);
                if index != own && copies.get(index).is_some_and(is_copy) {
                    let dir = dirs.get(index).ok_or(Error::Absent)?;
                    targets.push(Target {
                        index: Some(index),
                        fd: TargetFd::Pinned(dirs.follow.pin(dir, &name)?),
                    });
                } else if index == own {
                    targets.push(Target { index: Some(own), fd: primary.fd.share()? });
                }
            }
            if by_handle && !targets.iter().any(|t| t.index == Some(own)) {
                targets.push(Target { index: Some(own), fd: primary.fd });
            }
            if targets.is_empty() {
                // Only copies that the shown file hides could be changed.
                return Err(Error::ReadOnlyCopy);
            }
            let shown = self.shown(Func::Getattr, branches, &copies)?;
            return Ok((targets, Some(shown)));
        }
        targets.push(Target { index: None, fd: primary.fd });
        Ok((targets, None))
    }

    /// Clears set-id bits and file capabilities, as a request that changes nothing asks.
    ///
    /// The request has one of two causes: the caller writes the file, or it calls chown(-1, -1), which clears set-id
    /// bits even for root but only the owner may call (fs/attr.c notify_change turns it into a chmod). If no handle is
    /// open for writing, the cause is the latter.
    fn kill_privileges(&self, branches: &Branches, node: &Arc<Node>, caller: &Caller) -> Result<()> {
        if node.is_dir() {
            return Ok(());
        }
        let primary = self.primary(branches, node)?;
        let failed = |errno| primary.branch.record_error(errno, OpKind::Change);
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
            rustix::fs::chmod(ProcPath::of(&primary.fd).as_bytes(), mode).map_err(failed)?;
        }
        if primary.attr.is_regular() {
            match rustix::fs::removexattr(ProcPath::of(&primary.fd).as_bytes(), c"security.capability") {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(failed(errno).into()),
            }
        }
        Ok(())
    }
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
        rustix::fs::chmod(ProcPath::of(fd).as_bytes(), mode)?;
    }
    Ok(true)
}

fn truncate(
    fd: BorrowedFd<'_>,
    opened: Option<&FileHandle>,
    size: u64,
    kill: Option<&Caller>,
) -> Result<(), Errno> {
    if let Some(handle) = opened
        && stat::of(fd)?.key() == stat::of(handle.fd().as_fd())?.key()
    {
        rustix::fs::ftruncate(&*handle.fd(), size)?;
    } else {
        rustix::fs::ftruncate(beneath::reopen(fd, OFlags::WRONLY | OFlags::NONBLOCK)?, size)?;
    }
    if let Some(caller) = kill {
        kill_suidgid(fd, caller)?;
    }
    Ok(())
}

fn spec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(t)) => Timespec { tv_sec: t.sec, tv_nsec: i64::from(t.nsec) as _ },
    }
}
