//! Files that stay open for a moment because their names may be replaced, on the branch, before the kernel uses them.
//!
//! The kernel looks a name up, then sends the operation. If the name leads to another file by then, the answer is ESTALE, and the
//! kernel tries once more. A name that is replaced, or exchanged with another one, all the time would make that fail, too. So
//! once an operation has met this, files that its thread then looks up are kept open until their operations must have come. These
//! act on the file whose attributes the kernel has checked, as if they had come before the name was replaced.
//!
//! The kernel may not cache what was looked up so: the thread's next operation looks the name up again, and does not act on a file
//! that the thread itself has moved away meanwhile.

use crate::node::Orphan;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::fs::stat::FileKey;
use canopy_sys::sched;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// For how long an operation of a thread that has met a file that is gone counts as tried again. The kernel looks the name up
/// again at once.
const HOLD: Duration = Duration::from_secs(1);

/// The most files that are kept.
const MOST: usize = 256;

#[derive(Default)]
pub(crate) struct ReplacedFiles(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Files are kept now. Changes with the queue locked.
    active: AtomicBool,
    queue: Mutex<Queue, rank::Leaf>,
}

#[derive(Default)]
struct Queue {
    /// With the threads that have looked them up; oldest first.
    files: VecDeque<(Instant, u32, FileKey, Arc<Orphan>)>,
    /// Threads that have met a file that is gone, and when; oldest first.
    met: VecDeque<(Instant, u32)>,
}

impl ReplacedFiles {
    /// Returns whether files that are looked up shall be kept.
    pub(crate) fn are_kept(&self) -> bool {
        self.0.active.load(Ordering::Relaxed)
    }

    /// An operation of a thread has met a file that is gone. Files that it looks up are kept from now on, for a while.
    pub(crate) fn met(&self, thread: u32) {
        let mut queue = self.0.queue.lock();
        queue.met.retain(|(_, other)| *other != thread);
        if queue.met.len() == MOST {
            queue.met.pop_front();
        }
        queue.met.push_back((Instant::now(), thread));
        if !self.0.active.swap(true, Ordering::Relaxed) {
            let shared = Arc::downgrade(&self.0);
            let thread = std::thread::Builder::new().name("replaced-files".into());
            // Without the thread nothing would close the files.
            let started = thread.spawn(move || release(&shared)).is_ok();
            self.0.active.store(started, Ordering::Relaxed);
        }
    }

    /// Keeps a file that a thread has looked up, if an operation of it has met one that is gone. Returns whether it is kept.
    pub(crate) fn keep(&self, thread: u32, key: FileKey, file: Orphan) -> bool {
        let mut queue = self.0.queue.lock();
        let again = |(since, other): &(Instant, u32)| *other == thread && since.elapsed() < HOLD;
        if !self.are_kept() || !queue.met.iter().any(again) {
            return false;
        }
        let oldest = if queue.files.len() == MOST { queue.files.pop_front() } else { None };
        queue.files.push_back((Instant::now(), thread, key, Arc::new(file)));
        drop(queue);
        drop(oldest);
        true
    }

    /// Returns a file that a thread has just looked up.
    pub(crate) fn find(&self, thread: u32, key: FileKey) -> Option<Arc<Orphan>> {
        if !self.are_kept() {
            return None;
        }
        let queue = self.0.queue.lock();
        let wanted = |kept: &&(Instant, u32, FileKey, Arc<Orphan>)| {
            kept.1 == thread && kept.2 == key && kept.0.elapsed() < HOLD
        };
        queue.files.iter().rev().find(wanted).map(|(.., file)| file.clone())
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
        queue.met.retain(|(since, _)| since.elapsed() < HOLD);
        let ends = queue.files.is_empty() && queue.met.is_empty();
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
