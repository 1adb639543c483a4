//! Files that go in the very tick of the clock in which they were born.
//!
//! A birth time tells a file from those that had its inode number before, unless all of that happens between two ticks of
//! the clock that filesystems go by. So a file that has just been born keeps its number for the rest of the tick, though it
//! has lost its last name.

use crate::fs::stat::Time;
use crate::lock::rank;
use crate::lock::ranked::Mutex;
use canopy_sys::sched;
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Whatever keeps a file from being given up.
pub(crate) type Pinned = Arc<dyn Send + Sync>;

/// Well above a tick, which is 10 ms at most.
const WHILE: Duration = Duration::from_millis(20);

#[derive(Default)]
pub(crate) struct TickGuard(Arc<Mutex<Queue, rank::TickGuard>>);

#[derive(Default)]
struct Queue {
    /// With their birth times, oldest first.
    files: VecDeque<(Time, Pinned)>,
    /// A thread looks at them.
    looking: bool,
}

/// May something that is born from now on have this birth time, too?
fn is_now(birth: Time) -> bool {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    (birth.sec, i64::from(birth.nsec)) >= (now.tv_sec, now.tv_nsec)
}

impl TickGuard {
    /// A file has lost its last name.
    pub(crate) fn gone<P: Send + Sync + 'static>(&self, birth: Time, file: impl FnOnce() -> Arc<P>) {
        if !is_now(birth) {
            return;
        }
        let mut queue = self.0.lock();
        queue.files.push_back((birth, file()));
        let grown = queue.grown();
        if !std::mem::replace(&mut queue.looking, true) {
            let weak = Arc::downgrade(&self.0);
            let thread = std::thread::Builder::new().name("newborn".into());
            // If there is none to be had, the next one that goes has them closed.
            queue.looking = thread.spawn(move || look(&weak)).is_ok();
        }
        drop(queue);
        drop(grown);
    }
}

impl Queue {
    /// Takes out those whose tick is over.
    fn grown(&mut self) -> VecDeque<(Time, Pinned)> {
        let young = self.files.iter().position(|(birth, _)| is_now(*birth)).unwrap_or(self.files.len());
        let rest = self.files.split_off(young);
        std::mem::replace(&mut self.files, rest)
    }
}

fn look(queue: &Weak<Mutex<Queue, rank::TickGuard>>) {
    sched::unpin();
    loop {
        std::thread::sleep(WHILE);
        let Some(queue) = queue.upgrade() else { return };
        let mut queue = queue.lock();
        let grown = queue.grown();
        queue.looking = !queue.files.is_empty();
        let ends = !queue.looking;
        drop(queue);
        drop(grown);
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
    fn a_file_born_in_this_tick_is_held_until_the_tick_ends() {
        let now = clock_gettime(ClockId::Realtime);
        let at = |sec: i64| Time { sec: now.tv_sec + sec, nsec: now.tv_nsec as u32 };
        let (newborn, old, young) = (TickGuard::default(), Arc::new(()), Arc::new(()));
        newborn.gone(at(-1), || old.clone());
        newborn.gone(at(1), || young.clone());
        assert_eq!((Arc::strong_count(&old), Arc::strong_count(&young)), (1, 2));
        // Others that go meanwhile do not have it given up.
        newborn.gone(at(1), || old.clone());
        assert_eq!((Arc::strong_count(&old), Arc::strong_count(&young)), (2, 2));
        let begun = Instant::now();
        while Arc::strong_count(&young) > 1 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is never given up");
            std::thread::sleep(WHILE);
        }
        assert!(begun.elapsed() >= Duration::from_millis(500), "it was given up too early");
    }
}
