//! Files that are removed within the clock tick in which they were born.
//!
//! A birth time tells a file from earlier files with the same inode number, unless both were born within one tick of
//! the clock that filesystems use. So a file that was just born keeps its inode number for the rest of the tick, even
//! if it has lost its last name.

use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::fs::stat::Time;
use canopy_sys::sched;
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Anything that keeps a file from being freed.
pub(crate) type Pinned = Arc<dyn Send + Sync>;

/// Well above a tick, which is 10 ms at most.
const HOLD: Duration = Duration::from_millis(20);

#[derive(Default)]
pub(crate) struct TickGuard(Arc<Mutex<Queue, rank::Leaf>>);

#[derive(Default)]
struct Queue {
    /// Files with their birth times, oldest first.
    files: VecDeque<(Time, Pinned)>,
    /// A thread watches the queue.
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
        if !std::mem::replace(&mut queue.watching, true) {
            let weak = Arc::downgrade(&self.0);
            let thread = std::thread::Builder::new().name("tick-guard".into());
            // If no thread can be started, the next call closes the files whose tick is over.
            queue.watching = thread.spawn(move || release_expired(&weak)).is_ok();
        }
        drop(queue);
        drop(expired);
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

fn release_expired(queue: &Weak<Mutex<Queue, rank::Leaf>>) {
    sched::start_afresh();
    loop {
        std::thread::sleep(HOLD);
        let Some(queue) = queue.upgrade() else { return };
        let mut queue = queue.lock();
        let expired = queue.expired();
        queue.watching = !queue.files.is_empty();
        let ends = !queue.watching;
        drop(queue);
        drop(expired);
        if ends {
            return;
        }
    }
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
