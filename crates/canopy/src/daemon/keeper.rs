//! The keeper of a pool that outlives the process that serves it (`survive`).
//!
//! The keeper is the process that was told to mount. It forks the one that serves, with which it shares the table of
//! descriptors, waits, and forks another when that one dies. It runs nothing that a request could reach, and allocates
//! nothing and has no capability in force while it waits.

use super::handover::{self, Handover};
use super::process;
use super::signals::{self, STOP_ASKED};
use crate::error::Error;
use canopy_server::confine::{self, Resting};
use canopy_server::survival::{Refusal, Survival};
use canopy_server::{takeover, test_switches};
use canopy_sys::process::{Child, Ended, Event, Forked, Forker, block_signal};
use canopy_sys::shown::Show as _;
use rustix::io::Errno;
use rustix::process::Signal;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::time::{Duration, Instant};

/// Too many deaths within this time end the attempts: what kills the process would kill the next one, too.
const WITHIN: Duration = Duration::from_secs(60);

/// The exit status of a process that has ended with a panic (std::process).
const PANICKED: i32 = 101;

/// How often a process that is dying is looked at.
const LINGER: Duration = Duration::from_millis(1);
/// The threads for which the next process need not wait, because they change nothing on a branch. Those that send
/// notifications and drop names may wait for a client that waits for an answer, and so for the next process, or be at it for
/// 0.1 s; another one closes what a process before has left.
const HARMLESS: [&str; 4] = ["canopy-note", "canopy-inval", "canopy-shrink", "canopy-close"];
/// How long the other threads may take to end. One that waits for a disk which hangs ends later.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the processes do that a keeper starts.
pub trait Server {
    /// Serves the pool until it ends.
    fn serve(&mut self, survival: &Survival) -> Result<(), Error>;

    /// Called in the keeper once its first process serves: prepares what others can do without.
    fn settle(&mut self, survival: &Survival) -> Result<(), Error>;
}

/// Has a pool served by one process after the other. Each returns from here with the result of [`Server::serve`]. The
/// keeper itself exits with the status of the last one.
///
/// `directory`: where this process was when it was told to mount.
pub fn keep(server: impl Server, mountpoint: &Path, directory: PathBuf) -> Result<(), Error> {
    let forker = forker()?;
    let survival =
        Survival::new().map_err(Error::system("cannot share memory with the process that serves"))?;
    // Who keeps the pool alive must not be killed for want of memory. The processes that serve set their own value.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    survival.ledger.record_place(mountpoint, &directory);
    Keeper::new(forker, survival, directory)?.run(server, None)
}

/// Goes on as the keeper of a pool that another program, which was installed in this one's place, has kept in this process.
pub fn keep_on(server: impl Server, survival: Survival, handover: Handover) -> Result<(), Error> {
    Keeper::new(forker()?, survival, handover.directory.clone())?.run(server, Some(handover))
}

fn forker() -> Result<Forker, Error> {
    // Blocked before any other signal is handled: a child has no handler at first.
    block_signal(STOP_ASKED, true);
    signals::catch_meaningless();
    Forker::new().map_err(Error::system("cannot start processes that share descriptors"))
}

struct Keeper {
    forker: Forker,
    /// Not to be dropped in a process that serves: it would close what all of them share.
    survival: ManuallyDrop<Survival>,
    /// What is executed for an upgrade.
    program: PathBuf,
    directory: PathBuf,
    stop_asked: bool,
    deaths: Vec<Option<Instant>>,
}

/// How a process has begun to serve.
enum Start {
    Serves,
    Ended(Ended),
    Late,
}

impl Keeper {
    fn new(forker: Forker, survival: Survival, directory: PathBuf) -> Result<Keeper, Error> {
        // All open files of clients are its own, too. With a lower limit than the process that serves, it and the next one
        // could not even look at /proc.
        process::raise_open_files();
        confine::limit_keeper();
        let program = handover::installed("self").map_err(Error::system("cannot find the own program"))?;
        let (survival, deaths) = (ManuallyDrop::new(survival), vec![None; test_switches::max_deaths()]);
        Ok(Keeper { forker, survival, program, directory, stop_asked: false, deaths })
    }

    /// `handover`: another program has kept the pool before.
    fn run(mut self, mut server: impl Server, mut handover: Option<Handover>) -> Result<(), Error> {
        loop {
            self.survival.ledger.count_start();
            let forked = self.forker.fork().map_err(Error::system("cannot start the process that serves"))?;
            let child = match forked {
                Forked::Child => return server.serve(&self.survival),
                Forked::Parent(child) => child,
            };
            if self.stop_asked {
                // The one before was asked, and has died before it did it.
                child.send(STOP_ASKED);
            }
            let ended = match handover.take() {
                Some(handover) => self.begin(&child, &mut server, &handover),
                None => None,
            };
            let ended = ended.unwrap_or_else(|| self.wait(&child));
            if self.survival.ledger.take_handover() {
                self.upgrade();
                continue;
            }
            let died = matches!(ended, Ended::Killed(_) | Ended::Exited(PANICKED));
            if !died || self.survival.ledger.is_ending() || !self.survival.ledger.is_serving() {
                exit(status_of(ended));
            }
            if self.survival.ledger.has_lost_requests() {
                takeover::report_lost(ended);
                exit(status_of(ended));
            }
            self.survival.ledger.record_death(ended);
            if self.too_many_deaths() {
                tracing::error!(
                    "the process that serves the pool has died {} times within {} s: the mount is dead (the log says \
                     why; canopy umount, then mount it again)",
                    self.deaths.len(),
                    WITHIN.as_secs()
                );
                exit(status_of(ended));
            }
        }
    }

    /// Waits until the first process of this program serves. If it does not, the program before serves again. Returns how
    /// the process has ended, if it has.
    fn begin(&mut self, child: &Child, server: &mut impl Server, handover: &Handover) -> Option<Ended> {
        if let Some(why) = handover.refusal {
            tracing::error!("{why}: this one serves again");
            self.survival.ledger.record_refusal(why);
        }
        let (why, ended) = match self.wait_for_start(child, handover.before.is_some()) {
            Start::Serves => {
                if handover.refusal.is_none() {
                    self.survival.ledger.record_upgrade();
                }
                self.survival.set_program_before(None);
                if let Err(error) = server.settle(&self.survival) {
                    tracing::warn!("{}", error.line());
                }
                return None;
            }
            // There is no other program.
            Start::Ended(ended) if handover.before.is_none() => return Some(ended),
            // What came to it is lost.
            Start::Ended(ended) if self.survival.ledger.has_begun_queues() => return Some(ended),
            Start::Late if handover.before.is_none() => return None,
            Start::Ended(ended) => (Refusal::Ended, ended),
            Start::Late => {
                child.send(Signal::KILL.as_raw());
                (Refusal::Late, self.wait(child))
            }
        };
        tracing::error!("{why}: the program before serves again");
        let error = handover.go_back_from(why, &self.survival, &self.forker);
        tracing::error!("the program before cannot be executed: {error}");
        Some(ended)
    }

    /// `can_go_back`: the process is not to begin any more once it is late.
    fn wait_for_start(&mut self, child: &Child, can_go_back: bool) -> Start {
        let ledger = self.survival.ledger.clone();
        let is_late = || !can_go_back || ledger.refuse_queues();
        let patience = test_switches::upgrade_patience();
        if patience.is_zero() && is_late() {
            // For tests, however fast it is.
            return Start::Late;
        }
        let until = Instant::now() + patience;
        while !self.survival.ledger.is_served() {
            if Instant::now() >= until && is_late() {
                return Start::Late;
            }
            match child.wait(Some(LINGER)) {
                Event::Ended(ended) => return Start::Ended(ended),
                Event::Stop => self.pass_on_stop(child),
                Event::Ending | Event::Timeout => {}
            }
        }
        Start::Serves
    }

    /// Executes the program that was installed since. If that fails, this one goes on.
    fn upgrade(&mut self) {
        if self.stop_asked {
            return;
        }
        let error = handover::hand_over(&self.program, &self.directory, &mut self.survival, &self.forker);
        tracing::error!("{} cannot take over: {error}", self.program.shown());
        let errno = error.raw_os_error().map_or(Errno::IO, canopy_sys::errno::from_raw);
        self.survival.ledger.record_refusal(Refusal::Program(errno));
    }

    fn too_many_deaths(&mut self) -> bool {
        let now = Instant::now();
        self.deaths.rotate_left(1);
        if let Some(last) = self.deaths.last_mut() {
            *last = Some(now);
        }
        self.deaths.first().copied().flatten().is_some_and(|first| now.duration_since(first) < WITHIN)
    }

    fn pass_on_stop(&mut self, child: &Child) {
        self.stop_asked = true;
        child.send(STOP_ASKED);
    }

    /// Waits until the process that serves has ended, but for threads that cannot. Passes on what asks the pool to stop.
    fn wait(&mut self, server: &Child) -> Ended {
        let (mut linger, mut ending_since) = (None, Instant::now());
        let mut resting = Some(Resting::begin());
        loop {
            match server.wait(linger) {
                Event::Ended(ended) => return ended,
                Event::Stop => self.pass_on_stop(server),
                Event::Ending => {
                    // Under hidepid, only who has its capabilities sees the threads of a process.
                    drop(resting.take());
                    (linger, ending_since) = (Some(LINGER), Instant::now());
                }
                // A process that exits by itself may take its time.
                Event::Timeout if self.survival.ledger.is_ending() => {}
                // What a worker still does, the next process must not do again meanwhile.
                Event::Timeout if ending_since.elapsed() < PATIENCE && server.has_threads_but(&HARMLESS) => {}
                Event::Timeout => return server.ending(),
            }
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
