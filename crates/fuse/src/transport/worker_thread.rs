//! The threads of workers.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::io::Errno;

use super::workers::{Seat, WorkerEnd};

/// Size of a worker's stack, in bytes. Only what is used of it takes memory.
const STACK: usize = 1 << 20;

/// The thread of a worker.
pub(crate) struct WorkerThread {
    thread: JoinHandle<WorkerEnd>,
    seat: Arc<Seat>,
}

/// How the workers of a connection have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkersEnd {
    /// Receiving requests has failed.
    pub(crate) failed: Option<Errno>,
    /// A thread has panicked.
    pub(crate) panicked: bool,
}

impl WorkerThread {
    pub(crate) fn start(
        name: String,
        seat: Arc<Seat>,
        run: impl FnOnce() -> WorkerEnd + Send + 'static,
    ) -> io::Result<WorkerThread> {
        let thread = thread::Builder::new().name(name).stack_size(STACK).spawn(run)?;
        Ok(WorkerThread { thread, seat })
    }

    /// Keeps the threads that still run, and records how the others have ended.
    pub(super) fn collect(threads: &mut Vec<WorkerThread>, end: &mut WorkersEnd) {
        for WorkerThread { thread, .. } in threads.extract_if(.., |worker| worker.thread.is_finished()) {
            match thread.join() {
                Ok(WorkerEnd::Disconnected | WorkerEnd::Dismissed) => {}
                Ok(WorkerEnd::Failed(errno)) => end.failed = Some(errno),
                Err(_) => end.panicked = true,
            }
        }
    }

    /// Returns whether nobody waits for the thread, because its request was answered in its place.
    pub(super) fn is_given_up(&self) -> bool {
        self.seat.is_given_up()
    }
}
