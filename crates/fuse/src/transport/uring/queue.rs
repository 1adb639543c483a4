//! The queues of a connection, one for every processor, and the entries of their workers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use canopy_sys::fuse::uring::{Entry, Parked};
use canopy_sys::page_buf::PageBuf;
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use rustix::param::page_size;

use super::cpus;
use super::params::requests_expire;
use super::unavailable::{MIN_PAYLOAD, UringUnavailable};
use super::worker::{JoinMode, Joined, Worker};
use crate::abi;
use crate::request::Dialect;
use crate::transport::admitted::FirstRequest;
use crate::transport::parked::HeldRequest;
use crate::transport::serve::Handler;
use crate::transport::watchdog::{GroupSpawner, Spawned};
use crate::transport::worker_thread::WorkerThread;
use crate::transport::workers::{WorkerSlot, Workers};

const MIN_WORKERS: u16 = 2;

/// The entries of all queues, created before io_uring is negotiated. From then on the kernel holds back all requests until
/// every queue has an entry, so everything that can fail is done before.
pub(crate) struct Rings {
    /// The entries, each with the number of its queue, in order.
    entries: Vec<(u16, Entry)>,
    queues: u16,
    payload: usize,
}

impl Rings {
    /// Creates `workers` entries for every queue, but at least two, because serving a request may cause another one on the
    /// same processor. Queues of offline processors get two.
    pub(crate) fn prepare(
        max_payload: usize,
        max_write: usize,
        workers: u16,
    ) -> Result<Rings, UringUnavailable> {
        // The kernel requires this size: fuse_uring_create in fs/fuse/dev_uring.c.
        let payload = max_payload.max(max_write).max(abi::MIN_READ_BUFFER);
        if payload < MIN_PAYLOAD {
            return Err(UringUnavailable::SmallMessages(payload));
        }
        let (queues, online) = (cpus::possible(), cpus::online());
        let mut entries = Vec::new();
        for queue in 0..queues {
            let workers = if online.contains(&queue) { workers.max(MIN_WORKERS) } else { MIN_WORKERS };
            for _ in 0..workers {
                let entry = Entry::new(payload).map_err(|error| UringUnavailable::resources(&error))?;
                entries.push((queue, entry));
            }
        }
        Ok(Rings { entries, queues, payload })
    }

    /// Makes the kernel refuse the entries, for tests: it is given a payload that is too small.
    pub(crate) fn spoil(&mut self) {
        self.payload = 1;
    }

    pub(crate) fn queues(&self) -> u16 {
        self.queues
    }

    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Starts a thread for each entry, numbered from 1, and returns once the kernel has accepted all entries. Adds a spawner
    /// for each queue to `spawners`. On failure the kernel falls back to `/dev/fuse`, and threads that were already started
    /// end with the connection. Where the queues were filled before, by another process (`adopted`), there is no way back.
    ///
    /// The kernel sends requests as soon as every queue has an entry. A request that finds no idle entry waits until one
    /// becomes idle, and is not passed to an entry that joins later. So the queues are filled one after the other, and no
    /// worker of the last queue serves, and perhaps waits for another request, before all workers have joined.
    pub(crate) fn start<H: Handler>(
        self,
        device: &Arc<OwnedFd>,
        handler: &Arc<H>,
        dialect: Dialect,
        workers: &Arc<Workers>,
        (adopted, threads): (bool, &mut Vec<WorkerThread>),
        spawners: &mut Vec<GroupSpawner>,
    ) -> Result<(), UringUnavailable> {
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
            let slot = workers.slot(1 + usize::from(queue));
            let mode = JoinMode::Initial(Arc::clone(&gate));
            // One at a time: if the kernel refuses the first entry, it refuses all.
            let joined = match queues[usize::from(queue)].start(entry, mode, 1 + number, slot) {
                Ok((thread, joined)) => {
                    threads.push(thread);
                    // A thread that does not report has panicked.
                    joined.recv().unwrap_or(Err(UringUnavailable::Resources(Errno::CANCELED)))
                }
                Err(not_started) => Err(UringUnavailable::resources(&not_started.error)),
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
                if !adopted {
                    give_up(device, self.payload);
                }
                return Err(why);
            }
            Some(why) => {
                tracing::warn!("requests over io_uring, with only {} workers ({why})", threads.len())
            }
            None => {}
        }
        spawners.extend(queues.into_iter().map(Queue::spawner));
        Ok(())
    }
}

/// What the workers of a queue share.
struct Queue<H: Handler> {
    number: u16,
    /// The payload length that the kernel is given, in bytes.
    payload: usize,
    device: Arc<OwnedFd>,
    handler: Arc<H>,
    dialect: Dialect,
    /// Entries without a worker: of workers that have left, then those that were taken from workers that are stuck.
    parked: Arc<Mutex<Vec<Parked>>>,
}

/// A worker that could not be started.
struct NotStarted {
    entry: Entry,
    mode: JoinMode,
    error: io::Error,
}

impl<H: Handler> Queue<H> {
    /// Starts a worker. It sends the result of joining the queue to the receiver. Where that is not possible, gives back
    /// its entry and how it was to join.
    fn start(
        &self,
        entry: Entry,
        mode: JoinMode,
        number: usize,
        slot: WorkerSlot,
    ) -> Result<(WorkerThread, Receiver<Joined>), Box<NotStarted>> {
        let state = slot.state();
        let buffers = PageBuf::new(self.payload).and_then(|input| Ok((input, PageBuf::new(page_size())?)));
        let (input, aside) = match buffers {
            Ok(buffers) => buffers,
            Err(error) => return Err(Box::new(NotStarted { entry, mode, error })),
        };
        let worker = Worker {
            entry,
            queue: self.number,
            payload: self.payload,
            device: Arc::clone(&self.device),
            handler: Arc::clone(&self.handler),
            dialect: self.dialect,
            slot,
            parked: Arc::clone(&self.parked),
            input,
            aside,
            admitted: None,
        };
        let (report, joined) = channel();
        let name = format!("canopy-q{}-{number}", self.number);
        let run = move |(worker, mode): (Worker<H>, _)| worker.run(number, mode, &report);
        match WorkerThread::start(name, state, (worker, mode), run) {
            Ok(thread) => Ok((thread, joined)),
            Err(((worker, mode), error)) => Err(Box::new(NotStarted { entry: worker.entry, mode, error })),
        }
    }

    /// Starts another worker: for the request that has been in a line, if there is one, else with an entry that others
    /// have left, else with a new one.
    fn start_another(
        &self,
        number: usize,
        slot: WorkerSlot,
        first: &mut Option<FirstRequest>,
    ) -> io::Result<Spawned> {
        let (entry, mode) = match first.take() {
            Some(FirstRequest { held: HeldRequest::Entry(held), admitted }) => match Entry::resume(held) {
                Ok((entry, window)) => (entry, JoinMode::Held(window, admitted)),
                Err((held, error)) => {
                    *first = Some(FirstRequest { held: HeldRequest::Entry(held), admitted });
                    return Err(error);
                }
            },
            other => {
                *first = other;
                match Entry::unpark(&mut self.parked.lock(), self.payload)? {
                    Some((entry, window, errno)) => (entry, JoinMode::Parked(window, errno)),
                    None => (Entry::new(self.payload)?, JoinMode::Extra),
                }
            }
        };
        // The kernel passes waiting requests to an entry that commits a reply, but not to a new one.
        let needs_poke = matches!(mode, JoinMode::Extra);
        let (worker, joined) = match self.start(entry, mode, number, slot) {
            Ok(started) => started,
            Err(not_started) => {
                let NotStarted { entry, mode, error } = *not_started;
                match mode {
                    JoinMode::Held(window, admitted) => {
                        let held = HeldRequest::Entry(entry.hold(window, usize::MAX));
                        *first = Some(FirstRequest { held, admitted });
                    }
                    JoinMode::Parked(window, errno) => self.parked.lock().push(entry.park(window, errno)),
                    JoinMode::Initial(_) | JoinMode::Extra => {}
                }
                return Err(error);
            }
        };
        match joined.recv() {
            Ok(Ok(())) => Ok(Spawned { worker, needs_poke }),
            Ok(Err(why)) => Err(io::Error::other(why.to_string())),
            Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn spawner(self) -> GroupSpawner {
        let queue = self.number;
        let parked = Arc::clone(&self.parked);
        let seize = move |window, errno| match Parked::seize(window, errno) {
            Ok(seized) => {
                parked.lock().push(seized);
                Ok(())
            }
            Err(refused) => Err(refused),
        };
        let spawn = move |number, slot, first: &mut _| self.start_another(number, slot, first);
        GroupSpawner {
            spawn: Box::new(spawn),
            queue: Some(queue),
            seize: Some(Box::new(seize)),
            can_leave: !requests_expire(),
        }
    }
}

/// Makes the kernel stop waiting for the queues and use `/dev/fuse`. It does so once it has refused an entry, so this
/// registers one that it must refuse.
fn give_up(device: &OwnedFd, payload: usize) {
    let refused = Entry::new(payload).and_then(|mut entry| {
        entry.enable()?;
        entry.attach(device.as_fd())?;
        entry.register(0, 0)
    });
    if !matches!(refused, Ok(Some(Err(_)))) {
        tracing::error!(?refused, "cannot make the kernel fall back to /dev/fuse");
    }
}
