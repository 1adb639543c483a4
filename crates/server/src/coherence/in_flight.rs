//! Waiting for the answers in flight without holding up requests that begin meanwhile.

use canopy_base::lock::sharded::Sharded;
#[cfg(loom)]
use loom::sync::atomic::{AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicUsize, Ordering};
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
            stands_for_seq_cst();
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
        stands_for_seq_cst();
        let begun = Instant::now();
        while self.counts.iter().any(|groups| groups[group].load(Ordering::SeqCst) != 0) {
            if begun.elapsed() > timeout {
                return false;
            }
            pause();
        }
        true
    }
}

/// loom takes `SeqCst` of loads and stores for `AcqRel`. Its fence has the order that they have.
fn stands_for_seq_cst() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

fn pause() {
    #[cfg(not(loom))]
    std::thread::sleep(Duration::from_micros(100));
    #[cfg(loom)]
    loom::thread::yield_now();
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use std::sync::Arc;

    /// Who waits has made a change before. An answer that is still under way afterwards has seen it.
    #[test]
    fn no_answer_from_before_a_change_outlasts_the_wait() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Arc::new((InFlight::default(), AtomicUsize::new(0), AtomicUsize::new(0)));
            let other = Arc::clone(&shared);
            let answering = loom::thread::spawn(move || {
                let (in_flight, changed, answered) = &*other;
                let _entered = in_flight.enter();
                let seen = changed.load(Ordering::Relaxed) == 1;
                answered.store(1, Ordering::Relaxed);
                seen
            });
            let (in_flight, changed, answered) = &*shared;
            // An answer that has entered a group meanwhile in which nobody looks any more would be missed by the next wait.
            assert!(in_flight.wait(Duration::MAX));
            changed.store(1, Ordering::Relaxed);
            assert!(in_flight.wait(Duration::MAX));
            let outlasts = answered.load(Ordering::Relaxed) == 0;
            assert!(answering.join().unwrap() || !outlasts);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::thread;

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
