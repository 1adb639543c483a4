//! Files that stay open for a moment because their names may be replaced, on the branch, before the kernel uses them.
//!
//! The kernel looks a name up, then sends the operation. If the name leads to another file by then, and the one before is gone,
//! the answer is ESTALE, and the kernel tries once more. A name that is replaced all the time would make that fail, too. So
//! once an operation has met this, files that are looked up are kept open until their operations must have come. These act on
//! the file whose attributes the kernel has checked, as if they had come before the name was replaced.

use crate::fs::stat::FileKey;
use crate::lock::rank;
use crate::lock::ranked::Mutex;
use crate::node::Orphan;
use canopy_sys::sched;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// For how long files are kept after an operation has met a file that is gone, and how long each is kept at least. The
/// kernel looks the name up again at once.
const HOLD: Duration = Duration::from_secs(1);

/// The most files that are kept.
const MOST: usize = 256;

#[derive(Default)]
pub(crate) struct ReplacedFiles(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Files are kept now. Changes with the queue locked.
    active: AtomicBool,
    queue: Mutex<Queue, rank::ReplacedFiles>,
}

#[derive(Default)]
struct Queue {
    /// Oldest first.
    files: VecDeque<(Instant, FileKey, Arc<Orphan>)>,
    until: Option<Instant>,
}

impl ReplacedFiles {
    /// Returns whether files that are looked up shall be kept.
    pub(crate) fn are_kept(&self) -> bool {
        self.0.active.load(Ordering::Relaxed)
    }

    /// An operation has met a file that is gone. Files are kept from now on, for a while.
    pub(crate) fn met(&self) {
        let mut queue = self.0.queue.lock();
        queue.until = Some(Instant::now() + HOLD);
        if !self.0.active.swap(true, Ordering::Relaxed) {
            let shared = Arc::downgrade(&self.0);
            let thread = std::thread::Builder::new().name("replaced-files".into());
            // Without the thread nothing would close the files.
            let started = thread.spawn(move || release(&shared)).is_ok();
            self.0.active.store(started, Ordering::Relaxed);
        }
    }

    pub(crate) fn keep(&self, key: FileKey, file: Orphan) {
        let mut queue = self.0.queue.lock();
        if !self.are_kept() {
            return;
        }
        let oldest = if queue.files.len() == MOST { queue.files.pop_front() } else { None };
        queue.files.push_back((Instant::now(), key, Arc::new(file)));
        drop(queue);
        drop(oldest);
    }

    pub(crate) fn find(&self, key: FileKey) -> Option<Arc<Orphan>> {
        if !self.are_kept() {
            return None;
        }
        let queue = self.0.queue.lock();
        queue.files.iter().rev().find(|(_, kept, _)| *kept == key).map(|(.., file)| file.clone())
    }

    /// Closes all files.
    pub(crate) fn clear(&self) {
        let files = std::mem::take(&mut self.0.queue.lock().files);
        drop(files);
    }
}

/// Closes files until none is kept any more.
fn release(shared: &Weak<Shared>) {
    sched::start_afresh();
    loop {
        std::thread::sleep(HOLD / 4);
        let Some(shared) = shared.upgrade() else { return };
        let mut queue = shared.queue.lock();
        let first_young =
            queue.files.iter().position(|(since, ..)| since.elapsed() < HOLD).unwrap_or(queue.files.len());
        let young = queue.files.split_off(first_young);
        let expired = std::mem::replace(&mut queue.files, young);
        let ends = queue.files.is_empty() && queue.until.is_none_or(|until| Instant::now() >= until);
        if ends {
            shared.active.store(false, Ordering::Relaxed);
        }
        drop(queue);
        drop(expired);
        if ends {
            return;
        }
    }
}
