//! A gate before the handler, which is closed when another process is about to serve the connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::workers::Workers;

/// How often the workers are looked at while requests are under way.
const LOOK: Duration = Duration::from_micros(200);
/// How long an answer may take from the handler to the kernel.
const SEND: Duration = Duration::from_millis(1);

/// Keeps requests from beginning while it is closed. A worker that has received one waits with it. If the process ends
/// then, the kernel sends the request again (`FUSE_NOTIFY_RESEND`), and nothing of it has been done.
#[derive(Default)]
pub struct Gate {
    closed: AtomicBool,
    state: Mutex<()>,
    opened: Condvar,
    workers: OnceLock<Weak<Workers>>,
}

impl Gate {
    /// Has the gate stand before these workers.
    pub(crate) fn set_workers(&self, workers: &Arc<Workers>) {
        let _ = self.workers.set(Arc::downgrade(workers));
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Waits until the gate is open.
    #[cold]
    pub(super) fn wait(&self) {
        let mut state = self.state.lock();
        while self.is_closed() {
            self.opened.wait(&mut state);
        }
    }

    /// Closes the gate, and waits until the requests under way have ended. If that takes longer than `patience`, opens it
    /// again and returns false.
    pub fn close_within(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        self.closed.store(true, Ordering::SeqCst);
        let Some(workers) = self.workers.get().and_then(Weak::upgrade) else {
            self.open();
            return false;
        };
        while workers.any_busy() {
            if Instant::now() >= until {
                self.open();
                return false;
            }
            sleep(LOOK);
        }
        sleep(SEND);
        true
    }

    /// Lets requests begin.
    fn open(&self) {
        // With the lock, so that a worker that has just found the gate closed does not miss it.
        let _state = self.state.lock();
        self.closed.store(false, Ordering::Relaxed);
        self.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Header, NodeId};
    use crate::transport::WorkerGrowth;
    use crate::transport::workers::Claim;
    use std::sync::mpsc;

    const HEADER: Header =
        Header { unique: 7, opcode: 1, node: NodeId::ROOT, uid: 0, gid: 0, pid: 0, total_extlen: 0 };

    #[test]
    fn no_request_begins_behind_a_closed_gate() {
        let gate = Arc::new(Gate::default());
        assert!(!gate.close_within(Duration::ZERO), "there are no workers");
        let workers = Workers::new(WorkerGrowth::default(), 1 << 20, 1, Arc::clone(&gate));
        gate.set_workers(&workers);
        let (busy, other) = (workers.slot(0), workers.slot(0));
        busy.begin(HEADER, [0; 3], Claim::Device);
        assert!(!gate.close_within(Duration::from_millis(5)), "a request is under way");
        busy.end(Some(0));
        assert!(gate.close_within(Duration::ZERO));
        let (begun, has_begun) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                other.begin(HEADER, [0; 3], Claim::Device);
                begun.send(()).unwrap();
            });
            assert!(has_begun.recv_timeout(Duration::from_millis(20)).is_err());
            assert!(!workers.any_busy());
            gate.open();
            has_begun.recv().unwrap();
        });
    }
}
