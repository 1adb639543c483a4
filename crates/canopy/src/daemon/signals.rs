//! Ends a pool when a signal arrives.

use crate::error::Error;
use crate::mount::unmount;
use canopy_fuse::mount::sync_served;
use canopy_server::survival::Ledger;
use canopy_server::systemd;
use canopy_sys::mountinfo;
use canopy_sys::process::{block_signal, catch_signals};
use canopy_sys::shown::Show as _;
use rustix::process::Signal;
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::iterator::Signals;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How long programs that still use the pool have to finish.
const GRACE: Duration = Duration::from_secs(5);

/// How long the process outlives its pool, so that who waits for it usually finds the unmount complete.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(1);

const STOP_SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGQUIT];

/// Signals that have no meaning here, but would end the process by default and leave a dead mount. For SIGXFSZ, the
/// write fails as well. They are caught rather than ignored, because child processes would inherit ignored signals.
/// Signals of faults (SIGSEGV, SIGABRT, SIGTRAP and so on) keep their default, so that they still dump core.
const IGNORED_SIGNALS: [i32; 11] = [
    SIGHUP,
    SIGUSR1,
    SIGUSR2,
    SIGXFSZ,
    SIGALRM,
    SIGVTALRM,
    SIGPROF,
    SIGXCPU,
    SIGIO,
    Signal::POWER.as_raw(),
    STKFLT,
];
/// `SIGSTKFLT` (signal(7)). On some architectures this is another signal, for which the same holds.
const STKFLT: i32 = 16;
/// What a keeper sends when it was asked to stop. Where both were asked (a Ctrl-C in a terminal, systemd), that counts
/// once.
pub const STOP_ASKED: i32 = 40;
/// The real-time signals that C libraries leave to programs (signal(7)).
const REAL_TIME: RangeInclusive<i32> = 34..=64;

/// Has this process survive signals that have no meaning here.
pub fn catch_meaningless() {
    catch_signals(IGNORED_SIGNALS.into_iter().chain(REAL_TIME));
}

/// The mount of the pool. Its device identifies it if another mount covers it later.
#[derive(Clone, Debug)]
pub struct PoolMount {
    pub mountpoint: PathBuf,
    pub device: Option<(u32, u32)>,
    /// Where to tell that no other process is to take over.
    pub ledger: Option<Ledger>,
}

/// Whether the pool is being unmounted because of a signal.
#[derive(Clone, Default)]
pub struct Ending(Arc<(Mutex<bool>, Condvar)>);

impl Ending {
    fn set(&self, unmounting: bool) {
        let (state, changed) = &*self.0;
        *state.lock().unwrap_or_else(PoisonError::into_inner) = unmounting;
        changed.notify_all();
    }

    /// Waits a moment for an unmount that has begun. The kernel may complete it only after this process has ended.
    pub fn wait_for_unmount(&self) {
        let (state, changed) = &*self.0;
        let unmounting = state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(changed.wait_timeout_while(unmounting, UNMOUNT_PATIENCE, |unmounting| *unmounting));
    }
}

/// Catches signals from its creation on. It is created early, because a signal during the start must not end the process
/// between the mount and the first request.
pub struct SignalWatch {
    signals: Signals,
}

impl SignalWatch {
    pub fn new() -> Result<SignalWatch, Error> {
        catch_meaningless();
        let watched = STOP_SIGNALS.into_iter().chain([STOP_ASKED]);
        let signals = Signals::new(watched).map_err(Error::system("cannot watch for signals"))?;
        // A keeper has blocked it until there is a handler.
        block_signal(STOP_ASKED, false);
        Ok(SignalWatch { signals })
    }

    /// Starts a thread that ends the pool at the first SIGINT, SIGTERM or SIGQUIT, and the process at the second.
    pub fn run(mut self, pool: PoolMount) -> Result<Ending, Error> {
        let state = Ending::default();
        let shared = state.clone();
        let watch = move || {
            let (mut asked, mut asked_keeper) = (0, 0);
            for signal in self.signals.forever() {
                // The keeper does not say by which signal.
                let name = signal_hook::low_level::signal_name(signal).unwrap_or("asked to stop");
                match signal {
                    SIGINT | SIGTERM | SIGQUIT => asked += 1,
                    STOP_ASKED if pool.ledger.is_some() => asked_keeper += 1,
                    _ => continue,
                }
                if let Some(ledger) = &pool.ledger {
                    ledger.record_end();
                }
                match (asked, asked_keeper) {
                    (2.., _) | (_, 2..) => {
                        tracing::warn!("{name} again: exiting without waiting");
                        std::process::exit(0);
                    }
                    (1, 1) => {}
                    _ => {
                        tracing::info!("{name}: unmounting {}", pool.mountpoint.shown());
                        let (pool, unmount) = (pool.clone(), shared.clone());
                        // In another thread, so that a second signal works even if this hangs.
                        let stop = thread::Builder::new().name("stop".into());
                        if stop.spawn(move || end(&pool, &unmount)).is_err() {
                            std::process::exit(1);
                        }
                    }
                }
            }
        };
        thread::Builder::new()
            .name("signals".into())
            .spawn(watch)
            .map(|_| state)
            .map_err(Error::system("cannot start the signal thread"))
    }
}

/// Unmounts, which ends the session and then the process. If that takes too long, exits.
fn end(pool: &PoolMount, ending: &Ending) {
    systemd::notify(&["STOPPING=1"]);
    let path = &pool.mountpoint;
    let there = mountinfo::at(path).ok().flatten();
    if pool.device.is_some() && there.as_ref().map(|mounted| mounted.device) != pool.device {
        match there {
            Some(_) => {
                tracing::warn!("another mount covers {}: this pool exits without unmounting", path.shown())
            }
            None => tracing::info!("{} was unmounted already", path.shown()),
        }
        thread::sleep(GRACE);
        std::process::exit(0);
    }
    // The dirty pages of the pool reach the branches.
    if let Err(error) = sync_served(path) {
        tracing::debug!("syncfs of {}: {error}", path.shown());
    }
    ending.set(true);
    match unmount::unmount_own(path, false) {
        Ok(()) => tracing::info!("{} unmounted", path.shown()),
        Err(Error::Busy(_)) => {
            tracing::warn!(
                "{} is in use: it is detached now, and ends in {} s or at a second signal",
                path.shown(),
                GRACE.as_secs()
            );
            if let Err(error) = unmount::unmount_own(path, true) {
                tracing::error!("{}", error.line());
            }
        }
        // It has been unmounted meanwhile.
        Err(Error::NotMounted(_)) => {}
        Err(error) => tracing::error!("{}", error.line()),
    }
    ending.set(false);
    thread::sleep(GRACE);
    tracing::warn!("exiting while the pool is still in use");
    std::process::exit(0);
}
