//! Waiting for the answers in flight without holding up requests that begin meanwhile.

use canopy_base::lock::sharded::Sharded;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Counts the answers in flight in two groups: new ones enter the current group while the other drains.
#[derive(Default)]
pub(crate) struct InFlight {
    group: AtomicUsize,
    counts: Sharded<[AtomicUsize; 2]>,
}

/// An answer in flight.
pub(crate) struct InFlightGuard<'a>(&'a AtomicUsize);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl InFlight {
    pub(crate) fn enter(&self) -> InFlightGuard<'_> {
        let groups = self.counts.mine();
        loop {
            let group = self.group.load(Ordering::SeqCst);
            let counts = &groups[group % 2];
            counts.fetch_add(1, Ordering::SeqCst);
            let entered = InFlightGuard(counts);
            // A thread in `wait` may have switched groups in between, and not have seen this answer.
            if self.group.load(Ordering::SeqCst) == group {
                return entered;
            }
        }
    }

    /// Returns true once every request that began before has been answered, or false after `timeout`. Only one thread
    /// may wait at a time.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let group = self.group.fetch_add(1, Ordering::SeqCst) % 2;
        let begun = Instant::now();
        while self.counts.iter().any(|groups| groups[group].load(Ordering::SeqCst) != 0) {
            if begun.elapsed() > timeout {
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
    fn wait_ignores_answers_that_begin_meanwhile() {
        let in_flight = InFlight::default();
        assert!(in_flight.wait(Duration::ZERO));
        let first = in_flight.enter();
        assert!(!in_flight.wait(Duration::from_millis(5)));
        let second = in_flight.enter();
        drop(first);
        thread::scope(|scope| {
            let group = in_flight.group.load(Ordering::SeqCst);
            let waiting = scope.spawn(|| in_flight.wait(Duration::from_secs(20)));
            // The wait has begun once the lot has changed.
            while in_flight.group.load(Ordering::SeqCst) == group {
                thread::yield_now();
            }
            let _third = in_flight.enter();
            drop(second);
            assert!(waiting.join().unwrap());
        });
        assert!(in_flight.wait(Duration::ZERO));
    }
}
