//! Waiting for answers that are on their way, without holding up those that begin meanwhile.

use canopy_pool::lock::sharded::Sharded;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Counts the answers under way in two lots, of which one is filled while the other runs dry.
#[derive(Default)]
pub(crate) struct InFlight {
    lot: AtomicUsize,
    inside: Sharded<[AtomicUsize; 2]>,
}

/// An answer under way.
pub(crate) struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl InFlight {
    pub(crate) fn enter(&self) -> Inside<'_> {
        let lots = self.inside.mine();
        loop {
            let lot = self.lot.load(Ordering::SeqCst);
            let inside = &lots[lot % 2];
            inside.fetch_add(1, Ordering::SeqCst);
            let entered = Inside(inside);
            // Who waits may have changed lots in between, and not have seen us.
            if self.lot.load(Ordering::SeqCst) == lot {
                return entered;
            }
        }
    }

    /// Returns once every answer that had begun is given; false when that takes longer than `patience`. One at a
    /// time may wait.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let lot = self.lot.fetch_add(1, Ordering::SeqCst) % 2;
        let begun = Instant::now();
        while self.inside.iter().any(|lots| lots[lot].load(Ordering::SeqCst) != 0) {
            if begun.elapsed() > patience {
                return false;
            }
            thread::sleep(Duration::from_micros(100));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_those_inside_and_for_no_others() {
        let in_flight = InFlight::default();
        assert!(in_flight.wait(Duration::ZERO));
        let first = in_flight.enter();
        assert!(!in_flight.wait(Duration::from_millis(5)));
        let second = in_flight.enter();
        drop(first);
        thread::scope(|scope| {
            let lot = in_flight.lot.load(Ordering::SeqCst);
            let waiting = scope.spawn(|| in_flight.wait(Duration::from_secs(20)));
            // The wait has begun once the lot has changed.
            while in_flight.lot.load(Ordering::SeqCst) == lot {
                thread::yield_now();
            }
            let _third = in_flight.enter();
            drop(second);
            assert!(waiting.join().unwrap());
        });
        assert!(in_flight.wait(Duration::ZERO));
    }
}
