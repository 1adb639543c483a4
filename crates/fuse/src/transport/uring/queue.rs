//! The queues of a connection, one for every processor, and the entries of their workers.

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
    /// end with the connection.
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
        threads: &mut Vec<WorkerThread>,
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
                Err(error) => Err(UringUnavailable::resources(&error)),
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

impl<H: Handler> Queue<H> {
    /// Starts a worker. It sends the result of joining the queue to the receiver.
    fn start(
        &self,
        entry: Entry,
        mode: JoinMode,
        number: usize,
        slot: WorkerSlot,
    ) -> std::io::Result<(WorkerThread, Receiver<Joined>)> {
        let seat = slot.seat();
        let (input, aside) = (PageBuf::new(self.payload)?, PageBuf::new(page_size())?);
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
        };
        let (report, joined) = channel();
        let name = format!("canopy-q{}-{number}", self.number);
        let thread = WorkerThread::start(name, seat, move || worker.run(number, mode, &report))?;
        Ok((thread, joined))
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
        let spawn = move |number, slot| {
            let unparked = Entry::unpark(&mut self.parked.lock(), self.payload)?;
            // The kernel passes waiting requests to an entry that commits a reply, but not to a new one.
            let needs_poke = unparked.is_none();
            let (entry, mode) = match unparked {
                Some((entry, window, errno)) => (entry, JoinMode::Parked(window, errno)),
                None => (Entry::new(self.payload)?, JoinMode::Extra),
            };
            let (worker, joined) = self.start(entry, mode, number, slot)?;
            match joined.recv() {
                Ok(Ok(())) => Ok(Spawned { worker, needs_poke }),
                Ok(Err(why)) => Err(std::io::Error::other(why.to_string())),
                Err(_) => Err(std::io::ErrorKind::BrokenPipe.into()),
            }
        };
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
