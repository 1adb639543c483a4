//! The keeper of a pool that outlives the process that serves it (`survive=true`).
//!
//! The keeper is the process that was told to mount. It forks the one that serves, with which it shares the table of
//! descriptors, waits, and forks another when that one dies. It runs nothing that a request could reach, and allocates
//! nothing while it waits.

use super::signals::STOP_ASKED;
use crate::error::Error;
use canopy_server::survival::Survival;
use canopy_server::test_switches;
use canopy_sys::process::{Child, Ended, Event, Forked, Forker, block_signal};
use std::process::exit;
use std::time::{Duration, Instant};

/// Too many deaths within this time end the attempts: what kills the process would kill the next one, too.
const WITHIN: Duration = Duration::from_secs(60);

/// The exit status of a process that has ended with a panic (std::process).
const PANICKED: i32 = 101;

/// How often a process that is dying is looked at.
const LINGER: Duration = Duration::from_millis(5);
/// The threads that send notifications. One may wait for a client that waits for an answer, and so for the next process.
const NOTIFIERS: &str = "canopy-note";
/// How long the other threads may take to end. One that waits for a disk which hangs ends later.
const PATIENCE: Duration = Duration::from_secs(10);

/// Has a pool served by one process after the other. Each calls `serve`, and returns from here with its result. The
/// keeper itself exits with the status of the last one.
pub fn keep(serve: impl FnOnce(&Survival) -> Result<(), Error>) -> Result<(), Error> {
    let forker = Forker::new().map_err(Error::system("cannot start processes that share descriptors"))?;
    let survival =
        Survival::new().map_err(Error::system("cannot share memory with the process that serves"))?;
    // Who keeps the pool alive must not be killed for want of memory. The processes that serve set their own value.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    block_signal(STOP_ASKED, true);
    let mut stop_asked = false;
    let mut deaths = vec![None; test_switches::max_deaths()];
    loop {
        survival.ledger.count_start();
        let server = match forker.fork().map_err(Error::system("cannot start the process that serves"))? {
            Forked::Child => {
                return serve(&survival);
            }
            Forked::Parent(server) => server,
        };
        if stop_asked {
            // The one before was asked, and has died before it did it.
            server.send(STOP_ASKED);
        }
        let ended = wait(&server, &survival, &mut stop_asked);
        let died = matches!(ended, Ended::Killed(_) | Ended::Exited(PANICKED));
        if !died || survival.ledger.is_ending() || !survival.ledger.is_serving() {
            exit(status_of(ended));
        }
        survival.ledger.record_death(ended);
        let now = Instant::now();
        deaths.rotate_left(1);
        if let Some(last) = deaths.last_mut() {
            *last = Some(now);
        }
        if deaths.first().copied().flatten().is_some_and(|first| now.duration_since(first) < WITHIN) {
            tracing::error!(
                "the process that serves the pool has died {} times within {} s: the mount is dead (the log tells why; \
                 canopy umount, then mount it again)",
                deaths.len(),
                WITHIN.as_secs()
            );
            exit(status_of(ended));
        }
    }
}

/// Waits until the process that serves has ended, but for threads that cannot. Passes on what asks the pool to stop.
fn wait(server: &Child, survival: &Survival, stop_asked: &mut bool) -> Ended {
    let (mut linger, mut ending_since) = (None, Instant::now());
    loop {
        match server.wait(linger) {
            Event::Ended(ended) => return ended,
            Event::Stop => {
                *stop_asked = true;
                server.send(STOP_ASKED);
            }
            Event::Ending => (linger, ending_since) = (Some(LINGER), Instant::now()),
            // A process that exits by itself may take its time.
            Event::Timeout if survival.ledger.is_ending() => {}
            // What a worker still does, the next process must not do again meanwhile.
            Event::Timeout if ending_since.elapsed() < PATIENCE && server.has_threads_but(NOTIFIERS) => {}
            Event::Timeout => return server.ending(),
        }
    }
}

fn status_of(ended: Ended) -> i32 {
    match ended {
        Ended::Exited(status) => status,
        // As shells say it.
        Ended::Killed(signal) => 128 + signal,
    }
}
