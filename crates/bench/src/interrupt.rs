//! Ending early: the signal sets a flag that is looked at between measurements, so that what was made is taken
//! away by whoever made it. A server that hangs would keep that from happening; it is killed after a while.

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

/// How long a measurement has to come to its end.
const PATIENCE: Duration = Duration::from_secs(10);

/// By descriptor: a number may have become another process' meanwhile.
type Servers = Arc<Mutex<Vec<Arc<OwnedFd>>>>;

pub(crate) struct Interrupt {
    asked: Arc<AtomicBool>,
    servers: Servers,
    handle: Handle,
}

impl Interrupt {
    pub(crate) fn watch() -> Result<Interrupt, Error> {
        let unusable = |why: std::io::Error| Error::Unusable { path: "signals".into(), why: why.to_string() };
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGQUIT, SIGHUP]).map_err(unusable)?;
        let (asked, servers) = (Arc::new(AtomicBool::new(false)), Servers::default());
        let handle = signals.handle();
        let watch = {
            let (asked, servers) = (Arc::clone(&asked), Arc::clone(&servers));
            move || {
                for _ in signals.forever() {
                    let again = asked.swap(true, Ordering::SeqCst);
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
        Ok(Interrupt { asked, servers, handle })
    }

    /// An error once somebody wants an end.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.asked.load(Ordering::SeqCst) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// For a server that has been started and not been waited for.
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

/// Every call that waits for a server then fails.
fn kill(servers: &Servers) {
    for server in servers.lock().iter() {
        let _ = pidfd_send_signal(server, Signal::KILL);
    }
}

/// A server that is killed should it keep an interrupted run from ending.
pub(crate) struct KillGuard {
    servers: Servers,
    server: Arc<OwnedFd>,
}

impl Drop for KillGuard {
    fn drop(&mut self) {
        self.servers.lock().retain(|server| !Arc::ptr_eq(server, &self.server));
    }
}
