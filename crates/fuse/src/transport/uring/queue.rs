//! The queues of a connection, one for every processor, and the entries that workers bring to them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use canopy_sys::fuse::uring::{Entry, Parked};
use canopy_sys::page_buf::PageBuf;
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use rustix::param::page_size;

use super::cpus;
use super::params::requests_expire;
use super::unavailable::{MIN_PAYLOAD, UringUnavailable};
use super::worker::{Joined, Joins, Worker};
use crate::abi;
use crate::request::Dialect;
use crate::transport::serve::Handler;
use crate::transport::watchdog::{GroupSpawner, Spawned};
use crate::transport::workers::{WorkerEnd, WorkerSlot, Workers};

const MIN_WORKERS: u16 = 2;

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
    pub(crate) fn prepare(
        max_payload: usize,
        max_write: usize,
        workers: u16,
    ) -> Result<Rings, UringUnavailable> {
        // What the kernel demands: fuse_uring_create in fs/fuse/dev_uring.c.
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

    /// Starts a thread for each entry, numbered from 1, and returns once the kernel has them all. `spawners` gets what is needed to
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
        workers: &Arc<Workers>,
        threads: &mut Vec<JoinHandle<WorkerEnd>>,
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
            let joins = Joins::First(Arc::clone(&gate));
            // One by one: what the kernel refuses the first, it refuses all.
            let joined = match queues[usize::from(queue)].start(entry, joins, 1 + number, slot) {
                Ok((thread, joined)) => {
                    threads.push(thread);
                    // If it has not said so, it has panicked.
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
            Some(why) => tracing::warn!("requests over io_uring by {} workers only ({why})", threads.len()),
            None => {}
        }
        spawners.extend(queues.into_iter().map(Queue::spawner));
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

impl<H: Handler> Queue<H> {
    /// Starts a worker, who reports how joining the queue went.
    fn start(
        &self,
        entry: Entry,
        joins: Joins,
        number: usize,
        slot: WorkerSlot,
    ) -> std::io::Result<(JoinHandle<WorkerEnd>, Receiver<Joined>)> {
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
        let thread = std::thread::Builder::new()
            .name(format!("canopy-q{}-{number}", self.number))
            .spawn(move || worker.run(number, joins, &report))?;
        Ok((thread, joined))
    }

    fn spawner(self) -> GroupSpawner {
        let queue = self.number;
        let spawn = move |number, slot| {
            let unparked = Entry::unpark(&mut self.parked.lock())?;
            let (entry, joins) = match unparked {
                Some((entry, commit_id)) => (entry, Joins::Again(commit_id)),
                None => (Entry::new(self.payload)?, Joins::Later),
            };
            // The kernel gives an entry that is handed over anew what waits, and one that is new none of it.
            let needs_poke = matches!(joins, Joins::Later);
            let (thread, joined) = self.start(entry, joins, number, slot)?;
            match joined.recv() {
                Ok(Ok(())) => Ok(Spawned { thread, needs_poke }),
                Ok(Err(why)) => Err(std::io::Error::other(why.to_string())),
                Err(_) => Err(std::io::ErrorKind::BrokenPipe.into()),
            }
        };
        GroupSpawner { spawn: Box::new(spawn), queue: Some(queue), can_leave: !requests_expire() }
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
