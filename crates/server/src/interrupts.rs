//! Clients that are killed while they wait for an answer.
//!
//! When a signal reaches a waiting client, the kernel sends INTERRUPT, always over `/dev/fuse`, even if requests come
//! over io_uring. The client keeps waiting, killed or not, so a long operation checks now and then whether its result
//! is still wanted. Most signals do not matter: a program whose write is interrupted by a timer expects the write to
//! complete.

use crate::lock_rank as rank;
use canopy_base::lock::ranked::Mutex;
use canopy_fuse::request::Header;
use canopy_fuse::wait::Signal;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fs;

/// The number of latest interrupts that are remembered. One whose request has been answered is never looked up.
const MAX_REMEMBERED: usize = 256;
/// SIGKILL in the signal masks of /proc/PID/status. The kernel adds it for every signal that ends a process
/// (kernel/signal.c complete_signal), except those that dump core.
const SIGKILL: u64 = 1 << 8;

thread_local! {
    /// The request that this thread serves: its number, the client thread and its user.
    static CURRENT: Cell<(u64, u32, u32)> = const { Cell::new((0, 0, u32::MAX)) };
}

/// The numbers of interrupted requests. The kernel never uses a number twice.
#[derive(Default)]
pub(crate) struct Interrupts(Mutex<VecDeque<u64>, rank::Leaf>);

impl Interrupts {
    /// Sets the request that [`Self::caller_is_killed`] asks about on this thread.
    pub(crate) fn set_current(&self, header: &Header) {
        CURRENT.set((header.unique, header.pid, header.uid));
    }

    /// Records an INTERRUPT. It may arrive before the request itself, by another channel.
    pub(crate) fn record(&self, unique: u64) {
        let mut numbers = self.0.lock();
        if numbers.len() == MAX_REMEMBERED {
            numbers.pop_front();
        }
        numbers.push_back(unique);
    }

    /// Returns the client thread of the request that this thread serves; 0 without one.
    pub(crate) fn caller_thread(&self) -> u32 {
        CURRENT.get().1
    }

    /// Returns the user of the request that this thread serves; [`u32::MAX`] if that is not known.
    pub(crate) fn caller_uid(&self) -> u32 {
        CURRENT.get().2
    }

    /// Returns what has reached the client of the request that this thread serves.
    pub(crate) fn signal(&self) -> Signal {
        if !self.caller_is_interrupted() {
            return Signal::None;
        }
        if is_killed(CURRENT.get().1) { Signal::Kills } else { Signal::Caught }
    }

    /// Returns whether a signal has reached the client of the request that this thread serves.
    pub(crate) fn caller_is_interrupted(&self) -> bool {
        let (unique, ..) = CURRENT.get();
        self.0.lock().contains(&unique)
    }

    /// Returns whether the client of the request that this thread serves has been killed.
    pub(crate) fn caller_is_killed(&self) -> bool {
        let (unique, pid, _) = CURRENT.get();
        self.0.lock().contains(&unique) && is_killed(pid)
    }
}

/// Returns false also for processes that are not visible: 0 is one of another namespace.
fn is_killed(pid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & SIGKILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_process_is_not_killed() {
        assert!(!is_killed(std::process::id()));
        assert!(!is_killed(0));
    }

    #[test]
    fn the_latest_interrupts_are_remembered() {
        let interrupts = Interrupts::default();
        for unique in 0..2 * MAX_REMEMBERED as u64 {
            interrupts.record(2 * unique);
        }
        let numbers = interrupts.0.lock();
        assert_eq!((numbers.len(), numbers.back()), (MAX_REMEMBERED, Some(&(4 * MAX_REMEMBERED as u64 - 2))));
    }
}
