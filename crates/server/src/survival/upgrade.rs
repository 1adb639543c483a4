//! Another program takes over, because a newer one was installed (`canopy upgrade`).

use super::Ledger;
use canopy_base::text::os_error;
use canopy_fuse::transport::Pause;
use canopy_sys::errno;
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use std::fmt;
use std::thread::sleep;
use std::time::Duration;

/// How long requests wait for others to end, each time.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long requests begin again before the next attempt.
const BETWEEN: Duration = Duration::from_millis(700);
const ATTEMPTS: usize = 10;

/// Why another program has not taken over. The one before serves on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// At no time was no request under way.
    Busy,
    /// It cannot be executed.
    Program(Errno),
    /// It did not serve within a second.
    Late,
    /// It ended before it served.
    Ended,
    /// It does not know the form of the records.
    Form,
}

impl Refusal {
    /// A word for the ledger, and for what one program tells the next; never 0.
    #[must_use]
    pub fn to_word(self) -> u64 {
        match self {
            Refusal::Busy => 1,
            Refusal::Program(errno) => 2 | u64::from(errno.raw_os_error().cast_unsigned()) << 32,
            Refusal::Late => 3,
            Refusal::Ended => 4,
            Refusal::Form => 5,
        }
    }

    /// Returns what [`Refusal::to_word`] has made.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Refusal> {
        Some(match word as u32 {
            1 => Refusal::Busy,
            2 => Refusal::Program(errno::from_raw((word >> 32) as i32)),
            3 => Refusal::Late,
            4 => Refusal::Ended,
            5 => Refusal::Form,
            _ => return None,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Busy => write!(
                f,
                "requests are under way that take long (a file that is moved, or a disk that hangs)"
            ),
            Refusal::Program(errno) => {
                write!(f, "the installed program cannot be executed: {}", os_error(errno))
            }
            Refusal::Late => write!(f, "the installed program did not serve within a second"),
            Refusal::Ended => write!(f, "the installed program ended before it served"),
            Refusal::Form => {
                write!(f, "the installed program cannot read the records of the one that serves")
            }
        }
    }
}

/// Ends this process while no request is under way, so that its keeper has another program take over. Returns if there is
/// no such moment.
pub(crate) fn hand_over(pause: &Pause, ledger: &Ledger) {
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            sleep(BETWEEN);
        }
        let over_uring = ledger.is_over_uring();
        if if over_uring { pause.retire_within(PATIENCE) } else { pause.begin_within(PATIENCE) } {
            ledger.record_handover();
            // Without a cleanup, which belongs to a pool that ends.
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
    tracing::warn!("no other program takes over: {}", Refusal::Busy);
    ledger.record_refusal(Refusal::Busy);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_words() {
        let all =
            [Refusal::Busy, Refusal::Program(Errno::ACCESS), Refusal::Late, Refusal::Ended, Refusal::Form];
        for refusal in all {
            assert_eq!(Refusal::from_word(refusal.to_word()), Some(refusal));
        }
        assert_eq!(Refusal::from_word(0), None);
    }
}
