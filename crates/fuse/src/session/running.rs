//! The threads of a connection.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use canopy_sys::fuse::dev;

use super::error::SessionError;
use super::init::Session;
use crate::backing::Backing;
use crate::negotiate::Agreed;
use crate::notify::Notifier;
use crate::transport::uring::Rings;
use crate::transport::{
    DevWorker, FirstRequest, GroupSpawner, Handler, HeldRequest, Landmarks, Spawned, Transport,
    UringUnavailable, Watchdog, Watched, WorkerPriority, WorkerSlot, WorkerThread, Workers, WorkersEnd,
};

/// A connection being served.
pub struct Running {
    /// It has the threads of all workers.
    watchdog: JoinHandle<WorkersEnd>,
    session: Session,
    transport: Transport,
}

impl Session {
    /// Returns the intended transport. The kernel may still refuse it; [`Running::transport`] is the one in use.
    #[must_use]
    pub fn transport(&self) -> Transport {
        transport(&self.rings)
    }

    /// Starts the threads that serve. Over `/dev/fuse` there are `threads` of them (at least one), named `canopy-fuse-N`.
    /// Each has a clone of the device, or shares this one if it cannot be cloned. Over io_uring there is one such thread
    /// and [`queue_workers`](crate::SessionOptions::queue_workers) threads per queue, named `canopy-qN-M`. The session
    /// starts more while these are blocked ([`WorkerGrowth`](crate::transport::WorkerGrowth)).
    ///
    /// # Errors
    /// [`SessionError::Start`]. Threads that were already started end with the connection.
    pub fn serve<H: Handler>(mut self, handler: Arc<H>, threads: usize) -> Result<Running, SessionError> {
        let rings = std::mem::replace(&mut self.rings, Err(UringUnavailable::NotWanted));
        let mut started = Vec::new();
        let over_uring = Arc::new(AtomicBool::new(false));
        let queues = rings.as_ref().map_or(0, Rings::queues);
        let groups = 1 + usize::from(queues);
        let workers = Workers::new(self.growth, self.agreed.max_payload(), groups, Arc::clone(&self.pause));
        self.pause.set_workers(&workers);
        self.served.set(&workers);
        self.lines.set(&workers);
        if let Some(call) = self.thread_start.take() {
            workers.set_thread_start(call);
        }
        // The first thread reads FORGET and INTERRUPT with either transport.
        started.push(self.device_worker(&handler, 0, &over_uring, workers.slot(0))?);
        let mut transport = transport(&rings);
        let dialect = self.agreed.dialect();
        let mut spawners = Vec::new();
        let adopted = self.adopted.filter(|_| rings.is_ok());
        let queues_started = rings.and_then(|rings| {
            rings.start(
                &self.device,
                &handler,
                dialect,
                &workers,
                (adopted.is_some(), &mut started),
                &mut spawners,
            )
        });
        if let Err(why) = queues_started {
            if adopted.is_some() {
                // Nothing arrives at /dev/fuse any more.
                return Err(SessionError::Start(std::io::Error::other(why.to_string())));
            }
            for number in 1..threads.max(1) {
                started.push(self.device_worker(&handler, number, &over_uring, workers.slot(0))?);
            }
            transport = Transport::Device(why);
        }
        over_uring.store(matches!(transport, Transport::Uring { .. }), Ordering::Relaxed);
        let starter = self.starter();
        let device = GroupSpawner {
            spawn: {
                let (handler, over_uring) = (Arc::clone(&handler), Arc::clone(&over_uring));
                Box::new(move |number, slot, first| {
                    let worker = starter.start(&handler, number, &over_uring, slot, first)?;
                    Ok(Spawned { worker, needs_poke: false })
                })
            },
            queue: None,
            seize: None,
            can_leave: true,
        };
        spawners.insert(0, device);
        // A thread that is being killed needs processor time to end, and the next process waits for that.
        let keep = self.resident && matches!(transport, Transport::Device(_));
        let low = (self.priority == WorkerPriority::Auto && !keep).then(|| self.low.clone());
        let landmarks = self.landmarks.take().unwrap_or_else(|| Box::new(Landmarks::default));
        let watched = Watched { workers: &workers, device: &self.device, handler: &handler };
        let watchdog = Watchdog::start(watched, spawners, started, landmarks, low, adopted);
        let watchdog = watchdog.map_err(SessionError::Start)?;
        Ok(Running { watchdog, session: self, transport })
    }

    fn device_worker<H: Handler>(
        &self,
        handler: &Arc<H>,
        number: usize,
        over_uring: &Arc<AtomicBool>,
        slot: WorkerSlot,
    ) -> Result<WorkerThread, SessionError> {
        self.starter().start(handler, number, over_uring, slot, &mut None).map_err(SessionError::Start)
    }

    fn starter(&self) -> Starter {
        Starter { device: Arc::clone(&self.device), agreed: self.agreed, resident: self.resident }
    }
}

/// Starts workers that read `/dev/fuse`.
struct Starter {
    device: Arc<OwnedFd>,
    agreed: Agreed,
    resident: bool,
}

impl Starter {
    /// Starts a worker, which serves `first` at first. If that fails, `first` stays.
    fn start<H: Handler>(
        &self,
        handler: &Arc<H>,
        number: usize,
        over_uring: &Arc<AtomicBool>,
        slot: WorkerSlot,
        first: &mut Option<FirstRequest>,
    ) -> std::io::Result<WorkerThread> {
        let (max_write, payload) = (self.agreed.max_write as usize, self.agreed.max_payload());
        let device = match first {
            Some(FirstRequest { held: HeldRequest::Message(device, _), .. }) => Arc::clone(device),
            _ => self.device_for(number),
        };
        let (handler, over_uring, state) = (Arc::clone(handler), Arc::clone(over_uring), slot.state());
        let worker =
            DevWorker::new(device, handler, self.agreed.dialect(), max_write, payload, over_uring, slot)?;
        let resident = self.resident;
        let name = format!("canopy-fuse-{number}");
        let run = move |(mut worker, first): (DevWorker<H>, _)| {
            if resident {
                worker.populate();
            }
            worker.run(number, first)
        };
        WorkerThread::start(name, state, (worker, first.take()), run).map_err(|((_, kept), error)| {
            *first = kept;
            error
        })
    }

    fn device_for(&self, number: usize) -> Arc<OwnedFd> {
        if number == 0 {
            return Arc::clone(&self.device);
        }
        match dev::clone(self.device.as_fd()) {
            Ok(clone) => Arc::new(clone),
            Err(error) => {
                tracing::warn!(%error, number, "cannot clone the FUSE device; sharing it");
                Arc::clone(&self.device)
            }
        }
    }
}

fn transport(rings: &Result<Rings, UringUnavailable>) -> Transport {
    match rings {
        Ok(rings) => Transport::Uring { queues: rings.queues(), workers: rings.entries() },
        Err(why) => Transport::Device(why.clone()),
    }
}

impl Running {
    /// Returns the result of the negotiation.
    #[must_use]
    pub fn agreed(&self) -> &Agreed {
        &self.session.agreed
    }

    /// Returns the transport in use.
    #[must_use]
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Returns a notifier, which invalidates what the kernel caches.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.session.notifier()
    }

    /// Returns the registry of backing files for passthrough.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.session.backing()
    }

    /// Waits until the connection has ended and every thread has returned, except for those that are stuck in requests that
    /// were answered in their place.
    ///
    /// # Errors
    /// [`SessionError::Read`] or [`SessionError::Thread`] if a thread has ended for another reason.
    pub fn join(self) -> Result<(), SessionError> {
        // The watchdog stops starting workers when the first one ends, except for dismissed workers.
        let ends = self.watchdog.join().map_err(|_| SessionError::Thread)?;
        match ends {
            WorkersEnd { panicked: true, .. } => Err(SessionError::Thread),
            WorkersEnd { failed: Some(errno), .. } => Err(SessionError::Read(errno)),
            WorkersEnd { failed: None, panicked: false } => Ok(()),
        }
    }
}
