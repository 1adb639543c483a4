//! Threads that must look a name up again before they open it.

use canopy_base::ids::NodeId;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Threads that were sent back to look a name up again, and the nodes that they wanted to open.
#[derive(Default)]
pub(crate) struct PendingCow {
    /// The number of threads: nearly always 0, and then no lookup takes the lock.
    pub(crate) count: AtomicUsize,
    pub(crate) threads: Mutex<HashMap<u32, (NodeId, Instant)>, rank::Leaf>,
}

/// A thread that has not come back by then has ended.
const MAX_WAIT: Duration = Duration::from_secs(600);

impl PendingCow {
    pub(crate) fn put(&self, thread: u32, node: NodeId) {
        let mut threads = self.threads.lock();
        threads.retain(|_, (_, since)| since.elapsed() < MAX_WAIT);
        threads.insert(thread, (node, Instant::now()));
        self.count.store(threads.len(), Ordering::Relaxed);
    }

    pub(crate) fn len(&self) -> usize {
        self.threads.lock().len()
    }

    /// Returns true if the thread was sent back from this node, and removes it.
    pub(crate) fn take(&self, thread: u32, node: NodeId) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut threads = self.threads.lock();
        let found = threads.get(&thread).is_some_and(|(wanted, _)| *wanted == node);
        if found {
            threads.remove(&thread);
            self.count.store(threads.len(), Ordering::Relaxed);
        }
        found
    }
}
