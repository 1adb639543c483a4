//! One operation of the kernel to one of the pool.

use super::control::{self, Control};
use super::convert::{self, Terms};
use super::drain::Drain;
use arc_swap::ArcSwap;
use canopy_fuse::abi::{self, EntryOut};
use canopy_fuse::flags::{IoctlFlags, OpenFlags, OpenInFlags, SetxattrFlags, WriteFlags};
use canopy_fuse::notify::Notifier;
use canopy_fuse::request::FileIo;
use canopy_fuse::{Handler, Op, Replied, Reply, Request, Undelivered};
use canopy_pool::{Error, HandleId, NodeId, Pool, RenameKind, Via, Whence, WriteKind};
use rustix::io::Errno;

/// Serves one pool.
pub(super) struct Dispatch {
    pub(super) pool: Pool,
    pub(super) terms: ArcSwap<Terms>,
    pub(super) control: Control,
    pub(super) notifier: Notifier,
    /// Answers under way that give names to the kernel.
    pub(super) naming: Drain,
}

const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Handler for Dispatch {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        if request.header.node == control::NODE {
            return self.control.answer(self, &request, reply);
        }
        // Before the branches are read, and until the answer is given.
        let _naming = gives_names(&request.op).then(|| self.naming.enter());
        let (pool, terms) = (&self.pool, &*self.terms.load());
        let id = convert::node(request.header.node);
        let caller = |umask| convert::caller(&request.header, umask);
        match request.op {
            Op::Lookup { name } if control::hides(id, name.as_bytes()) => {
                reply.entry(&self.control.entry(terms))
            }
            Op::Lookup { name } => match pool.lookup_for(&caller(0), id, name.as_bytes()) {
                Ok(entry) => reply.entry(&convert::entry(&entry, terms)),
                // A name known not to exist is an answer too.
                Err(Error::Absent) => reply.entry(&EntryOut::negative(terms.negative)),
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
                Ok(attr) => reply.attr(&abi::AttrOut::new(convert::attr(&attr), terms.attr)),
                Err(error) => fail(reply, error),
            },
            Op::Statx { handle, .. } => match pool.getattr(id, handle.map(HandleId)) {
                Ok(attr) => reply.statx(&abi::StatxOut::new(convert::statx(&attr), terms.attr)),
                Err(error) => fail(reply, error),
            },
            Op::Setattr(set) => {
                match pool.setattr(&caller(0), id, set.handle.map(HandleId), &convert::changes(&set)) {
                    Ok(attr) => reply.attr(&abi::AttrOut::new(convert::attr(&attr), terms.attr)),
                    Err(error) => fail(reply, error),
                }
            }
            Op::Readlink => match pool.readlink(id) {
                Ok(target) => reply.bytes(&target),
                Err(error) => fail(reply, error),
            },
            Op::Symlink { name, target } => {
                self.made(reply, pool.symlink(&caller(0), id, name.as_bytes(), target.to_bytes()))
            }
            Op::Mknod { name, mode, rdev, umask } => {
                self.made(reply, pool.mknod(&caller(umask), id, name.as_bytes(), mode, abi::decode_dev(rdev)))
            }
            Op::Mkdir { name, mode, umask } => {
                self.made(reply, pool.mkdir(&caller(umask), id, name.as_bytes(), mode))
            }
            Op::Unlink { name } => done(reply, pool.unlink(id, name.as_bytes())),
            Op::Rmdir { name } => done(reply, pool.rmdir(id, name.as_bytes())),
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
                done(reply, pool.rename(&caller(0), id, name.as_bytes(), to.0, to.1, kind))
            }
            Op::Link { old, name } => {
                self.made(reply, pool.link(&caller(0), convert::node(old), id, name.as_bytes()))
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
                let via = Via::with_flags(HandleId(io.handle), io.flags);
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
                Ok(handle) => {
                    let mut flags = OpenFlags::empty();
                    flags.set(OpenFlags::CACHE_DIR | OpenFlags::KEEP_CACHE, terms.keep_listings);
                    reply.opened(handle.0, flags, None)
                }
                Err(error) => fail(reply, error),
            },
            Op::Readdir(io) => {
                let mut out = reply.dir(io.size as usize);
                let listed = pool.readdir(HandleId(io.handle), io.offset, |entry| {
                    control::hides(id, entry.name)
                        || !out.push(entry.ino, entry.next, u32::from(entry.kind), entry.name)
                });
                match listed {
                    Ok(()) => out.finish(),
                    Err(error) => out.error(number(error)),
                }
            }
            Op::Readdirplus(io) => self.readdirplus(reply, id, &io),
            Op::Releasedir { handle, .. } => done(reply, pool.releasedir(HandleId(handle))),
            Op::Fsyncdir { handle, datasync } => done(reply, pool.fsyncdir(HandleId(handle), datasync)),
            Op::Create(create) => {
                let kill = create.open_flags.contains(OpenInFlags::KILL_SUIDGID);
                let name = create.name.as_bytes();
                match pool.create(&caller(create.umask), id, name, create.mode, create.flags, kill) {
                    Ok((entry, opened)) => {
                        let (flags, backing) = convert::travel(&opened.travel);
                        reply.created(&convert::entry(&entry, terms), opened.handle.0, flags, backing)
                    }
                    Err(error) => fail(reply, error),
                }
            }
            Op::Tmpfile(create) => match pool.tmpfile(&caller(create.umask), id, create.mode, create.flags) {
                Ok((entry, opened)) => {
                    let (flags, backing) = convert::travel(&opened.travel);
                    reply.created(&convert::entry(&entry, terms), opened.handle.0, flags, backing)
                }
                Err(error) => fail(reply, error),
            },
            Op::Statfs => match pool.statfs(id) {
                Ok(figures) => reply.statfs(&convert::statfs(&figures)),
                Err(error) => fail(reply, error),
            },
            Op::Setxattr { name, value, flags, setxattr_flags } => {
                let kill = setxattr_flags.contains(SetxattrFlags::ACL_KILL_SGID);
                done(reply, pool.setxattr(id, name.to_bytes(), value, flags, kill))
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
            Op::Listxattr { size: 0 } => match pool.listxattr(id, &mut []) {
                Ok(size) => reply.xattr_size(size as u32),
                Err(error) => fail(reply, error),
            },
            Op::Listxattr { size } => {
                reply.data(size as usize, |buffer| pool.listxattr(id, buffer).map_err(number))
            }
            Op::Removexattr { name } => done(reply, pool.removexattr(id, name.to_bytes())),
            Op::Access { .. } => done(reply, pool.access(id)),
            Op::Ioctl { flags, cmd, data, .. } => {
                if flags.contains(IoctlFlags::UNRESTRICTED) {
                    // Only CUSE may read and write its caller's memory.
                    return reply.error(Errno::PERM.raw_os_error());
                }
                match pool.ioctl(&caller(0), id, cmd, data) {
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
                done(reply, pool.fallocate(HandleId(handle), mode, offset, length))
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
            // Every operation ends by itself, and none may be left half done.
            Op::Interrupt { .. } => reply.none(),
            // Sent once all else has been answered; the threads end with the connection.
            Op::Destroy => reply.ok(),
            // Nothing is ever asked for that would be answered by it.
            Op::NotifyReply { .. } => reply.none(),
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
            Op::Init(_) | Op::CuseInit(_) | Op::Unknown(_) => unsupported(reply),
        }
    }

    fn undelivered(&self, what: Undelivered) {
        match what {
            Undelivered::Entry { node } => self.pool.forget(convert::node(node), 1),
            Undelivered::Opened { handle, dir: true, .. } => {
                let _ = self.pool.releasedir(HandleId(handle));
            }
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
    fn made(&self, reply: Reply<'_>, made: canopy_pool::Result<canopy_pool::Entry>) -> Replied {
        match made {
            Ok(entry) => reply.entry(&convert::entry(&entry, &self.terms.load())),
            Err(error) => fail(reply, error),
        }
    }

    fn readdirplus(&self, reply: Reply<'_>, dir: NodeId, io: &FileIo) -> Replied {
        let terms = &*self.terms.load();
        let out = std::cell::RefCell::new(reply.plus(io.size as usize));
        let mut given: Vec<NodeId> = Vec::new();
        let mut hidden = None;
        let listed = self.pool.readdirplus(
            HandleId(io.handle),
            io.offset,
            |name| out.borrow().fits(name.len()),
            |entry, node| {
                if control::hides(dir, entry.name) {
                    hidden = node.map(|node| node.node);
                    return;
                }
                // Without a node the kernel just learns the name.
                let head = node.as_ref().map_or_else(EntryOut::default, |node| convert::entry(node, terms));
                given.extend(node.map(|node| node.node));
                let full =
                    out.borrow_mut().push(&head, entry.ino, entry.next, u32::from(entry.kind), entry.name);
                debug_assert!(!full, "there was room for it");
            },
        );
        let out = out.into_inner();
        if let Some(node) = hidden {
            self.pool.forget(node, 1);
        }
        match listed {
            Ok(()) => out.finish(),
            Err(error) => {
                for node in given {
                    self.pool.forget(node, 1);
                }
                out.error(number(error))
            }
        }
    }
}

/// Does the kernel remember a name by the answer?
fn gives_names(op: &Op<'_>) -> bool {
    matches!(
        op,
        Op::Lookup { .. }
            | Op::Readdirplus(_)
            | Op::Create(_)
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Symlink { .. }
            | Op::Link { .. }
            | Op::Rename { .. }
    )
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
