//! Files that are removed within the clock tick in which they were born.
//!
//! A birth time tells a file from earlier files with the same inode number, unless both were born within one tick of
//! the clock that filesystems use. So a file that was just born keeps its inode number for the rest of the tick, even
//! if it has lost its last name.

use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::fs::stat::Time;
use canopy_branch::tend::{self, Line};
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Anything that keeps a file from being freed.
pub(crate) type Pinned = Arc<dyn Send + Sync>;

/// In which the files are closed.
const LINE: Line = (c"tick-guard", 0);

/// Well above a tick, which is 10 ms at most.
const HOLD: Duration = Duration::from_millis(20);

#[derive(Default)]
pub(crate) struct TickGuard(Arc<Mutex<Queue, rank::Leaf>>);

#[derive(Default)]
struct Queue {
    /// Files with their birth times, oldest first.
    files: VecDeque<(Time, Pinned)>,
    /// The queue is checked again and again.
    watching: bool,
}

/// Returns true if a file that is created from now on may still get this birth time.
fn is_now(birth: Time) -> bool {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    (birth.sec, i64::from(birth.nsec)) >= (now.tv_sec, now.tv_nsec)
}

impl TickGuard {
    /// Holds a file that has lost its last name, if it was born in this tick.
    pub(crate) fn gone<P: Send + Sync + 'static>(&self, birth: Time, file: impl FnOnce() -> Arc<P>) {
        if !is_now(birth) {
            return;
        }
        let mut queue = self.0.lock();
        queue.files.push_back((birth, file()));
        let expired = queue.expired();
        let begins = !std::mem::replace(&mut queue.watching, true);
        drop(queue);
        drop(expired);
        if begins {
            tend::sweep(HOLD, LINE, &self.0, release_expired);
        }
    }
}

impl Queue {
    /// Takes out the files whose tick is over.
    fn expired(&mut self) -> VecDeque<(Time, Pinned)> {
        let first_young = self.files.iter().position(|(birth, _)| is_now(*birth)).unwrap_or(self.files.len());
        let young = self.files.split_off(first_young);
        std::mem::replace(&mut self.files, young)
    }
}

/// Closes the files whose tick is over; returns whether there are others.
fn release_expired(queue: &Arc<Mutex<Queue, rank::Leaf>>) -> bool {
    let mut queue = queue.lock();
    let expired = queue.expired();
    queue.watching = !queue.files.is_empty();
    let more = queue.watching;
    drop(queue);
    if !expired.is_empty() {
        tend::apart(LINE, move || drop(expired));
    }
    more
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_file_is_held_until_its_birth_tick_is_over() {
        let now = clock_gettime(ClockId::Realtime);
        let at = |sec: i64| Time { sec: now.tv_sec + sec, nsec: now.tv_nsec as u32 };
        let (guard, old, young) = (TickGuard::default(), Arc::new(()), Arc::new(()));
        guard.gone(at(-1), || old.clone());
        guard.gone(at(1), || young.clone());
        assert_eq!((Arc::strong_count(&old), Arc::strong_count(&young)), (1, 2));
        // Further files do not release it.
        guard.gone(at(1), || old.clone());
        assert_eq!((Arc::strong_count(&old), Arc::strong_count(&young)), (2, 2));
        let begun = Instant::now();
        while Arc::strong_count(&young) > 1 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is never released");
            std::thread::sleep(HOLD);
        }
        assert!(begun.elapsed() >= Duration::from_millis(500), "it was released too early");
    }
}
