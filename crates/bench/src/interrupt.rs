//! Interruption by a signal. The signal sets a flag, which is checked between measurements, so that all cleanup runs.
//! A server that hangs would block the cleanup, so it is killed after a while.

use crate::error::Error;
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The time that a running measurement has to finish.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pidfds, because a process id may have been reused.
type Servers = Arc<Mutex<Vec<Arc<OwnedFd>>>>;

/// The flag that a signal sets, and the servers to kill if they hang.
pub(crate) struct Interrupt {
    requested: Arc<AtomicBool>,
    servers: Servers,
    handle: Handle,
}

impl Interrupt {
    pub(crate) fn watch() -> Result<Interrupt, Error> {
        let unusable = |why: std::io::Error| Error::Unusable { path: "signals".into(), why: why.to_string() };
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGQUIT, SIGHUP]).map_err(unusable)?;
        let (requested, servers) = (Arc::new(AtomicBool::new(false)), Servers::default());
        let handle = signals.handle();
        let watch = {
            let (requested, servers) = (Arc::clone(&requested), Arc::clone(&servers));
            move || {
                for _ in signals.forever() {
                    let again = requested.swap(true, Ordering::SeqCst);
                    if again {
                        kill(&servers);
                        continue;
                    }
                    let servers = Arc::clone(&servers);
                    thread::spawn(move || {
                        thread::sleep(PATIENCE);
                        kill(&servers);
                    });
                }
            }
        };
        thread::Builder::new().name("signals".into()).spawn(watch).map_err(unusable)?;
        Ok(Interrupt { requested, servers, handle })
    }

    /// Returns an error after a signal.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.requested.load(Ordering::SeqCst) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Registers a server that runs and has not been waited for.
    pub(crate) fn guard(&self, server: Pid) -> std::io::Result<KillGuard> {
        let server = Arc::new(pidfd_open(server, PidfdFlags::empty())?);
        self.servers.lock().push(Arc::clone(&server));
        Ok(KillGuard { servers: Arc::clone(&self.servers), server })
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Kills the servers. Every call that waits for one then fails.
fn kill(servers: &Servers) {
    for server in servers.lock().iter() {
        let _ = pidfd_send_signal(server, Signal::KILL);
    }
}

/// Keeps a server registered; see [`Interrupt::guard`].
pub(crate) struct KillGuard {
    servers: Servers,
    server: Arc<OwnedFd>,
}

impl Drop for KillGuard {
    fn drop(&mut self) {
        self.servers.lock().retain(|server| !Arc::ptr_eq(server, &self.server));
    }
}
