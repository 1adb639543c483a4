//! Stopping by a signal: SIGINT (Ctrl-C), SIGTERM and SIGHUP.

use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a sleep goes on after a signal at most.
const NAP: Duration = Duration::from_millis(50);

/// Whether a signal has arrived. A move that the daemon makes ends with it: the kernel interrupts the ioctl.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn on_signals() -> Result<Stop> {
        let set = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&set))
                .map_err(|why| Error::System { what: "cannot wait for signals", why })?;
        }
        Ok(Stop(set))
    }

    /// One that no signal sets.
    #[cfg(test)]
    pub(crate) fn never() -> Stop {
        Stop(Arc::default())
    }

    #[cfg(test)]
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.is_set() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Reads a line from standard input, until a signal arrives.
    pub(crate) fn line(&self) -> Option<String> {
        let stdin = std::io::stdin();
        let mut line = Vec::new();
        // Byte by byte: nothing may wait in a buffer, where poll does not see it.
        while !self.is_set() {
            let nap = Timespec { tv_sec: 0, tv_nsec: i64::from(NAP.subsec_nanos()) };
            match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&nap)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(_) => return None,
            }
            let mut byte = [0];
            match rustix::io::read(&stdin, &mut byte) {
                Ok(0) if line.is_empty() => return None,
                Ok(0) => return String::from_utf8(line).ok(),
                Ok(_) if byte == *b"\n" => return String::from_utf8(line).ok(),
                Ok(_) => line.extend(byte),
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        None
    }

    /// Sleeps until then, or until a signal arrives.
    pub(crate) fn sleep_until(&self, until: Instant) {
        while !self.is_set() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(NAP));
        }
    }
}
