//! Translates the kernel's operations to the pool's.
//!
//! [`Dispatch::handle`] is the one match over the operations. Their implementations are grouped into `names`,
//! `attributes`, `data` and `directories`.

mod attributes;
mod data;
mod directories;
mod missing;
mod names;
mod replay;
mod wakes;

use crate::coherence::{Coherence, KernelAnswer};
use crate::control::{self, Control};
use crate::interrupts::Interrupts;
use crate::parking;
use crate::survival::in_flight::{Begun, InFlight, Noted};
use crate::translate::convert;
use crate::translate::operation::Operation;
use crate::watch::Watch;
use canopy_base::error::Error;
use canopy_base::ids::{HandleId, NodeId};
use canopy_fuse::request::Header;
use canopy_fuse::{Handler, Op, Replied, Reply, Request, Undelivered};
use canopy_pool::coherence::changes::Change;
use canopy_pool::ops;
use canopy_pool::ops::names::missing::Verdict;
use canopy_pool::{Caller, Pool};
use canopy_sys::thread::ioprio;
use rustix::io::Errno;
use std::sync::Arc;

/// The request handler of one pool.
pub(crate) struct Dispatch {
    pub(crate) pool: Arc<Pool>,
    pub(crate) coherence: Arc<Coherence>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) control: Arc<Control>,
    pub(crate) interrupts: Arc<Interrupts>,
    /// Whether the kernel runs with SELinux.
    pub(crate) selinux: bool,
    /// The requests in flight, if the pool is to outlive this process.
    pub(crate) in_flight: Option<InFlight>,
    /// The kernel knows nodes from a process before this one.
    pub(crate) takes_over: bool,
}

/// A request in progress.
struct Call<'a> {
    /// The node in the request header.
    node: NodeId,
    header: &'a Header,
    answer: KernelAnswer<'a>,
    /// The note of a request that must not be carried out twice.
    noted: Option<Noted<'a>>,
    /// What a process before has begun of this request.
    begun: Option<Begun>,
}

impl Call<'_> {
    fn caller(&self, umask: u32) -> Caller {
        convert::caller(self.header, umask)
    }
}

impl Handler for Dispatch {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        self.interrupts.set_current(&request.header);
        if request.header.node == control::NODE {
            return self.control.answer(&request, reply);
        }
        if let Some(errno) = control::refusal(&request) {
            return reply.error(errno.raw_os_error());
        }
        let operation = Operation::of(&request);
        let _serving = wakes::serve(&request, &operation);
        let (noted, begun) = match self.note(&request, &operation) {
            Ok(noted) => noted,
            Err(error) => return fail(reply, error),
        };
        // Begins before the branches are read, and lives until the answer is given.
        let answer = self.coherence.begin(request.header.pid, operation.locks_directory);
        if operation.carries_data && answer.ttl().proxy_ioprio {
            ioprio::adopt(request.header.pid)
        } else {
            ioprio::reset()
        }
        let node = convert::node(request.header.node);
        let name = wakes::name(&request.op);
        let mut call = Call { node, header: &request.header, answer, noted, begun };
        let replied = match self.judge_missing(&call, &request.op) {
            Verdict::Pass => self.carry_out(&call, request.op, reply),
            Verdict::Refuse(errno) => reply.error(errno.raw_os_error()),
            Verdict::Done => self.removed(&call, reply, Ok(())),
        };
        wakes::tell(&self.pool, node, name.as_deref());
        if replied.is_later() {
            self.waits(&mut call);
            return replied.after(self.interrupts.signal());
        }
        replied
    }

    fn undelivered(&self, what: Undelivered) {
        match what {
            Undelivered::Entry { node } => ops::names::lookup::take_back(&self.pool, convert::node(node)),
            Undelivered::Opened { dir: true, .. } => {}
            Undelivered::Opened { handle, dir: false, .. } => {
                let _ = ops::data::open::release(&self.pool, HandleId(handle));
            }
            Undelivered::Created { node, handle } => {
                let _ = ops::data::open::release(&self.pool, HandleId(handle));
                ops::names::lookup::take_back(&self.pool, convert::node(node));
            }
        }
    }
}

impl Dispatch {
    /// Carries out an operation: the one match over all of them.
    fn carry_out(&self, call: &Call<'_>, op: Op<'_>, reply: Reply<'_>) -> Replied {
        match op {
            Op::Lookup { name } => self.lookup(call, reply, name),
            Op::Forget { nlookup } => {
                ops::names::lookup::forget(&self.pool, call.node, nlookup);
                reply.none()
            }
            Op::BatchForget(items) => {
                for item in items {
                    ops::names::lookup::forget(&self.pool, convert::node(item.node), item.nlookup);
                }
                reply.none()
            }
            Op::Symlink { name, target } => {
                let (caller, new, target) = (call.caller(0), name.as_bytes(), target.to_bytes());
                let made = ops::names::create::symlink(&self.pool, &caller, call.node, new, target);
                self.made(call, reply, name, made)
            }
            Op::Mknod { name, mode, rdev, umask } => self.mknod(call, reply, name, mode, rdev, umask),
            Op::Mkdir { name, mode, umask } => {
                let made = ops::names::create::mkdir(
                    &self.pool,
                    &call.caller(umask),
                    call.node,
                    name.as_bytes(),
                    mode,
                );
                self.made(call, reply, name, made)
            }
            Op::Link { old, name } => {
                let link =
                    if call.begun.is_some() { ops::names::link::link_again } else { ops::names::link::link };
                let made = link(&self.pool, &call.caller(0), convert::node(old), call.node, name.as_bytes());
                self.named(call, reply, name, made)
            }
            Op::Unlink { name } => {
                self.removed(call, reply, ops::names::remove::unlink(&self.pool, call.node, name.as_bytes()))
            }
            Op::Rmdir { name } => {
                self.removed(call, reply, ops::names::remove::rmdir(&self.pool, call.node, name.as_bytes()))
            }
            Op::Rename { name, newdir, newname, flags } => {
                self.rename(call, reply, name, (newdir, newname), flags)
            }
            Op::Create(create) => self.create(call, reply, &create),
            Op::Tmpfile(create) => self.tmpfile(call, reply, &create),
            Op::Readlink => match ops::names::lookup::readlink(&self.pool, call.node) {
                Ok(target) => reply.bytes(&target),
                Err(error) => fail(reply, error),
            },

            Op::Getattr { handle } => self.getattr(call, reply, handle),
            Op::Statx { handle, .. } => self.statx(call, reply, handle),
            Op::Setattr(set) => self.setattr(call, reply, &set),
            Op::Access { mask } => done(reply, ops::names::lookup::access(&self.pool, call.node, mask)),
            Op::Setxattr { name, value, flags, setxattr_flags } => {
                self.setxattr(call, reply, name, value, (flags, setxattr_flags))
            }
            Op::Getxattr { name, size } => self.getxattr(call, reply, name, size),
            Op::Listxattr { size } => self.listxattr(call, reply, size),
            Op::Removexattr { name } => {
                let removed =
                    ops::attrs::xattr::removexattr(&self.pool, &call.caller(0), call.node, name.to_bytes());
                let removed = self.done_before(call, Errno::NODATA, removed);
                done(reply, self.changed(call, removed))
            }
            Op::Ioctl { flags, cmd, data, .. } => self.ioctl(call, reply, flags, cmd, data),
            Op::Statfs => match ops::attrs::statfs::statfs(&self.pool, call.node) {
                Ok(figures) => reply.statfs(&convert::statfs(&figures)),
                Err(error) => fail(reply, error),
            },
            Op::Syncfs => done(reply, ops::data::io::syncfs(&self.pool)),

            Op::Open { flags, open_flags } => self.open(call, reply, flags, open_flags),
            Op::Read(io) => self.read(reply, &io),
            Op::Write(io) => self.write(call, reply, &io),
            Op::Flush { handle, .. } => done(reply, ops::data::open::flush(&self.pool, HandleId(handle))),
            Op::Fsync { handle, datasync } => {
                done(reply, ops::data::io::fsync(&self.pool, HandleId(handle), datasync))
            }
            Op::Release { handle, .. } => done(reply, ops::data::open::release(&self.pool, HandleId(handle))),
            Op::Fallocate { handle, offset, length, mode } => {
                self.fallocate(call, reply, HandleId(handle), mode, (offset, length))
            }
            Op::Lseek { handle, offset, whence } => self.lseek(reply, handle, offset, whence),
            Op::CopyFileRange(copy) => self.copy_file_range(reply, &copy),

            Op::Opendir { .. } => self.opendir(call, reply),
            Op::Readdir(io) => self.readdir(call, reply, &io),
            Op::Readdirplus(io) => self.readdirplus(call, reply, &io),
            Op::Releasedir { .. } => reply.ok(),
            Op::Fsyncdir { datasync, .. } => {
                done(reply, ops::readdir::fsyncdir(&self.pool, call.node, datasync))
            }

            Op::Interrupt { unique } => {
                self.interrupts.record(unique);
                reply.none()
            }
            // Sent once everything else has been answered; the threads end with the connection.
            Op::Destroy => reply.ok(),
            // The kernel keeps locks itself, per node, because INIT does not ask for FUSE_POSIX_LOCKS and
            // FUSE_FLOCK_LOCKS. All names of a file are one node, so locks hold among all users of the pool, without
            // a round trip. The branches do not see them.
            Op::Getlk(_) | Op::Setlk(_) | Op::Setlkw(_) => unsupported(reply),
            // The kernel then treats every file as always ready, like a regular file (fs/fuse/file.c).
            Op::Poll { .. } => unsupported(reply),
            // Block numbers of different disks mean nothing to the callers of FIBMAP, and would be needed to swap
            // onto a pool. The kernel only asks mounts on a block device anyway.
            Op::Bmap { .. } => unsupported(reply),
            // DAX windows belong to virtiofs: they need a shared memory region, which /dev/fuse does not have.
            Op::SetupMapping(_) | Op::RemoveMapping { .. } => unsupported(reply),
            // The session handles these.
            Op::Init(_) | Op::CuseInit(_) | Op::NotifyReply { .. } | Op::Unknown(_) => unsupported(reply),
        }
    }

    /// Tells that a request has changed names in `dirs` and passes its result on.
    fn names_changed<T, const N: usize>(&self, call: &Call<'_>, dirs: [NodeId; N], result: T) -> T {
        // Even if it has failed, perhaps halfway.
        self.watch.note_own_change();
        dirs.into_iter().for_each(|dir| self.coherence.tell_by(call.answer.thread(), Change::Names(dir)));
        result
    }

    /// Tells that a request has changed attributes of its node and passes its result on. For requests whose answer
    /// does not make the kernel reject older attributes in flight.
    fn changed<T>(&self, call: &Call<'_>, result: T) -> T {
        self.watch.note_own_change();
        self.coherence.tell_by(call.answer.thread(), Change::Attributes(call.node));
        result
    }
}

fn number(error: Error) -> i32 {
    error.errno().raw_os_error()
}

fn fail(reply: Reply<'_>, error: Error) -> Replied {
    match error {
        Error::Wait(cause) => reply.later(parking::wait(cause)),
        error => reply.error(number(error)),
    }
}

fn done(reply: Reply<'_>, result: canopy_base::error::Result<()>) -> Replied {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => fail(reply, error),
    }
}

fn unsupported(reply: Reply<'_>) -> Replied {
    fail(reply, Error::Unsupported)
}
