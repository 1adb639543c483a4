//! One operation of the kernel to one of the pool.

use crate::affinity::Pins;
use crate::branches::access_times::Times;
use crate::branches::liveness::Probes;
use crate::branches::monitor::Care;
use crate::coherence::dir_listings::Listed;
use crate::coherence::freshness::{Answering, Asker, Fresh, Subject};
use crate::coherence::in_flight::Drain;
use crate::coherence::invalidate::Forget;
use crate::coherence::recent_files::Young;
use crate::control::{self, Control};
use crate::offload::deadline::{self, Deputies};
use crate::offload::interrupts::Interrupts;
use crate::translate::convert::{self, Terms};
use crate::watch::Watch;
use arc_swap::ArcSwap;
use canopy_fuse::abi::{self, EntryOut};
use canopy_fuse::flags::{IoctlFlags, OpenFlags, OpenInFlags, SetxattrFlags, WriteFlags};
use canopy_fuse::notify::Notifier;
use canopy_fuse::request::{self as wire, FileIo};
use canopy_fuse::{Handler, Op, Replied, Reply, Request, Undelivered};
use canopy_pool::{Attr, Entry, Error, HandleId, NodeId, Pool, RenameKind, Via, Whence, WriteKind};
use canopy_sys::ioprio;
use rustix::io::Errno;
use std::cell::RefCell;
use std::sync::Weak;
use std::time::Duration;

/// Serves one pool.
pub(crate) struct Dispatch {
    /// For threads that must not keep it alive.
    pub(crate) own: Weak<Dispatch>,
    pub(crate) pool: Pool,
    pub(crate) terms: ArcSwap<Terms>,
    pub(crate) control: Control,
    pub(crate) notifier: Notifier,
    pub(crate) fresh: Fresh,
    pub(crate) watch: Watch,
    pub(crate) young: Young,
    /// Answers under way that the kernel keeps a directory locked for.
    pub(crate) locking: Drain,
    pub(crate) listed: Listed,
    pub(crate) forget: Forget,
    pub(crate) pins: Pins,
    pub(crate) care: Care,
    pub(crate) deputies: Deputies,
    pub(crate) probes: Probes,
    pub(crate) times: Times,
    pub(crate) interrupts: Interrupts,
}

const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Handler for Dispatch {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        self.interrupts.serves(&request.header);
        if request.header.node == control::NODE {
            return self.control.answer(self, &request, reply);
        }
        if let Some(errno) = control::refuses(&request) {
            return reply.error(errno.raw_os_error());
        }
        let reply = match deadline::answer(self, &request, reply) {
            Ok(replied) => return replied,
            Err(reply) => reply,
        };
        // Before the branches are read, and until the answer is given.
        let _locking = locks_directory(&request.op).then(|| self.locking.enter());
        let answering = self.fresh.begin(request.header.pid);
        let (pool, terms) = (&self.pool, &*self.terms.load());
        match request.op {
            Op::Read(_) | Op::Write(_) if terms.proxy_ioprio => ioprio::take(request.header.pid),
            _ => ioprio::own(),
        }
        let id = convert::node(request.header.node);
        let caller = |umask| convert::caller(&request.header, umask);
        let by = request.header.pid;
        match request.op {
            Op::Lookup { name } if control::hides(id, name.as_bytes()) => {
                reply.entry(&self.control.entry(terms))
            }
            Op::Lookup { name } => match pool.lookup_for(&caller(0), id, name.as_bytes()) {
                Ok(entry) => {
                    if name.as_bytes() == b".." {
                        // It is about to look in there for the name of a directory that it has a handle of, by its
                        // number: that may be another one than when it was listed.
                        self.listed.changed(wire::NodeId(entry.node.0));
                    }
                    reply.entry(&self.entry_of(&answering, terms, id, name.as_bytes(), &entry))
                }
                // A name known not to exist is an answer too.
                Err(Error::Absent) => {
                    let fresh = answering.tells(Subject::name(id, name.as_bytes()));
                    let missing = terms.missing(pool, &self.watch.stirred, id, name.as_bytes());
                    let time = lasting(fresh, missing);
                    reply.entry(&EntryOut::negative(time))
                }
                Err(error) => fail(reply, error),
            },
            Op::Forget { nlookup } => {
                pool.forget(id, nlookup);
                reply.none()
            }
            Op::BatchForget(items) => {
                for item in items {
                    pool.forget(convert::node(item.node), item.nlookup);
                }
                reply.none()
            }
            Op::Getattr { handle } => match pool.getattr(id, handle.map(HandleId)) {
                Ok(attr) => reply.attr(&abi::AttrOut::new(
                    convert::attr(&attr, terms),
                    self.attr_time(&answering, terms, id, &attr),
                )),
                Err(error) => fail(reply, error),
            },
            Op::Statx { handle, .. } => match pool.getattr(id, handle.map(HandleId)) {
                Ok(attr) => reply.statx(&abi::StatxOut::new(
                    convert::statx(&attr, terms),
                    self.attr_time(&answering, terms, id, &attr),
                )),
                Err(error) => fail(reply, error),
            },
            Op::Setattr(set) => {
                match pool.setattr(&caller(0), id, set.handle.map(HandleId), &convert::changes(&set)) {
                    Ok(attr) => reply.attr(&abi::AttrOut::new(
                        convert::attr(&attr, terms),
                        self.attr_time(&answering, terms, id, &attr),
                    )),
                    Err(error) => fail(reply, error),
                }
            }
            Op::Readlink => match pool.readlink(id) {
                Ok(target) => reply.bytes(&target),
                Err(error) => fail(reply, error),
            },
            Op::Symlink { name, target } => {
                let made = pool.symlink(&caller(0), id, name.as_bytes(), target.to_bytes());
                self.made(reply, &answering, id, name, made)
            }
            Op::Mknod { name, mode, rdev, umask } => {
                let made = pool.mknod(&caller(umask), id, name.as_bytes(), mode, abi::decode_dev(rdev));
                self.made(reply, &answering, id, name, made)
            }
            Op::Mkdir { name, mode, umask } => {
                let made = pool.mkdir(&caller(umask), id, name.as_bytes(), mode);
                self.made(reply, &answering, id, name, made)
            }
            Op::Unlink { name } => done(reply, self.after(by, [id], pool.unlink(id, name.as_bytes()))),
            Op::Rmdir { name } => done(reply, self.after(by, [id], pool.rmdir(id, name.as_bytes()))),
            Op::Rename { name, newdir, newname, flags } => {
                let kind = match flags {
                    0 => RenameKind::Replace,
                    RENAME_NOREPLACE => RenameKind::NoReplace,
                    RENAME_EXCHANGE => RenameKind::Exchange,
                    RENAME_WHITEOUT => RenameKind::Whiteout,
                    flags if flags == RENAME_WHITEOUT | RENAME_NOREPLACE => RenameKind::WhiteoutNoReplace,
                    _ => return reply.error(Errno::INVAL.raw_os_error()),
                };
                let to = (convert::node(newdir), newname.as_bytes());
                let renamed = pool.rename(&caller(0), id, name.as_bytes(), to.0, to.1, kind);
                let renamed = match id == to.0 {
                    true => self.after(by, [id], renamed),
                    false => self.after(by, [id, to.0], renamed),
                };
                if !answering.tells(Subject::name(to.0, to.1)) {
                    // The kernel keeps the old name's time for the new one.
                    let _ = self.notifier.expire_entry(newdir, newname.as_cstr());
                }
                done(reply, renamed)
            }
            Op::Link { old, name } => {
                let old = convert::node(old);
                let made = pool.link(&caller(0), old, id, name.as_bytes());
                self.made(reply, &answering, id, name, made)
            }
            Op::Open { flags, open_flags } => {
                let kill = open_flags.contains(OpenInFlags::KILL_SUIDGID);
                match pool.open(&caller(0), id, flags, kill) {
                    Ok(opened) => {
                        let (flags, backing) = convert::travel(&opened.travel);
                        reply.opened(opened.handle.0, flags, backing)
                    }
                    Err(error) => fail(reply, error),
                }
            }
            Op::Read(io) => {
                // Whoever asks on a caller's behalf tells on whose (fs/fuse/file.c fuse_send_read).
                let via = Via::with_flags(HandleId(io.handle), io.flags).for_pages(io.lock_owner.is_none());
                reply.data(io.size as usize, |buffer| pool.read(via, io.offset, buffer).map_err(number))
            }
            Op::Write(io) => {
                let kind = WriteKind {
                    from_cache: io.write_flags.contains(WriteFlags::CACHE),
                    kill_suidgid: io.write_flags.contains(WriteFlags::KILL_SUIDGID).then(|| caller(0)),
                };
                let via = Via::with_flags(HandleId(io.handle), io.flags);
                match pool.write(via, io.offset, io.data, kind) {
                    Ok(written) => reply.written(written as u32),
                    Err(error) => fail(reply, error),
                }
            }
            Op::Release { handle, .. } => done(reply, pool.release(HandleId(handle))),
            Op::Flush { handle, .. } => done(reply, pool.flush(HandleId(handle))),
            Op::Fsync { handle, datasync } => done(reply, pool.fsync(HandleId(handle), datasync)),
            Op::Opendir { .. } => match pool.opendir(id) {
                Ok(()) => {
                    let mut flags = OpenFlags::empty();
                    if terms.keeps_listing(pool, id) {
                        flags |= OpenFlags::CACHE_DIR;
                        flags.set(OpenFlags::KEEP_CACHE, self.keeps(terms, request.header.node));
                    }
                    // A listing belongs to its directory.
                    reply.opened(0, flags, None)
                }
                Err(error) => fail(reply, error),
            },
            Op::Readdir(io) => {
                // A listing has no time that could be left out; whoever changes it must know that it was told.
                if terms.keeps_listing(pool, id) {
                    answering.tells(Subject::attributes(id));
                }
                let mut out = reply.dir(io.size as usize);
                let listed = pool.readdir(id, io.offset, |entry| {
                    control::hides(id, entry.name)
                        || !out.push(entry.ino, entry.next, u32::from(entry.kind), entry.name)
                });
                match listed {
                    Ok(()) => out.finish(),
                    Err(error) => out.error(number(error)),
                }
            }
            Op::Readdirplus(io) => self.readdirplus(reply, &answering, terms, id, &io),
            Op::Releasedir { .. } => reply.ok(),
            Op::Fsyncdir { datasync, .. } => done(reply, pool.fsyncdir(id, datasync)),
            Op::Create(create) => {
                let kill = create.open_flags.contains(OpenInFlags::KILL_SUIDGID);
                let name = create.name.as_bytes();
                let made = pool.create(&caller(create.umask), id, name, create.mode, create.flags, kill);
                match self.after(by, [id], made) {
                    Ok((entry, opened)) => {
                        let (flags, backing) = convert::travel(&opened.travel);
                        let entry = self.entry_of(&answering, terms, id, name, &entry);
                        reply.created(&entry, opened.handle.0, flags, backing)
                    }
                    Err(error) => fail(reply, error),
                }
            }
            Op::Tmpfile(create) => match pool.tmpfile(&caller(create.umask), id, create.mode, create.flags) {
                Ok((entry, opened)) => {
                    let (flags, backing) = convert::travel(&opened.travel);
                    let attrs = self.attr_time(&answering, terms, entry.node, &entry.attr);
                    let entry = convert::entry(&entry, terms.entry, attrs, terms);
                    reply.created(&entry, opened.handle.0, flags, backing)
                }
                Err(error) => fail(reply, error),
            },
            Op::Statfs => match pool.statfs(id) {
                Ok(figures) => reply.statfs(&convert::statfs(&figures)),
                Err(error) => fail(reply, error),
            },
            Op::Setxattr { name, value, flags, setxattr_flags } => {
                let kill = setxattr_flags.contains(SetxattrFlags::ACL_KILL_SGID);
                let set = pool.setxattr(&caller(0), id, name.to_bytes(), value, flags, kill);
                done(reply, self.after(by, [id], set))
            }
            Op::Getxattr { name, size } => match control::file_key(pool, id, name.to_bytes()) {
                Some(Ok(value)) => reply.xattr(&value),
                Some(Err(error)) => fail(reply, error),
                None if size == 0 => match pool.getxattr(id, name.to_bytes(), &mut []) {
                    Ok(size) => reply.xattr_size(size as u32),
                    Err(error) => fail(reply, error),
                },
                None => {
                    let get = |buffer: &mut [u8]| pool.getxattr(id, name.to_bytes(), buffer).map_err(number);
                    reply.data(size as usize, get)
                }
            },
            Op::Listxattr { size: 0 } => match pool.listxattr(&caller(0), id, &mut []) {
                Ok(size) => reply.xattr_size(size as u32),
                Err(error) => fail(reply, error),
            },
            Op::Listxattr { size } => {
                let list = |buffer: &mut [u8]| pool.listxattr(&caller(0), id, buffer).map_err(number);
                reply.data(size as usize, list)
            }
            Op::Removexattr { name } => {
                done(reply, self.after(by, [id], pool.removexattr(&caller(0), id, name.to_bytes())))
            }
            Op::Access { mask } => done(reply, pool.access(id, mask)),
            Op::Ioctl { flags, cmd, data, .. } => {
                if flags.contains(IoctlFlags::UNRESTRICTED) {
                    // Only CUSE may read and write its caller's memory.
                    return reply.error(Errno::PERM.raw_os_error());
                }
                match self.after(by, [id], pool.ioctl(&caller(0), id, cmd, data)) {
                    Ok(answer) => reply.ioctl(0, |buffer| {
                        let bytes = answer.bytes();
                        buffer
                            .get_mut(..bytes.len())
                            .ok_or(Errno::INVAL.raw_os_error())?
                            .copy_from_slice(bytes);
                        Ok(bytes.len())
                    }),
                    Err(error) => fail(reply, error),
                }
            }
            Op::Fallocate { handle, offset, length, mode } => {
                done(reply, self.after(by, [id], pool.fallocate(HandleId(handle), mode, offset, length)))
            }
            Op::Lseek { handle, offset, whence } => {
                let whence = match whence {
                    SEEK_DATA => Whence::Data,
                    SEEK_HOLE => Whence::Hole,
                    // The kernel works the others out from the size it knows (fs/fuse/file.c).
                    _ => return reply.error(Errno::INVAL.raw_os_error()),
                };
                match pool.lseek(HandleId(handle), offset, whence) {
                    Ok(offset) => reply.lseek(offset),
                    Err(error) => fail(reply, error),
                }
            }
            Op::CopyFileRange(copy) => {
                let from = (HandleId(copy.handle_in), copy.offset_in);
                let to = (HandleId(copy.handle_out), copy.offset_out);
                match pool.copy_file_range(from, to, copy.len) {
                    Ok(bytes) => reply.copied(bytes, copy.reply64),
                    Err(error) => fail(reply, error),
                }
            }
            Op::Syncfs => done(reply, pool.syncfs()),
            Op::Interrupt { unique } => {
                self.interrupts.interrupted(unique);
                reply.none()
            }
            // Sent once all else has been answered; the threads end with the connection.
            Op::Destroy => reply.ok(),
            // Locks are kept by the kernel, per node: FUSE_POSIX_LOCKS and FUSE_FLOCK_LOCKS are not asked
            // for at INIT. All names of a file are one node, so they hold among all users of the pool, and
            // cost no round trip. The branches do not see them.
            Op::Getlk(_) | Op::Setlk(_) | Op::Setlkw(_) => unsupported(reply),
            // The kernel then takes every file for always ready, as regular files are (fs/fuse/file.c).
            Op::Poll { .. } => unsupported(reply),
            // Block numbers of different disks mean nothing to the callers of FIBMAP, and swapping onto a
            // pool would need them. Only mounts on a block device are asked anyway.
            Op::Bmap { .. } => unsupported(reply),
            // DAX windows belong to virtiofs: they need a shared memory region that /dev/fuse has not.
            Op::SetupMapping(_) | Op::RemoveMapping { .. } => unsupported(reply),
            // Dealt with before they get here.
            Op::Init(_) | Op::CuseInit(_) | Op::NotifyReply { .. } | Op::Unknown(_) => unsupported(reply),
        }
    }

    fn thread_start(&self, worker: usize) {
        self.pins.bind(worker);
    }

    fn known_files(&self) -> Vec<wire::NodeId> {
        self.pool.some_files().into_iter().map(|node| wire::NodeId(node.0)).collect()
    }

    fn undelivered(&self, what: Undelivered) {
        match what {
            Undelivered::Entry { node } => self.pool.forget(convert::node(node), 1),
            Undelivered::Opened { dir: true, .. } => {}
            Undelivered::Opened { handle, dir: false, .. } => {
                let _ = self.pool.release(HandleId(handle));
            }
            Undelivered::Created { node, handle } => {
                let _ = self.pool.release(HandleId(handle));
                self.pool.forget(convert::node(node), 1);
            }
        }
    }
}

impl Dispatch {
    /// Passes on what came of a request that changes attributes of `nodes`, whole or in part, and of whose answer the
    /// kernel does not take that they are newer than what it may be just learning.
    fn after<T, const N: usize>(&self, by: Asker, nodes: [NodeId; N], result: T) -> T {
        self.watch.changing();
        for node in nodes {
            if self.fresh.changed(Subject::attributes(node), by) {
                let _ = self.notifier.forget_attributes(wire::NodeId(node.0));
            }
        }
        result
    }

    /// A directory is being opened: may the kernel go by the listing that it has?
    fn keeps(&self, terms: &Terms, dir: wire::NodeId) -> bool {
        match terms.listing_age() {
            // What has happened by now is worked on first.
            Some(age) => self.watch.caught_up(self) && self.listed.keeps(dir, age),
            None => self.listed.keeps(dir, Duration::MAX),
        }
    }

    fn made(
        &self,
        reply: Reply<'_>,
        answering: &Answering<'_>,
        parent: NodeId,
        name: wire::Name<'_>,
        made: canopy_pool::Result<Entry>,
    ) -> Replied {
        match self.after(answering.asker(), [parent], made) {
            Ok(entry) => {
                let terms = &*self.terms.load();
                reply.entry(&self.entry_of(answering, terms, parent, name.as_bytes(), &entry))
            }
            Err(error) => fail(reply, error),
        }
    }

    fn entry_of(
        &self,
        answering: &Answering<'_>,
        terms: &Terms,
        parent: NodeId,
        name: &[u8],
        entry: &Entry,
    ) -> EntryOut {
        let (named, attrs) = self.entry_times(answering, terms, parent, name, entry);
        convert::entry(entry, named, attrs, terms)
    }

    /// For how long the kernel may go by a name, and by the attributes that are told with it.
    fn entry_times(
        &self,
        answering: &Answering<'_>,
        terms: &Terms,
        parent: NodeId,
        name: &[u8],
        entry: &Entry,
    ) -> (Duration, Duration) {
        let fresh = answering.tells(Subject::name(parent, name));
        let named = lasting(fresh, terms.named(&self.pool, parent, name));
        // What happened to a file that was not known yet, happened to its name.
        (named, lasting(fresh, self.attr_time(answering, terms, entry.node, &entry.attr)))
    }

    fn attr_time(&self, answering: &Answering<'_>, terms: &Terms, id: NodeId, attr: &Attr) -> Duration {
        let fresh = answering.tells(Subject::attributes(id));
        lasting(fresh, terms.attrs(&self.pool, &self.young, id, attr))
    }

    fn readdirplus(
        &self,
        reply: Reply<'_>,
        answering: &Answering<'_>,
        terms: &Terms,
        dir: NodeId,
        io: &FileIo,
    ) -> Replied {
        if terms.keeps_listing(&self.pool, dir) {
            answering.tells(Subject::attributes(dir));
        }
        let out = RefCell::new(reply.plus(io.size as usize));
        let mut nodes: Vec<NodeId> = Vec::new();
        let mut hidden = None;
        let listed = self.pool.readdirplus(
            dir,
            io.offset,
            |name| out.borrow_mut().grant(name.len()),
            |entry, node| {
                if control::hides(dir, entry.name) {
                    hidden = node.map(|node| node.node);
                    return Duration::ZERO;
                }
                // Without a node the kernel just learns the name.
                let (head, time) = node.as_ref().map_or_else(Default::default, |node| {
                    let (named, attrs) = self.entry_times(answering, terms, dir, entry.name, node);
                    (convert::entry(node, named, attrs, terms), named.min(attrs))
                });
                nodes.extend(node.map(|node| node.node));
                let full =
                    out.borrow_mut().push(&head, entry.ino, entry.next, u32::from(entry.kind), entry.name);
                debug_assert!(!full, "there was room for it");
                time
            },
        );
        let out = out.into_inner();
        if let Some(node) = hidden {
            self.pool.forget(node, 1);
        }
        match listed {
            Ok(()) => out.finish(),
            Err(error) => {
                for node in nodes {
                    self.pool.forget(node, 1);
                }
                out.error(number(error))
            }
        }
    }
}

/// Does the kernel keep a directory locked until it has the answer?
fn locks_directory(op: &Op<'_>) -> bool {
    match op {
        Op::Lookup { .. }
        | Op::Readdir(_)
        | Op::Readdirplus(_)
        | Op::Fsyncdir { .. }
        | Op::Create(_)
        | Op::Tmpfile(_)
        | Op::Mknod { .. }
        | Op::Mkdir { .. }
        | Op::Symlink { .. }
        | Op::Link { .. }
        | Op::Rename { .. }
        | Op::Unlink { .. }
        | Op::Rmdir { .. }
        | Op::Setxattr { .. }
        | Op::Removexattr { .. } => true,
        // That of a file may take long.
        Op::Setattr(set) => set.size.is_none(),
        _ => false,
    }
}

/// How long an answer may be relied upon: not at all if it has been overtaken.
fn lasting(fresh: bool, time: Duration) -> Duration {
    if fresh { time } else { Duration::ZERO }
}

fn number(error: Error) -> i32 {
    error.errno().raw_os_error()
}

fn fail(reply: Reply<'_>, error: Error) -> Replied {
    reply.error(number(error))
}

fn done(reply: Reply<'_>, result: canopy_pool::Result<()>) -> Replied {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => fail(reply, error),
    }
}

fn unsupported(reply: Reply<'_>) -> Replied {
    fail(reply, Error::Unsupported)
}
