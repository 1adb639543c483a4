//! A pause in which no request begins, because another process is about to serve the connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::workers::{Failing, Workers};

/// How often the workers are looked at while requests are under way.
const LOOK: Duration = Duration::from_micros(200);
/// How long an answer may take from the handler to the kernel.
const SEND: Duration = Duration::from_millis(1);

/// Keeps requests from beginning while it lasts. A worker that has received one waits with it. If the process ends
/// then, the kernel sends the request again (`FUSE_NOTIFY_RESEND`), and nothing of it has been done.
#[derive(Default)]
pub struct Pause {
    on: AtomicBool,
    state: Mutex<()>,
    ended: Condvar,
    workers: OnceLock<Weak<Workers>>,
}

impl Pause {
    /// Sets the workers that it concerns.
    pub(crate) fn set_workers(&self, workers: &Arc<Workers>) {
        let _ = self.workers.set(Arc::downgrade(workers));
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Waits until it has ended.
    #[cold]
    pub(super) fn wait(&self) {
        let mut state = self.state.lock();
        while self.is_on() {
            self.ended.wait(&mut state);
        }
    }

    /// Begins, and waits until the requests under way have ended. If that takes longer than `patience`, ends again and returns
    /// false.
    pub fn begin_within(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        self.on.store(true, Ordering::SeqCst);
        let Some(workers) = self.workers.get().and_then(Weak::upgrade) else {
            self.end();
            return false;
        };
        while workers.any_busy() {
            if Instant::now() >= until {
                self.end();
                return false;
            }
            sleep(LOOK);
        }
        sleep(SEND);
        true
    }

    /// The same over io_uring, where the kernel does not send a request again: all workers of queues leave, which answer what
    /// comes to them before. Requests then wait in the kernel until the next process fills the queues.
    pub fn retire_within(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let Some(workers) = self.workers.get().and_then(Weak::upgrade) else { return false };
        workers.set_retiring(true);
        while !workers.have_retired() && Instant::now() < until {
            sleep(LOOK);
        }
        // What is left is to end for the other transport.
        let retired = workers.have_retired() && self.begin_within(patience);
        if !retired {
            workers.set_retiring(false);
        }
        retired
    }

    /// The same before a fault ends the process. The requests of threads that have met it fail, and after `patience` those of
    /// all that still have one: they may wait for such a thread.
    pub fn retire_after_fault(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        // The connection may be about to be served.
        let workers = loop {
            match self.workers.get() {
                Some(workers) => break workers.upgrade(),
                None if Instant::now() >= until => return false,
                None => sleep(LOOK),
            }
        };
        let Some(workers) = workers else { return false };
        for failing in [Failing::OfFaulty, Failing::OfAll] {
            let until = Instant::now() + patience;
            workers.set_failing(failing);
            workers.set_retiring(true);
            while !workers.have_retired() && Instant::now() < until {
                sleep(LOOK);
            }
            if workers.have_retired() {
                // What comes over the other transport.
                self.on.store(true, Ordering::SeqCst);
                sleep(SEND);
                return true;
            }
        }
        false
    }

    /// Lets requests begin.
    fn end(&self) {
        // With the lock, so that a worker that has just found the pause begun does not miss that it ends.
        let _state = self.state.lock();
        self.on.store(false, Ordering::Relaxed);
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::WorkerGrowth;
    use crate::transport::workers::ReplyToken;
    use crate::transport::workers::tests::HEADER;
    use std::sync::mpsc;

    #[test]
    fn no_request_begins_during_a_pause() {
        let pause = Arc::new(Pause::default());
        assert!(!pause.begin_within(Duration::ZERO), "there are no workers");
        let workers = Workers::new(WorkerGrowth::default(), 1 << 20, 1, Arc::clone(&pause));
        pause.set_workers(&workers);
        let (busy, other) = (workers.slot(0), workers.slot(0));
        busy.begin(HEADER, [0; 3], ReplyToken::Device);
        assert!(!pause.begin_within(Duration::from_millis(5)), "a request is under way");
        busy.end(Some(0));
        assert!(pause.begin_within(Duration::ZERO));
        let (begun, has_begun) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                other.begin(HEADER, [0; 3], ReplyToken::Device);
                begun.send(()).unwrap();
            });
            assert!(has_begun.recv_timeout(Duration::from_millis(20)).is_err());
            assert!(!workers.any_busy());
            pause.end();
            has_begun.recv().unwrap();
        });
    }
}
