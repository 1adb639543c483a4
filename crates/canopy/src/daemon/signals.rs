//! How a pool ends when a signal asks for it.

use super::systemd;
use crate::error::Error;
use crate::mount::unmount;
use canopy_sys::mountinfo;
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::iterator::Signals;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// How long those who still use an ended pool have to finish.
const GRACE: Duration = Duration::from_secs(5);

const STOP_SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGQUIT];

/// Signals that mean nothing here, and whose default is to end the process. They are caught so that they do not end the
/// pool, and leave a dead mount: of a size limit the failed write tells by itself. Caught, and not ignored, for programs
/// that are run from here would ignore them too. Those of faults (SIGSEGV, SIGABRT, SIGTRAP and the like) stay what they
/// are: who sends one wants a core.
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
/// `SIGSTKFLT`, signal(7); some machines have another of this number that is as harmless.
const STKFLT: i32 = 16;
/// Those that C libraries leave to programs (signal(7)).
const REAL_TIME: RangeInclusive<i32> = 34..=64;

/// The mount that is to end: where it is, and which it is, for another may lie over it by then.
#[derive(Clone, Debug)]
pub struct PoolMount {
    pub mountpoint: PathBuf,
    pub device: Option<(u32, u32)>,
}

/// Signals that have been asked for, from the moment this exists. Made early: a signal during the
/// start must not end the process between the mount and the first request.
pub struct SignalWatch {
    signals: Signals,
}

impl SignalWatch {
    pub fn new() -> Result<SignalWatch, Error> {
        let signals = Signals::new(STOP_SIGNALS).map_err(Error::system("cannot watch for signals"))?;
        // Those that a system lacks, or keeps for itself, come from nobody.
        IGNORED_SIGNALS.into_iter().chain(REAL_TIME).for_each(|signal| drop(signals.add_signal(signal)));
        Ok(SignalWatch { signals })
    }

    /// Ends this pool at the first SIGINT, SIGTERM or SIGQUIT, and the process at the second.
    pub fn run(mut self, pool: PoolMount) -> Result<(), Error> {
        let watch = move || {
            let mut ending = false;
            for signal in self.signals.forever() {
                let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                match signal {
                    SIGINT | SIGTERM | SIGQUIT if ending => {
                        tracing::warn!("{name} again: ended without waiting");
                        std::process::exit(0);
                    }
                    SIGINT | SIGTERM | SIGQUIT => {
                        tracing::info!("{name}: ending {}", pool.mountpoint.display());
                        ending = true;
                        let pool = pool.clone();
                        // Apart, so that a second signal is heard whatever hangs.
                        if thread::Builder::new().name("stop".into()).spawn(move || end(&pool)).is_err() {
                            std::process::exit(1);
                        }
                    }
                    _ => tracing::debug!("{name}: ignored"),
                }
            }
        };
        thread::Builder::new()
            .name("signals".into())
            .spawn(watch)
            .map(|_| ())
            .map_err(Error::system("cannot start the signal thread"))
    }
}

/// Unmounts. The session then comes to its end and with it the process; if it does not in time, it
/// is ended here.
fn end(pool: &PoolMount) {
    systemd::notify(&["STOPPING=1"]);
    let path = &pool.mountpoint;
    let there = mountinfo::at(path).ok().flatten();
    if pool.device.is_some() && there.as_ref().map(|mounted| mounted.device) != pool.device {
        match there {
            Some(_) => {
                tracing::warn!("another mount lies over {}: this pool ends beneath it", path.display())
            }
            None => tracing::info!("{} was unmounted already", path.display()),
        }
        thread::sleep(GRACE);
        std::process::exit(0);
    }
    flush(path);
    match unmount::unmount(path, false) {
        Ok(()) => tracing::info!("{} unmounted", path.display()),
        Err(Error::Busy(_)) => {
            tracing::warn!(
                "{} is in use: it is gone for everybody else, and ends in {} s or at a second signal",
                path.display(),
                GRACE.as_secs()
            );
            if let Err(error) = unmount::unmount(path, true) {
                tracing::error!("{}", error.line());
            }
        }
        // Whoever unmounted it first did our work.
        Err(Error::NotMounted(_)) => {}
        Err(error) => tracing::error!("{}", error.line()),
    }
    thread::sleep(GRACE);
    tracing::warn!("ended while the pool was still in use");
    std::process::exit(0);
}

/// Brings what the kernel still holds of the pool to the branches.
fn flush(path: &Path) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let flushed = rustix::fs::open(path, flags, Mode::empty()).and_then(rustix::fs::syncfs);
    if let Err(errno) = flushed {
        tracing::debug!("syncfs of {}: {errno}", path.display());
    }
}
