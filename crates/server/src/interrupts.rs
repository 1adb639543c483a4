//! Clients that are killed while they wait for an answer.
//!
//! The kernel sends INTERRUPT when a signal reaches a client that waits, over `/dev/fuse` whatever carries the requests.
//! The client goes on waiting, killed or not, so an operation that takes long asks here now and then whether it is still of
//! use. Most signals are none of its business: a program whose write is interrupted by a timer expects it to be done.

use canopy_fuse::request::Header;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fs;

/// Interrupts remembered, the latest ones. Those of requests that are answered are never asked for again.
const REMEMBERED: usize = 256;
/// SIGKILL in the masks of /proc/PID/status. The kernel adds it for every signal that ends a process (kernel/signal.c
/// complete_signal), but for those that dump core.
const SIGKILL: u64 = 1 << 8;

thread_local! {
    /// The request that this thread serves: its number, and the thread that waits for it.
    static SERVED: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

/// Which requests were interrupted, by their numbers. None is used twice.
#[derive(Default)]
pub(crate) struct Interrupts(Mutex<VecDeque<u64>>);

impl Interrupts {
    /// From now on [`Self::caller_is_killed`] is about this request.
    pub(crate) fn serves(&self, header: &Header) {
        SERVED.set((header.unique, header.pid));
    }

    /// The kernel says so. It may do before the request itself is seen, since it comes another way.
    pub(crate) fn interrupted(&self, unique: u64) {
        let mut numbers = self.0.lock();
        if numbers.len() == REMEMBERED {
            numbers.pop_front();
        }
        numbers.push_back(unique);
    }

    /// Has the client of the request that this thread serves been killed?
    pub(crate) fn caller_is_killed(&self) -> bool {
        let (unique, pid) = SERVED.get();
        self.0.lock().contains(&unique) && is_killed(pid)
    }
}

/// False also for those that cannot be seen: 0 is a process of another namespace.
fn is_killed(pid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & SIGKILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_lives_is_not_killed() {
        assert!(!is_killed(std::process::id()));
        assert!(!is_killed(0));
    }

    #[test]
    fn the_latest_interrupts_are_remembered() {
        let interrupts = Interrupts::default();
        for unique in 0..2 * REMEMBERED as u64 {
            interrupts.interrupted(2 * unique);
        }
        let numbers = interrupts.0.lock();
        assert_eq!((numbers.len(), numbers.back()), (REMEMBERED, Some(&(4 * REMEMBERED as u64 - 2))));
    }
}
