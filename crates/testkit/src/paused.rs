//! A process that is stopped for a while.

use rustix::process::{Pid, Signal, kill_process};

use crate::cmd::{PATIENCE, wait_until};
use crate::proc;

/// Stops a process with SIGSTOP, and lets it continue on drop.
#[derive(Debug)]
pub struct Paused(Pid);

impl Paused {
    /// Stops a process, and returns when each of its threads has stopped.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn new(pid: i32) -> Self {
        let process = Pid::from_raw(pid).expect("a process");
        kill_process(process, Signal::STOP).expect("a signal");
        let paused = Paused(process);
        let stopped = || proc::threads(pid).iter().all(|thread| thread.field("State").starts_with('T'));
        assert!(wait_until(PATIENCE, stopped), "{pid} does not stop");
        paused
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}
