//! Files that stay open for a moment because their names may be replaced, on the branch, before the kernel uses them.
//!
//! The kernel looks a name up, then sends the operation. If the name leads to another file by then, the answer is ESTALE, and the
//! kernel tries once more. A name that is replaced, or exchanged with another one, all the time would make that fail, too. So
//! once an operation has met this, files that its thread then looks up are kept open until their operations must have come. These
//! act on the file whose attributes the kernel has checked, as if they had come before the name was replaced.
//!
//! A name that is made and removed all the time fails the other way: the kernel finds it missing, sends a CREATE, and it is there.
//! A CREATE opens nothing that is there, as the kernel has not judged it, so this is ESTALE, too. The kernel then looks the name up,
//! and if it is missing once more, its second CREATE is its last. That one [waits](ReplacedFiles::outlasts) until the name is gone.
//!
//! The kernel may not cache what was looked up so: the thread's next operation looks the name up again, and does not act on a file
//! that the thread itself has moved away meanwhile.

use crate::node::Orphan;
use canopy_base::ids::NodeId;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::fs::stat::FileKey;
use canopy_branch::tend::{self, Line};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// For how long an operation of a thread that has met a file that is gone counts as tried again. The kernel looks the name up
/// again at once.
const HOLD: Duration = Duration::from_secs(1);

/// In which the files are closed.
const LINE: Line = (c"replaced-files", 0);

/// The most files that are kept.
const MOST: usize = 256;

/// How often a CREATE looks whether its name is gone by now, and the first and the longest pause before: a tenth of a second in all,
/// for a program that comes to no processor after it has made the name.
const LOOKS: u32 = 16;
const PAUSES: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(10)];

/// How many may do so at a time. Each keeps a worker.
const MOST_PAUSING: usize = 8;

#[derive(Default)]
pub(crate) struct ReplacedFiles(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Files are kept now. Changes with the queue locked.
    active: AtomicBool,
    pausing: AtomicUsize,
    queue: Mutex<Queue, rank::Leaf>,
}

#[derive(Default)]
struct Queue {
    /// With the threads that have looked them up; oldest first.
    files: VecDeque<(Instant, u32, FileKey, Arc<Orphan>)>,
    /// Threads that have met a file that is gone, or have come upon one that they were to create, and when; oldest first.
    met: VecDeque<(Instant, u32, Met)>,
}

enum Met {
    Gone,
    There(NodeId, Box<[u8]>),
}

impl ReplacedFiles {
    /// Returns whether files that are looked up shall be kept.
    pub(crate) fn are_kept(&self) -> bool {
        self.0.active.load(Ordering::Relaxed)
    }

    /// An operation of a thread has met a file that is gone. Files that it looks up are kept from now on, for a while.
    pub(crate) fn met(&self, thread: u32) {
        self.note(thread, Met::Gone, |_| ());
    }

    /// The CREATE of a thread has come upon a file. Returns whether to try it again, which it may want `tries` times after a pause: the
    /// first time the kernel looks the name up, and opens the file.
    pub(crate) fn outlasts(&self, thread: u32, dir: NodeId, name: &[u8], tries: u32) -> bool {
        let is_last = |met: &Met| match met {
            Met::Gone => true,
            Met::There(other, file) => (*other, &**file) == (dir, name),
        };
        if thread == 0 || tries == LOOKS {
            return false;
        }
        if tries == 0
            && !self.note(thread, Met::There(dir, name.into()), |before| before.is_some_and(is_last))
        {
            return false;
        }
        let goes_on = self.0.pausing.fetch_add(1, Ordering::Relaxed) < MOST_PAUSING;
        if goes_on {
            std::thread::sleep(PAUSES[1].min(PAUSES[0] * 2_u32.pow(tries)));
        }
        self.0.pausing.fetch_sub(1, Ordering::Relaxed);
        goes_on
    }

    /// Records what a thread has met, and returns what `read` makes of what it had met before that, within [`HOLD`].
    fn note<T>(&self, thread: u32, met: Met, read: impl FnOnce(Option<&Met>) -> T) -> T {
        let mut queue = self.0.queue.lock();
        let before = queue.met.iter().position(|(_, other, _)| *other == thread);
        let before = before.and_then(|at| queue.met.remove(at)).filter(|(since, ..)| since.elapsed() < HOLD);
        let answer = read(before.as_ref().map(|(.., met)| met));
        if queue.met.len() == MOST {
            queue.met.pop_front();
        }
        queue.met.push_back((Instant::now(), thread, met));
        let begins = !self.0.active.swap(true, Ordering::Relaxed);
        drop(queue);
        if begins {
            tend::sweep(HOLD / 4, LINE, &self.0, release);
        }
        answer
    }

    /// Keeps a file that a thread has looked up, if an operation of it has met one that is gone. Returns whether it is kept.
    pub(crate) fn keep(&self, thread: u32, key: FileKey, file: Orphan) -> bool {
        let mut queue = self.0.queue.lock();
        let again = |(since, other, _): &(Instant, u32, Met)| *other == thread && since.elapsed() < HOLD;
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

/// Closes files that were kept long enough; returns whether there are more.
fn release(shared: &Arc<Shared>) -> bool {
    let mut queue = shared.queue.lock();
    let first_young =
        queue.files.iter().position(|(since, ..)| since.elapsed() < HOLD).unwrap_or(queue.files.len());
    let young = queue.files.split_off(first_young);
    let expired = std::mem::replace(&mut queue.files, young);
    queue.met.retain(|(since, ..)| since.elapsed() < HOLD);
    let more = !queue.files.is_empty() || !queue.met.is_empty();
    shared.active.store(more, Ordering::Relaxed);
    drop(queue);
    if !expired.is_empty() {
        tend::apart(LINE, move || drop(expired));
    }
    more
}
