//! Requests over io_uring (Linux 6.14): one system call hands over an answer and takes the next request.
//!
//! The kernel has a queue for every processor and puts a request into that of the processor its caller runs on. Each
//! queue has several workers, and each worker a ring of its own with one entry: a request goes only to an entry whose
//! worker is idle, so one that waits for a sleeping disk holds up nobody while another is left. FORGET, INTERRUPT and
//! notifications stay on `/dev/fuse`.

mod params;

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use canopy_sys::fuse_uring::{Entry, HEADER, Parked};
use canopy_sys::page_buf::PageBuf;
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use rustix::param::page_size;
use zerocopy::FromBytes;

pub(super) use params::pin;
pub use params::{Parameter, online_cpus, turn_on};

use super::workers::Post;
use super::{Crew, Handler, Out, Outcome, Recruited, Recruiting, WorkerEnd, give_back, serve, write_header};
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
    /// The server did not ask for it.
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
        let (queues, online) = (params::possible_cpus(), online_cpus());
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

    /// Starts a thread for each entry, numbered from 1, and returns once the kernel has them all. `lines` gets what is needed to
    /// start more, for each queue. Should that fail, the kernel goes on over `/dev/fuse`, and the threads that had been
    /// started end with the connection.
    ///
    /// The kernel sends requests as soon as every queue has an entry, and a request that found none idle is given to
    /// an entry that comes free, but not to one that joins. So the queues are filled one after the other, and no
    /// worker of the last begins to serve (and perhaps to wait for another) before all have joined.
    pub(crate) fn start<H: Handler>(
        self,
        device: &Arc<OwnedFd>,
        handler: &Arc<H>,
        dialect: Dialect,
        crew: &Arc<Crew>,
        threads: &mut Vec<JoinHandle<WorkerEnd>>,
        lines: &mut Vec<Recruiting>,
    ) -> Result<(), NoUring> {
        let queues: Vec<Queue<H>> = (0..self.queues)
            .map(|number| Queue {
                number,
                payload: self.payload,
                device: Arc::clone(device),
                handler: Arc::clone(handler),
                dialect,
                parked: Arc::default(),
            })
            .collect();
        let last = self.queues - 1;
        let mut begun = false;
        let gate = Arc::new(RwLock::new(()));
        let closed = gate.write();
        let mut failure = None;
        for (number, (queue, entry)) in self.entries.into_iter().enumerate() {
            let post = crew.post(1 + usize::from(queue));
            let joins = Joins::First(Arc::clone(&gate));
            // One by one: what the kernel refuses the first, it refuses all.
            let joined = match queues[usize::from(queue)].start(entry, joins, 1 + number, post) {
                Ok((thread, joined)) => {
                    threads.push(thread);
                    // If it has not said so, it has panicked.
                    joined.recv().unwrap_or(Err(NoUring::Resources(Errno::CANCELED)))
                }
                Err(error) => Err(NoUring::Resources(errno(&error))),
            };
            match joined {
                Ok(()) => begun = queue == last,
                Err(why) => {
                    failure = Some(why);
                    break;
                }
            }
        }
        drop(closed);
        match failure {
            Some(why) if !begun => {
                give_up(device, self.payload);
                return Err(why);
            }
            Some(why) => tracing::warn!("requests over io_uring by {} workers only ({why})", threads.len()),
            None => {}
        }
        lines.extend(queues.into_iter().map(Queue::recruiting));
        Ok(())
    }
}

/// What the workers of a queue share, those that come later too.
struct Queue<H: Handler> {
    number: u16,
    /// Given to the kernel, in bytes.
    payload: usize,
    device: Arc<OwnedFd>,
    handler: Arc<H>,
    dialect: Dialect,
    /// Entries whose workers have left.
    parked: Arc<Mutex<Vec<Parked>>>,
}

/// How joining a queue went.
type Joined = Result<(), NoUring>;

/// How a worker comes to its queue.
enum Joins {
    /// With all others, and serves once the gate opens.
    First(Arc<RwLock<()>>),
    /// With one more entry.
    Later,
    /// With the entry of one that has left: by its commit id.
    Again(u64),
}

impl<H: Handler> Queue<H> {
    /// Starts a worker, who reports how joining the queue went.
    fn start(
        &self,
        entry: Entry,
        joins: Joins,
        number: usize,
        post: Post,
    ) -> std::io::Result<(JoinHandle<WorkerEnd>, Receiver<Joined>)> {
        let (input, aside) = (PageBuf::new(self.payload)?, PageBuf::new(page_size())?);
        let worker = Worker {
            entry,
            queue: self.number,
            payload: self.payload,
            device: Arc::clone(&self.device),
            handler: Arc::clone(&self.handler),
            dialect: self.dialect,
            post,
            parked: Arc::clone(&self.parked),
            input,
            aside,
        };
        let (report, joined) = channel();
        let thread = std::thread::Builder::new()
            .name(format!("canopy-q{}-{number}", self.number))
            .spawn(move || worker.run(number, joins, &report))?;
        Ok((thread, joined))
    }

    fn recruiting(self) -> Recruiting {
        let queue = self.number;
        let start = move |number, post| {
            let unparked = Entry::unpark(&mut self.parked.lock())?;
            let (entry, joins) = match unparked {
                Some((entry, commit_id)) => (entry, Joins::Again(commit_id)),
                None => (Entry::new(self.payload)?, Joins::Later),
            };
            // The kernel gives an entry that is handed over anew what waits, and one that is new none of it.
            let idle = matches!(joins, Joins::Later);
            let (thread, joined) = self.start(entry, joins, number, post)?;
            match joined.recv() {
                Ok(Ok(())) => Ok(Recruited { thread, idle }),
                Ok(Err(why)) => Err(std::io::Error::other(why.to_string())),
                Err(_) => Err(std::io::ErrorKind::BrokenPipe.into()),
            }
        };
        Recruiting { start: Box::new(start), queue: Some(queue), leaves: !params::requests_expire() }
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
    post: Post,
    parked: Arc<Mutex<Vec<Parked>>>,
    /// A request other than WRITE is moved here, out of the way of its answer.
    input: PageBuf,
    /// The few bytes that answer a WRITE, whose data stays where it came.
    aside: PageBuf,
}

/// What came of a request.
enum Served {
    /// Its answer was handed over, with [`Entry::commit`]'s result.
    Committed(Option<Result<(), i32>>),
    /// Nobody waits for an answer, and the worker is to leave with it.
    Kept { commit_id: u64 },
}

impl<H: Handler> Worker<H> {
    /// Joins the queue, reports how that went, and serves until the connection ends or there are too many workers.
    fn run(mut self, number: usize, joins: Joins, report: &Sender<Joined>) -> WorkerEnd {
        // Before the handler's word, which may be that threads stay elsewhere.
        params::pin(self.queue);
        self.handler.thread_start(number);
        let next = match self.join_queue(&joins) {
            Ok(next) => {
                let _ = report.send(Ok(()));
                next
            }
            Err(why) => {
                let _ = report.send(Err(why));
                return WorkerEnd::Disconnected;
            }
        };
        if let Joins::First(gate) = joins {
            drop(gate.read());
        }
        match self.serve_all(next) {
            Ok(commit_id) => {
                let Worker { entry, parked, .. } = self;
                parked.lock().push(entry.park(commit_id));
                WorkerEnd::Dismissed
            }
            Err(end) => {
                self.post.disconnected();
                end
            }
        }
    }

    /// Serves until there is an end to it, or the worker is to leave: then with the commit id of the request that it holds.
    fn serve_all(&mut self, mut next: Option<Result<(), i32>>) -> Result<u64, WorkerEnd> {
        loop {
            let arrived = match next.take() {
                Some(arrived) => arrived,
                None => match self.entry.wait() {
                    Ok(arrived) => arrived,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(failed(errno(&error))),
                },
            };
            if let Err(errno) = arrived {
                return Err(if disconnected(errno) {
                    WorkerEnd::Disconnected
                } else {
                    failed(Errno::from_raw_os_error(errno))
                });
            }
            match self.serve() {
                Ok(Served::Committed(committed)) => next = committed,
                Ok(Served::Kept { commit_id }) => return Ok(commit_id),
                Err(error) => return Err(failed(errno(&error))),
            }
        }
    }

    fn join_queue(&mut self, joins: &Joins) -> Result<Option<Result<(), i32>>, NoUring> {
        self.entry.enable().map_err(|error| NoUring::Resources(errno(&error)))?;
        let device = self.device.as_fd();
        let joined = match *joins {
            Joins::First(_) | Joins::Later => self.entry.register(device, self.queue, self.payload),
            Joins::Again(commit_id) => {
                write_header(&mut self.entry.buffers().0[..OUT_HEADER], 0, 0, commit_id);
                set_payload(self.entry.buffers().0, 0);
                self.entry.resume(device, self.queue, commit_id)
            }
        };
        match joined {
            // Unmounted already: that is no refusal, and the worker will see it.
            Ok(Some(Err(errno))) if !disconnected(errno) => {
                Err(NoUring::Refused(Errno::from_raw_os_error(errno)))
            }
            Ok(next) => Ok(next),
            Err(error) => Err(NoUring::Resources(errno(&error))),
        }
    }

    /// Serves the request in the buffers, and hands over its answer.
    fn serve(&mut self) -> std::io::Result<Served> {
        let _busy = self.post.begin();
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
            Ok((head, _)) if head.opcode() == Some(Opcode::NotifyReply) => {
                if self.post.dismissed() {
                    return Ok(Served::Kept { commit_id });
                }
                Outcome::Silent
            }
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
        committed.map(Served::Committed)
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
