//! Requests over io_uring (Linux 6.14): one system call hands over an answer and takes the next request.
//!
//! The kernel has a queue for every processor and puts a request into that of the processor its caller runs on. Each
//! queue has several workers, and each worker a ring of its own with one entry: a request goes only to an entry whose
//! worker is idle, so one that waits for a sleeping disk holds up nobody while another is left. FORGET, INTERRUPT and
//! notifications stay on `/dev/fuse`.

mod machine;

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use canopy_sys::buf::PageBuf;
use canopy_sys::uring::{Entry, HEADER};
use parking_lot::RwLock;
use rustix::io::Errno;
use rustix::param::page_size;
use zerocopy::FromBytes;

pub use machine::{Parameter, online_cpus, turn_on};

use super::{Handler, Out, Outcome, WorkerEnd, give_back, serve, write_header};
use crate::abi;
use crate::opcode::Opcode;
use crate::request::{Dialect, Header, Malformed, Request};
use crate::session::Agreed;

const OUT_HEADER: usize = size_of::<abi::OutHeader>();
/// Where the parts of `fuse_uring_req_header` begin.
const OP_IN: usize = 128;
const ENT: usize = 256;
/// What one message must be able to carry: the largest value of an extended attribute (`XATTR_SIZE_MAX`), and its name.
const LEAST: usize = 65_536 + 4096;
const LEAST_WORKERS: u16 = 2;

/// Why a connection is not served over io_uring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoUring {
    NotWanted,
    /// `fuse.enable_uring` is off.
    TurnedOff,
    /// Linux before 6.14, or built without it.
    NotOffered,
    /// Messages of so few bytes cannot carry every request.
    SmallMessages(usize),
    /// io_uring_setup(2), memory or a thread was refused.
    Resources(Errno),
    /// The kernel did not take the entries.
    Refused(Errno),
}

impl fmt::Display for NoUring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoUring::NotWanted => write!(f, "io_uring is not wanted"),
            NoUring::TurnedOff => write!(f, "no io_uring: the module parameter fuse.enable_uring is off"),
            NoUring::NotOffered => {
                write!(f, "no io_uring: the kernel does not offer it (it needs Linux 6.14)")
            }
            NoUring::SmallMessages(bytes) => {
                write!(f, "no io_uring: messages of {bytes} bytes are too small for it ({LEAST} are not)")
            }
            NoUring::Resources(Errno::PERM) => {
                write!(f, "no io_uring: not permitted (kernel.io_uring_disabled, or a seccomp filter)")
            }
            NoUring::Resources(errno) => write!(f, "no io_uring: cannot set it up: {errno}"),
            NoUring::Refused(errno) => write!(f, "no io_uring: the kernel refused the queues: {errno}"),
        }
    }
}

/// Everything that can fail before the kernel is told that io_uring will be used: from then on it lets nobody ask
/// anything until all queues are there.
pub(crate) struct Rings {
    /// Each with its queue, in order.
    entries: Vec<(u16, Entry)>,
    queues: u16,
    payload: usize,
}

impl Rings {
    /// Makes `workers` entries for every queue. It is two at least: a request may lead to another on its processor,
    /// and queues of processors that do not run have no more than that.
    pub(crate) fn prepare(agreed: &Agreed, workers: u16) -> Result<Rings, NoUring> {
        // What the kernel demands: fuse_uring_create in fs/fuse/dev_uring.c.
        let payload = agreed.max_payload().max(agreed.max_write as usize).max(abi::MIN_READ_BUFFER);
        if payload < LEAST {
            return Err(NoUring::SmallMessages(payload));
        }
        let (queues, online) = (machine::possible_cpus(), online_cpus());
        let mut entries = Vec::new();
        for queue in 0..queues {
            let workers = if online.contains(&queue) { workers.max(LEAST_WORKERS) } else { LEAST_WORKERS };
            for _ in 0..workers {
                let entry = Entry::new(payload).map_err(|error| NoUring::Resources(errno(&error)))?;
                entries.push((queue, entry));
            }
        }
        Ok(Rings { entries, queues, payload })
    }

    /// Makes the kernel refuse them: the buffers seem too small.
    pub(crate) fn spoil(&mut self) {
        self.payload = 1;
    }

    pub(crate) fn queues(&self) -> u16 {
        self.queues
    }

    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Starts a thread for each entry, numbered from `first`, and returns once the kernel has them all. Should that
    /// fail, the kernel goes on over `/dev/fuse`, and the threads that had been started end with the connection.
    ///
    /// The kernel sends requests as soon as every queue has an entry, and a request that found none idle is given to
    /// an entry that comes free, but not to one that joins. So the queues are filled one after the other, and no
    /// worker of the last begins to serve (and perhaps to wait for another) before all have joined.
    pub(crate) fn start<H: Handler>(
        self,
        device: &Arc<OwnedFd>,
        handler: &Arc<H>,
        dialect: Dialect,
        first: usize,
        threads: &mut Vec<JoinHandle<WorkerEnd>>,
    ) -> Result<(), NoUring> {
        let last = self.queues - 1;
        let mut begun = false;
        let gate = Arc::new(RwLock::new(()));
        let closed = gate.write();
        let mut failure = None;
        for (number, (queue, entry)) in self.entries.into_iter().enumerate() {
            let worker =
                Worker::new(entry, queue, self.payload, Arc::clone(device), Arc::clone(handler), dialect);
            let (report, joined) = channel();
            let gate = Arc::clone(&gate);
            let started = worker.and_then(|worker| {
                std::thread::Builder::new()
                    .name(format!("canopy-q{queue}-{number}"))
                    .spawn(move || worker.run(first + number, &report, &gate))
            });
            match started {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    failure = Some(NoUring::Resources(errno(&error)));
                    break;
                }
            }
            // One by one: what the kernel refuses the first, it refuses all.
            match joined.recv() {
                Ok(Ok(())) => begun = queue == last,
                Ok(Err(why)) => {
                    failure = Some(why);
                    break;
                }
                // It panicked.
                Err(_) => {
                    failure = Some(NoUring::Resources(Errno::CANCELED));
                    break;
                }
            }
        }
        drop(closed);
        let Some(why) = failure else { return Ok(()) };
        if begun {
            tracing::warn!("requests over io_uring by {} workers only ({why})", threads.len());
            return Ok(());
        }
        give_up(device, self.payload);
        Err(why)
    }
}

/// Makes the kernel stop waiting for the queues, and use `/dev/fuse`: it does as soon as it has refused an entry, so it
/// is offered one that it must refuse.
fn give_up(device: &OwnedFd, payload: usize) {
    let refused = Entry::new(payload).and_then(|mut entry| {
        entry.enable()?;
        entry.register(device.as_fd(), 0, 0)
    });
    if !matches!(refused, Ok(Some(Err(_)))) {
        tracing::error!(?refused, "cannot tell the kernel to do without io_uring");
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::NOMEM)
}

/// A thread, its entry, and what serving needs.
struct Worker<H: Handler> {
    entry: Entry,
    queue: u16,
    /// Given to the kernel, in bytes.
    payload: usize,
    device: Arc<OwnedFd>,
    handler: Arc<H>,
    dialect: Dialect,
    /// A request other than WRITE is moved here, out of the way of its answer.
    input: PageBuf,
    /// The few bytes that answer a WRITE, whose data stays where it came.
    aside: PageBuf,
}

impl<H: Handler> Worker<H> {
    fn new(
        entry: Entry,
        queue: u16,
        payload: usize,
        device: Arc<OwnedFd>,
        handler: Arc<H>,
        dialect: Dialect,
    ) -> std::io::Result<Worker<H>> {
        let (input, aside) = (PageBuf::new(payload)?, PageBuf::new(page_size())?);
        Ok(Worker { entry, queue, payload, device, handler, dialect, input, aside })
    }

    /// Joins the queue, reports how that went, and serves from when the gate opens until the connection ends.
    fn run(mut self, number: usize, report: &Sender<Result<(), NoUring>>, gate: &RwLock<()>) -> WorkerEnd {
        // Before the handler's word, which may be that threads stay elsewhere.
        machine::pin(self.queue);
        self.handler.thread_start(number);
        let mut next = match self.join_queue() {
            Ok(next) => {
                let _ = report.send(Ok(()));
                next
            }
            Err(why) => {
                let _ = report.send(Err(why));
                return WorkerEnd::Disconnected;
            }
        };
        drop(gate.read());
        loop {
            let arrived = match next.take() {
                Some(arrived) => arrived,
                None => match self.entry.wait() {
                    Ok(arrived) => arrived,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    Err(error) => return failed(errno(&error)),
                },
            };
            if let Err(errno) = arrived {
                return if disconnected(errno) {
                    WorkerEnd::Disconnected
                } else {
                    failed(Errno::from_raw_os_error(errno))
                };
            }
            match self.serve() {
                Ok(committed) => next = committed,
                Err(error) => return failed(errno(&error)),
            }
        }
    }

    fn join_queue(&mut self) -> Result<Option<Result<(), i32>>, NoUring> {
        self.entry.enable().map_err(|error| NoUring::Resources(errno(&error)))?;
        match self.entry.register(self.device.as_fd(), self.queue, self.payload) {
            // Unmounted already: that is no refusal, and the worker will see it.
            Ok(Some(Err(errno))) if !disconnected(errno) => {
                Err(NoUring::Refused(Errno::from_raw_os_error(errno)))
            }
            Ok(next) => Ok(next),
            Err(error) => Err(NoUring::Resources(errno(&error))),
        }
    }

    /// Serves the request in the buffers, and hands over its answer. The result is [`Entry::commit`]'s.
    fn serve(&mut self) -> std::io::Result<Option<Result<(), i32>>> {
        let (header, payload) = self.entry.buffers();
        let (in_out, rest) = header.split_at_mut(OP_IN);
        let (op_in, ent) = rest.split_at_mut(ENT - OP_IN);
        let (len, commit_id) = match abi::UringEntInOut::read_from_prefix(ent) {
            Ok((ent, _)) => (ent.payload_sz as usize, ent.commit_id),
            Err(_) => unreachable!("{HEADER} bytes hold all three parts"),
        };
        let mut first = [0; size_of::<abi::InHeader>()];
        first.copy_from_slice(&in_out[..size_of::<abi::InHeader>()]);
        let out = in_out.first_chunk_mut().expect("128 bytes hold a header");
        // What the kernel says of itself is checked as if it came from a stranger.
        let carried = len.min(payload.len());
        let decode = |carried_bytes| {
            let request = Request::decode_split(&first, op_in, carried_bytes, self.dialect);
            if carried < len { Err(Malformed::Length) } else { request }
        };
        let outcome = match Header::decode(&first) {
            Ok((head, _)) if head.opcode() == Some(Opcode::Write) => {
                let out = Out { header: out, payload: &mut self.aside };
                let outcome = serve(head, decode(&payload[..carried]), out, &*self.handler);
                if let Outcome::Answer { payload: len, .. } = outcome {
                    payload[..len].copy_from_slice(&self.aside[..len]);
                }
                outcome
            }
            Ok((head, _)) => {
                let input = &mut self.input[..carried];
                input.copy_from_slice(&payload[..carried]);
                serve(head, decode(input), Out { header: out, payload }, &*self.handler)
            }
            Err(_) => Outcome::Silent,
        };
        let (len, holds) = match outcome {
            Outcome::Answer { payload, holds } => (payload, Some(holds)),
            // Nobody waits for an answer, but the entry has to go back.
            Outcome::Silent => {
                write_header(&mut self.entry.buffers().0[..OUT_HEADER], 0, 0, commit_id);
                (0, None)
            }
        };
        set_payload(self.entry.buffers().0, len);
        let committed = self.entry.commit(self.queue, commit_id);
        if let (Some(holds), Ok(Some(Err(_))) | Err(_)) = (holds, &committed) {
            // What was not taken lies there still.
            give_back(&*self.handler, holds, &self.entry.payload()[..len]);
        }
        committed
    }
}

/// Writes `fuse_uring_ent_in_out.payload_sz`.
fn set_payload(header: &mut [u8; HEADER], len: usize) {
    let at = ENT + std::mem::offset_of!(abi::UringEntInOut, payload_sz);
    header[at..at + 4].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes());
}

/// Whether an entry has ended with its connection. `ENOENT`: the request whose answer was handed over is gone, and
/// nothing else takes it away.
fn disconnected(errno: i32) -> bool {
    let errno = Errno::from_raw_os_error(errno);
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NOENT)
}

fn failed(errno: Errno) -> WorkerEnd {
    tracing::error!(%errno, "io_uring failed");
    WorkerEnd::Failed(errno)
}
