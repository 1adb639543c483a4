//! Files whose names have just been given to a new node.

use crate::fs::stat::FileKey;
use crate::lock::rank;
use crate::lock::ranked::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// By then the writer has come back, however busy the machine is.
const BACK: Duration = Duration::from_secs(5);

/// Files that are waited for at once, the latest.
const FILES: usize = 256;

/// Files whose names have just been given to a new node. Nobody reads them past the daemon until the writer has come: the kernel
/// looks a name up again once for an open(2), and a second ESTALE would be the program's.
#[derive(Default)]
pub(crate) struct DetachedFiles {
    /// There may be some.
    some: AtomicBool,
    files: Mutex<VecDeque<(FileKey, Instant)>, rank::DetachedFiles>,
}

impl DetachedFiles {
    pub(crate) fn put(&self, key: FileKey) {
        let mut files = self.files.lock();
        if files.len() == FILES {
            files.pop_front();
        }
        files.push_back((key, Instant::now()));
        self.some.store(true, Ordering::Relaxed);
    }

    /// Is its writer still to come?
    pub(crate) fn waits(&self, key: FileKey) -> bool {
        if !self.some.load(Ordering::Relaxed) {
            return false;
        }
        let mut files = self.files.lock();
        files.retain(|(_, since)| since.elapsed() < BACK);
        self.some.store(!files.is_empty(), Ordering::Relaxed);
        files.iter().any(|(file, _)| *file == key)
    }
}
