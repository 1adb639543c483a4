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
    DevWorker, GroupSpawner, Handler, Spawned, Transport, UringUnavailable, Watchdog, WorkerEnd, WorkerSlot,
    Workers,
};

/// A connection being served.
pub struct Running {
    threads: Vec<JoinHandle<WorkerEnd>>,
    /// Gives back those that came later.
    watchdog: JoinHandle<Vec<JoinHandle<WorkerEnd>>>,
    session: Session,
    transport: Transport,
}

impl Session {
    /// What is to carry the requests, and why nothing better. Should the kernel refuse it after all, then
    /// [`Running::transport`] tells.
    #[must_use]
    pub fn transport(&self) -> Transport {
        transport(&self.rings)
    }

    /// Starts the threads that serve. Over `/dev/fuse` there are `threads` of them (at least one), named
    /// `canopy-fuse-N`; each has a clone of the device, or shares this one where cloning does not work. Over io_uring
    /// there is one of these, and as many of the queues' as were wished for, named `canopy-qN-M`. More are started while
    /// these wait for something ([`Growth`](crate::transport::Growth)).
    ///
    /// # Errors
    /// [`SessionError::Start`]. Threads that had been started end with the connection.
    pub fn serve<H: Handler>(mut self, handler: Arc<H>, threads: usize) -> Result<Running, SessionError> {
        let rings = std::mem::replace(&mut self.rings, Err(UringUnavailable::NotWanted));
        let mut started = Vec::new();
        let elsewhere = Arc::new(AtomicBool::new(false));
        let queues = rings.as_ref().map_or(0, Rings::queues);
        let workers = Workers::new(self.growth, self.agreed.max_payload(), 1 + usize::from(queues));
        // The first reads FORGET and INTERRUPT in any case.
        started.push(self.device_worker(&handler, 0, &elsewhere, workers.slot(0))?);
        let mut transport = transport(&rings);
        let dialect = self.agreed.dialect();
        let mut spawners = Vec::new();
        let queues_started = rings.and_then(|rings| {
            rings.start(&self.device, &handler, dialect, &workers, &mut started, &mut spawners)
        });
        if let Err(why) = queues_started {
            for number in 1..threads.max(1) {
                started.push(self.device_worker(&handler, number, &elsewhere, workers.slot(0))?);
            }
            transport = Transport::Device(why);
        }
        elsewhere.store(matches!(transport, Transport::Uring { .. }), Ordering::Relaxed);
        let starter = self.starter();
        let device = GroupSpawner {
            spawn: {
                let (handler, elsewhere) = (Arc::clone(&handler), Arc::clone(&elsewhere));
                Box::new(move |number, slot| {
                    let thread = starter.start(&handler, number, &elsewhere, slot)?;
                    Ok(Spawned { thread, needs_poke: false })
                })
            },
            queue: None,
            can_leave: true,
        };
        spawners.insert(0, device);
        let watchdog = Watchdog::start(&workers, &self.device, &handler, spawners, started.len());
        let watchdog = watchdog.map_err(SessionError::Start)?;
        Ok(Running { threads: started, watchdog, session: self, transport })
    }

    fn device_worker<H: Handler>(
        &self,
        handler: &Arc<H>,
        number: usize,
        elsewhere: &Arc<AtomicBool>,
        slot: WorkerSlot,
    ) -> Result<JoinHandle<WorkerEnd>, SessionError> {
        self.starter().start(handler, number, elsewhere, slot).map_err(SessionError::Start)
    }

    fn starter(&self) -> Starter {
        Starter { device: Arc::clone(&self.device), agreed: self.agreed }
    }
}

/// Starts workers of `/dev/fuse`.
struct Starter {
    device: Arc<OwnedFd>,
    agreed: Agreed,
}

impl Starter {
    fn start<H: Handler>(
        &self,
        handler: &Arc<H>,
        number: usize,
        elsewhere: &Arc<AtomicBool>,
        slot: WorkerSlot,
    ) -> std::io::Result<JoinHandle<WorkerEnd>> {
        let (max_write, payload) = (self.agreed.max_write as usize, self.agreed.max_payload());
        let device = self.device_for(number);
        let (handler, elsewhere) = (Arc::clone(handler), Arc::clone(elsewhere));
        let worker =
            DevWorker::new(device, handler, self.agreed.dialect(), max_write, payload, elsewhere, slot)?;
        std::thread::Builder::new().name(format!("canopy-fuse-{number}")).spawn(move || worker.run(number))
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
    /// What kernel and server have agreed upon.
    #[must_use]
    pub fn agreed(&self) -> &Agreed {
        &self.session.agreed
    }

    /// What carries the requests, and why nothing better.
    #[must_use]
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// For telling the kernel what to forget.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.session.notifier()
    }

    /// For registering files that the kernel reads and writes by itself.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.session.backing()
    }

    /// Waits until the kernel has ended the connection and every thread has returned.
    ///
    /// # Errors
    /// When a thread ended for another reason.
    pub fn join(self) -> Result<(), SessionError> {
        let mut result = Ok(());
        let mut wait = |threads: Vec<JoinHandle<WorkerEnd>>| {
            for thread in threads {
                match thread.join() {
                    Ok(WorkerEnd::Disconnected | WorkerEnd::Dismissed) => {}
                    Ok(WorkerEnd::Failed(errno)) => result = Err(SessionError::Read(errno)),
                    Err(_) => result = Err(SessionError::Thread),
                }
            }
        };
        // It ends when the first of them does, but for those that were not needed any more.
        let later = self.watchdog.join();
        wait(self.threads);
        match later {
            Ok(later) => wait(later),
            Err(_) => result = Err(SessionError::Thread),
        }
        result
    }
}
