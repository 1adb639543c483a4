//! The threads of workers.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::workers::{WorkerEnd, WorkerState};

/// Size of a worker's stack, in bytes. Only what is used of it takes memory.
const STACK: usize = 1 << 20;

/// The thread of a worker.
pub(crate) struct WorkerThread {
    thread: JoinHandle<WorkerEnd>,
    state: Arc<WorkerState>,
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
    /// Starts a thread that runs `worker`. Where that is not possible, gives the worker back.
    pub(crate) fn start<W: Send + 'static>(
        name: String,
        state: Arc<WorkerState>,
        worker: W,
        run: impl FnOnce(W) -> WorkerEnd + Send + 'static,
    ) -> Result<WorkerThread, (W, io::Error)> {
        let handover = Arc::new(Mutex::new(Some(worker)));
        let theirs = Arc::clone(&handover);
        let take_over = move || {
            let worker = theirs.lock().take();
            drop(theirs);
            worker.map_or(WorkerEnd::Dismissed, run)
        };
        match thread::Builder::new().name(name).stack_size(STACK).spawn(take_over) {
            Ok(thread) => Ok(WorkerThread { thread, state }),
            Err(error) => match handover.lock().take() {
                Some(worker) => Err((worker, error)),
                None => unreachable!("only the thread takes it, and there is none"),
            },
        }
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
        self.state.is_given_up()
    }
}
