//! Opening and closing files.

use crate::branch::headroom::PassthroughWriter;
use crate::branch::health::OpKind;
use crate::branch::{Branch, Branches};
use crate::config::{CacheFiles, Func, NfsOpenHack, PassthroughIo};
use crate::error::{Error, Result};
use crate::fs::beneath::{self, ProcPath};
use crate::fs::stat::{self, Attr, FileKey};
use crate::ids::{Caller, HandleId, NodeId};
use crate::kernel::BackingFile;
use crate::node::Node;
use crate::node::handles::FileHandle;
use crate::node::open_file::{self, FileLocation, FileUse, Fingerprint, IdleState, OpenFile};
use crate::node::passthrough::{self, OpenFlags, Sharing};
use crate::ops::attrs::setattr;
use crate::ops::resolve::{Primary, TargetFd};
use crate::path::join;
use crate::pool::Pool;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How a branch stands to a handle that wants to read and write past the daemon.
pub(crate) enum Room {
    /// It does not matter.
    Any,
    Ample(PassthroughWriter),
    Scarce,
}

/// A file opened on its branch, of which nothing was open.
struct FirstOpen {
    branch: Arc<Branch>,
    fd: Arc<OwnedFd>,
    /// By which it can be opened again.
    pinned: Arc<OwnedFd>,
    /// Which file it is, if `pinned` is what readers may read by.
    reads: Option<FileKey>,
    idle: IdleState,
    attr: Attr,
}

/// A handle that lives until it is released, and how its data travels.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    pub handle: HandleId,
    pub travel: OpenFlags,
}

impl Pool {
    /// Opens a file. `flags` are those of open(2); `kill_suidgid` accompanies `O_TRUNC` by a caller who may
    /// not keep set-id bits.
    ///
    /// While any handle of the node is open, every further one reaches the same file. Errors: `ESTALE` asks for the
    /// name to be looked up again first (`link-cow`).
    pub fn open(&self, caller: &Caller, id: NodeId, flags: u32, kill_suidgid: bool) -> Result<Opened> {
        self.break_link(caller, id, flags)?;
        let node = self.nodes.get(id)?;
        self.detach_before_write(caller, &node, flags)?;
        // Who opens it for writing waits until it has moved.
        let _stays = open_file::writes(self.branch_flags(flags)).then(|| node.moving.read());
        let _held = self.tree.shared();
        let branches = self.branches.load();
        if node.is_dir() {
            return Err(Error::IsDirectory);
        }
        self.open_node(caller, &branches, &node, flags, kill_suidgid)
    }

    pub(crate) fn open_node(
        &self,
        caller: &Caller,
        branches: &Branches,
        node: &Arc<Node>,
        flags: u32,
        kill_suidgid: bool,
    ) -> Result<Opened> {
        let branch_flags = self.branch_flags(flags);
        // What has users is joined; what is only kept must be proven to be what the name leads to.
        let (kept, first) = match node.opened() {
            Some(_) => (None, None),
            None => match self.kept(branches, node, branch_flags) {
                Some(kept) => (Some(kept), None),
                None => {
                    let first = self.open_first(branches, node, branch_flags)?;
                    self.dir_cache.admit(first.fd.as_fd())?;
                    (None, Some(first))
                }
            },
        };
        // Held until the backing file is known to all: the kernel allows one a node.
        let mut slot = node.open.lock();
        let proven = |open: &Arc<OpenFile>| kept.as_ref().is_some_and(|kept| Arc::ptr_eq(open, kept));
        let (fd, open, sharing, room) =
            match (slot.upgrade().filter(|open| open.users() > 0 || proven(open)), first) {
                // The name leads to a new node by now.
                (Some(open), _) if open.is_detached() && !self.may_join(caller, node, branch_flags) => {
                    return Err(Error::Stale);
                }
                (Some(open), _) => {
                    let open = FileUse::new(open);
                    let fd = self.join(&open, branch_flags)?;
                    let backing = open.backing.as_ref().map(|file| file.id());
                    let size = || stat::of(fd.as_fd()).map_or(0, |attr| attr.size);
                    let room = match backing {
                        Some(_) => self.room(&open.location().branch, branch_flags, size),
                        None => Room::Any,
                    };
                    (fd, open, Sharing::Shared { backing }, room)
                }
                (None, Some(FirstOpen { branch, fd, pinned, reads, idle, attr })) => {
                    let (backing, room) = self.register(&branch, &fd, branch_flags, &attr);
                    let sharing = Sharing::First { backing: backing.as_ref().map(|file| file.id()) };
                    let place = FileLocation::new(branch, pinned, reads);
                    let open = FileUse::new(Arc::new(OpenFile::new(place, backing, idle)));
                    if let Some(kept) = std::mem::replace(&mut *slot, Arc::downgrade(&open)).upgrade() {
                        self.dir_cache.idle_files.give_up(&kept);
                    }
                    (fd, open, sharing, room)
                }
                (None, None) => {
                    // The last handle was closed since we looked.
                    drop(slot);
                    return self.open_node(caller, branches, node, flags, kill_suidgid);
                }
            };
        drop(slot);
        if kill_suidgid && branch_flags.contains(OFlags::TRUNC) {
            setattr::kill_suidgid(fd.as_fd(), caller)?;
        }
        self.opened(caller, node, fd, branch_flags, open, sharing, room, true)
    }

    /// The node's file as its last reader has left it, if that is what its name leads to.
    fn kept(&self, branches: &Branches, node: &Node, flags: OFlags) -> Option<Arc<OpenFile>> {
        if !open_file::only_reads(flags) || !self.acts_on_own_file(Func::Open, branches) {
            return None;
        }
        let open = self.dir_cache.idle_files.of(node)?;
        let (branch, file) = {
            let place = open.location();
            (place.branch.id, place.reads?)
        };
        self.hinted(branches, node, |at, dir, name, key| {
            let same =
                at.id == branch && key == file && stat::at(dir, name).is_ok_and(|attr| attr.key() == key);
            same.then_some(())
        })?;
        Some(open)
    }

    /// A descriptor for one who joins those who have a file open.
    fn join(&self, open: &OpenFile, flags: OFlags) -> Result<Arc<OwnedFd>> {
        let place = open.location();
        if place.reads.is_some() && open_file::only_reads(flags) {
            return Ok(place.fd.clone());
        }
        let fd = beneath::reopen(&*place.fd, flags);
        let fd = fd.map_err(|errno| place.branch.record_error(errno, OpKind::Read))?;
        let fd = place.branch.reopen_for_read(fd, flags);
        self.dir_cache.admit(fd.as_fd())?;
        Ok(Arc::new(fd))
    }

    /// Opens the copy that `func.open` chooses; the node's own file unless another policy asks for another copy.
    fn open_first(&self, branches: &Branches, node: &Arc<Node>, flags: OFlags) -> Result<FirstOpen> {
        let idle = || self.dir_cache.idle_files.begin();
        if self.acts_on_own_file(Func::Open, branches)
            && !flags.contains(OFlags::TRUNC)
            && let Some(first) = self.hinted(branches, node, |branch, dir, name, key| {
                // What has come under the name meanwhile must not make us wait, or be harmed.
                let idle = idle();
                let careful = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(dir, name, careful, Mode::empty()).ok()?;
                let attr = stat::of(fd.as_fd()).ok().filter(|attr| attr.key() == key && attr.is_regular())?;
                let fd = Arc::new(branch.reopen_for_read(fd, careful));
                let reads = open_file::only_reads(flags).then_some(key);
                Some(FirstOpen { branch: branch.clone(), pinned: fd.clone(), fd, reads, idle, attr })
            })
        {
            return Ok(first);
        }
        let primary = self.chosen(Func::Open, branches, node, Attr::is_regular)?;
        let fd = self.open_on_branch(node, &primary, flags);
        let fd = fd.map_err(|errno| primary.branch.record_error(errno, OpKind::Read))?;
        let fd = Arc::new(primary.branch.reopen_for_read(fd, flags));
        Ok(FirstOpen {
            branch: primary.branch,
            fd,
            pinned: primary.fd.into_shared(),
            reads: None,
            idle: idle(),
            attr: primary.attr,
        })
    }

    /// Opens a file on its branch; with `nfsopenhack`, also one that its mode keeps the daemon from writing.
    fn open_on_branch(&self, node: &Node, primary: &Primary, flags: OFlags) -> Result<OwnedFd, Errno> {
        let refused = match beneath::reopen(&primary.fd, flags) {
            Err(Errno::ACCESS) if open_file::writes(flags) => Err(Errno::ACCESS),
            other => return other,
        };
        let chosen = match self.config().nfs_open_hack {
            NfsOpenHack::Off => false,
            NfsOpenHack::All => true,
            NfsOpenHack::Git => self.nodes.names(node.id).any(|(dir, name)| {
                let path = [primary.branch.path.as_os_str().as_bytes(), b"/", &join(&dir, &name)].concat();
                path.windows(b"/.git/".len()).any(|part| part == b"/.git/")
            }),
        };
        match chosen {
            true => open_made_writable(&primary.fd, flags).map_err(|_| Errno::ACCESS),
            false => refused,
        }
    }

    /// What the branch's file is opened with for a caller's flags.
    pub(crate) fn branch_flags(&self, flags: u32) -> OFlags {
        let mut flags = OFlags::from_bits_retain(flags as _)
            & (OFlags::ACCMODE
                | OFlags::APPEND
                | OFlags::DIRECT
                | OFlags::DSYNC
                | OFlags::SYNC
                | OFlags::NOATIME
                | OFlags::NONBLOCK
                | OFlags::TRUNC);
        if self.config().writeback {
            // The kernel reads around what it writes, and has placed appended data itself.
            if flags & OFlags::ACCMODE == OFlags::WRONLY {
                flags = (flags - OFlags::ACCMODE) | OFlags::RDWR;
            }
            flags -= OFlags::APPEND;
        }
        flags
    }

    /// May a handle with these flags read and write the branch past the daemon, as far as room goes?
    pub(crate) fn room(&self, branch: &Arc<Branch>, flags: OFlags, size: impl FnOnce() -> u64) -> Room {
        // With `ro`, who only writes is served by the daemon, but beside readers past it the file cannot move away from him.
        let only_writes = flags & OFlags::ACCMODE == OFlags::WRONLY;
        let measured = || {
            self.measures_room(PassthroughIo::Auto) || only_writes && self.measures_room(PassthroughIo::Ro)
        };
        if !open_file::writes(flags) || !measured() {
            return Room::Any;
        }
        self.headroom.admit(branch, size()).map_or(Room::Scarce, Room::Ample)
    }

    /// Does it matter, with `passthrough.io` so, how much room there is?
    fn measures_room(&self, option: PassthroughIo) -> bool {
        let config = self.config();
        config.passthrough == option && config.move_when_full.0.is_some()
    }

    /// Registers a file for passthrough, if this handle wants it and there is room for what it may write.
    pub(crate) fn register(
        &self,
        branch: &Arc<Branch>,
        fd: &Arc<OwnedFd>,
        flags: OFlags,
        attr: &Attr,
    ) -> (Option<Box<dyn BackingFile>>, Room) {
        if self.no_passthrough.load(Ordering::Relaxed)
            || !passthrough::wants_passthrough(self.config().passthrough, flags)
            || passthrough::may_lose_direct(flags)
            || self.config().nullrw
            || self.stacked.read().contains(&branch.id)
        {
            return (None, Room::Any);
        }
        let served = || {
            let keeps = self.measures_room(PassthroughIo::Auto);
            self.detached.waits(attr.key())
                || keeps && self.headroom.readers_must_be_served(branch, attr.mtime.sec)
        };
        if !open_file::writes(flags) && served() {
            return (None, Room::Any);
        }
        let room = self.room(branch, flags, || attr.size);
        match room {
            // Nobody else has it open: then all that comes is served by the daemon, and the file can move.
            Room::Scarce => (None, room),
            Room::Any | Room::Ample(_) => (self.backing(branch, fd), room),
        }
    }

    fn backing(&self, branch: &Branch, fd: &OwnedFd) -> Option<Box<dyn BackingFile>> {
        match self.kernel.load().open_backing(fd.as_fd()) {
            Ok(id) => Some(id),
            Err(errno @ (Errno::PERM | Errno::NOTTY | Errno::OPNOTSUPP)) => {
                if !self.no_passthrough.swap(true, Ordering::Relaxed) {
                    tracing::warn!("passthrough is off: the kernel refuses backing files ({errno})");
                }
                None
            }
            Err(Errno::LOOP) => {
                let mut stacked = self.stacked.write();
                if !stacked.contains(&branch.id) {
                    stacked.push(branch.id);
                    tracing::warn!(
                        "passthrough is off for {}: it is itself a stacked filesystem \
                         (passthrough.max-stack-depth=2 allows one level)",
                        branch.path.display()
                    );
                }
                None
            }
            Err(errno) => {
                tracing::debug!("no passthrough for a file on {}: {errno}", branch.path.display());
                None
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn opened(
        &self,
        caller: &Caller,
        node: &Arc<Node>,
        fd: Arc<OwnedFd>,
        flags: OFlags,
        open: FileUse,
        sharing: Sharing,
        room: Room,
        known_before: bool,
    ) -> Result<Opened> {
        let unchanged = self.config().cache_files == CacheFiles::AutoFull
            && open.backing.is_none()
            && known_before
            && stat::of(fd.as_fd()).is_ok_and(|attr| {
                let now = Fingerprint::from(&attr);
                node.seen.lock().replace(now) == Some(now)
            });
        let by_name = self.config().cache_files == CacheFiles::PerProcess && self.is_listed(caller);
        // While somebody writes through the cache it must not be dropped: the kernel drops pages whose write
        // is on its way to us, and who reads them in between caches for good what was there before the write.
        let quietly = open_file::writes(flags) && self.closes_quietly(node, &open.location().branch);
        open.opened_by(caller.pid);
        let (mut handle, written) = FileHandle::new(node.clone(), fd, flags, open);
        let valid = unchanged || written;
        let mut travel = passthrough::decide(&self.config(), flags, sharing, by_name, valid);
        travel.no_flush = passthrough::no_flush(self.config().flush_on_close, flags, quietly);
        handle.apply_open_flags(&travel);
        if handle.maps_past_daemon() {
            node.mapped.store(true, Ordering::Relaxed);
        }
        if let (Room::Ample(passed), Some(_)) = (room, travel.passthrough) {
            handle.headroom = Some(passed);
        }
        Ok(Opened { handle: self.files.insert(handle), travel })
    }

    /// Has a close of this file nothing to tell, wherever it may be by then?
    fn closes_quietly(&self, node: &Node, branch: &Branch) -> bool {
        let may_move = self.config().move_when_full.0.is_some();
        // Of another filesystem that is mounted on the branch nothing is known.
        branch.closes_quietly
            && node.key().is_some_and(|key| key.dev == branch.dev)
            && (!may_move || self.branches.load().iter().all(|branch| branch.closes_quietly))
    }

    fn is_listed(&self, caller: &Caller) -> bool {
        let comm = std::fs::read(format!("/proc/{}/comm", caller.pid)).unwrap_or_default();
        let comm = comm.strip_suffix(b"\n").unwrap_or(&comm);
        self.config().cache_process_names.iter().any(|name| name.as_bytes() == comm)
    }

    /// close(2) by one of the descriptors of a handle: tells what writing has failed with, if the branch
    /// says so only now (network filesystems).
    pub fn flush(&self, handle: HandleId) -> Result<()> {
        let handle = self.files.get(handle)?;
        // Kept until its copy is closed: who moves the file waits for that.
        let fd = handle.fd();
        let copy = rustix::io::fcntl_dupfd_cloexec(&*fd, 0)?;
        Ok(canopy_sys::fd::close(copy).map_err(|errno| handle.record_error(errno, OpKind::Change))?)
    }

    /// The last descriptor of a handle is gone.
    pub fn release(&self, handle: HandleId) -> Result<()> {
        let handle = self.files.remove(handle)?;
        if handle.open.is_written() {
            handle.node.changed();
        }
        if self.config().drop_cache_on_close {
            // Twice: pages that were dirty at the first go are clean at the second.
            for _ in 0..2 {
                let _ = rustix::fs::fadvise(&*handle.fd(), 0, NonZeroU64::new(0), Advice::DontNeed);
            }
        }
        self.dir_cache.idle_files.keep(&handle, &self.branches.load());
        Ok(())
    }
}

/// Opens a file that nobody may write for writing, by letting its owner and group do so meanwhile.
fn open_made_writable(fd: &TargetFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    const ANYBODY_WRITES: u32 = 0o222;
    const OWNER_AND_GROUP_WRITE: u32 = 0o220;
    let mode = stat::of(fd.as_fd())?.mode & 0o7777;
    if mode & ANYBODY_WRITES != 0 {
        // It was not the mode.
        return Err(Errno::ACCESS);
    }
    let path = ProcPath::of(fd);
    rustix::fs::chmod(path.as_bytes(), Mode::from_raw_mode(mode | OWNER_AND_GROUP_WRITE))?;
    let opened = beneath::reopen(fd, flags);
    rustix::fs::chmod(path.as_bytes(), Mode::from_raw_mode(mode))?;
    opened
}
