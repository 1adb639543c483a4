//! How fast a command reads and writes by itself, and after which other programs.

use crate::manners::ThrottleArgs;
use canopy_sys::thread::ioprio;
use std::time::{Duration, Instant};

/// How long a sleep goes on unwatched.
const NAP: Duration = Duration::from_millis(50);

/// Keeps the calling thread to a rate.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Bytes in a second; 0 for no limit.
    rate: u64,
    begun: Instant,
    bytes: u64,
}

impl Pace {
    /// Gives the calling thread the I/O class that these options ask for.
    pub(crate) fn of(manners: &ThrottleArgs) -> Pace {
        if !manners.eager {
            ioprio::yield_disks();
        }
        Pace { rate: manners.bwlimit.unwrap_or(0), begun: Instant::now(), bytes: 0 }
    }

    /// Sleeps until so many more bytes are due. `watch` is asked meanwhile, and ends the sleep by an error.
    pub(crate) fn keep<E>(&mut self, bytes: u64, watch: &mut dyn FnMut() -> Result<(), E>) -> Result<(), E> {
        self.bytes = self.bytes.saturating_add(bytes);
        loop {
            watch()?;
            let Some(left) = self.left(self.begun.elapsed()) else { return Ok(()) };
            std::thread::sleep(left.min(NAP));
        }
    }

    /// Returns how long to wait still, so long after the beginning.
    fn left(&self, elapsed: Duration) -> Option<Duration> {
        let due = self.bytes.saturating_mul(1000).checked_div(self.rate)?;
        Duration::from_millis(due).checked_sub(elapsed).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_due_by_the_rate() {
        let mut pace = Pace { rate: 1000, begun: Instant::now(), bytes: 500 };
        let table = [(0, Some(500)), (499, Some(1)), (500, None), (9000, None)];
        for (elapsed, left) in table {
            assert_eq!(pace.left(Duration::from_millis(elapsed)), left.map(Duration::from_millis));
        }
        pace.rate = 0;
        assert_eq!(pace.left(Duration::ZERO), None);
        let mut looks = 0;
        let mut watch = || {
            looks += 1;
            if looks == 3 { Err("stopped") } else { Ok(()) }
        };
        pace.rate = 1;
        assert_eq!(pace.keep(1 << 40, &mut watch), Err("stopped"));
    }
}
