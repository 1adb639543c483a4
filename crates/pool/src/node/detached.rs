//! Files whose names have just been detached from their node.

use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::fs::stat::FileKey;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// By then the writer's lookup has come, however busy the machine is.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// The most files that are remembered at once, the latest.
const MAX_FILES: usize = 256;

/// Files whose names have just been detached from their node. No reader gets passthrough for them until the writer
/// has opened the new node: for an open(2) the kernel repeats a lookup once, and a second ESTALE would reach the
/// client.
#[derive(Default)]
pub(crate) struct DetachedFiles {
    /// There may be files in the list.
    some: AtomicBool,
    files: Mutex<VecDeque<(FileKey, Instant)>, rank::Leaf>,
}

impl DetachedFiles {
    pub(crate) fn put(&self, key: FileKey) {
        let mut files = self.files.lock();
        if files.len() == MAX_FILES {
            files.pop_front();
        }
        files.push_back((key, Instant::now()));
        self.some.store(true, Ordering::Relaxed);
    }

    /// Returns true if the file's writer has yet to come.
    pub(crate) fn waits(&self, key: FileKey) -> bool {
        if !self.some.load(Ordering::Relaxed) {
            return false;
        }
        let mut files = self.files.lock();
        files.retain(|(_, since)| since.elapsed() < MAX_WAIT);
        self.some.store(!files.is_empty(), Ordering::Relaxed);
        files.iter().any(|(file, _)| *file == key)
    }
}
