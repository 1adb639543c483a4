//! Files that somebody has read and closed a moment ago, still open on their branch.
//!
//! What is read once is often read again soon. Opening it on the branch, registering it for passthrough and taking both
//! back costs more than all else of an open, so the file of the last reader stays open for a moment. It counts as closed
//! meanwhile: whoever opens it for anything but reading opens it anew, and whoever removes or moves it closes it first. It is
//! open for reading alone, so it keeps nobody from remounting its filesystem read-only. Who uses it again has looked at
//! the name before, as at any open: what it leads to by now must be this file.

use super::Node;
use super::handles::FileHandle;
use super::open_file::{IdleState, OpenFile};
use crate::branch::Branches;
use crate::lock::rank;
use crate::lock::ranked::Mutex;
use canopy_sys::sched;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A file is closed when nobody has used it between two looks.
const MOMENT: Duration = Duration::from_millis(500);

/// How many, at most.
const FILES: u64 = 512;
/// Of the descriptors that the process may have, one in so many.
const SHARE: u64 = 16;

pub(crate) struct IdleFiles {
    shared: Arc<Shared>,
    most: usize,
    /// How often all were closed.
    cleared: AtomicU32,
}

#[derive(Default)]
struct Shared(Mutex<Queue, rank::IdleFiles>);

#[derive(Default)]
struct Queue {
    /// Oldest first. Some may be in use again.
    files: VecDeque<Arc<OpenFile>>,
    /// A thread looks at them.
    looking: bool,
}

impl IdleFiles {
    /// For a process that may have so many descriptors.
    pub(crate) fn new(descriptors: u64) -> IdleFiles {
        let most = (descriptors / SHARE).min(FILES) as usize;
        IdleFiles { shared: Arc::default(), most, cleared: AtomicU32::new(0) }
    }

    /// For a file that is about to be opened.
    pub(crate) fn begin(&self) -> IdleState {
        IdleState {
            cleared: self.cleared.load(Ordering::Acquire),
            queued: AtomicBool::new(false),
            used: AtomicBool::new(false),
        }
    }

    /// A handle is about to be closed: keeps its file, if nobody else has it open and it can be used again.
    pub(crate) fn keep(&self, handle: &FileHandle, branches: &Branches) {
        // Held until the file is in the queue: who removes its last name pins it, and then closes what is kept.
        let slot = handle.node.open.lock();
        let open = &*handle.open;
        let place = open.location();
        let fits = place.reads.is_some() && open.users() == 1 && !open.is_detached();
        let branch_stays = || branches.index_of(place.branch.id).is_some();
        // What was opened before all were closed would be opened otherwise now.
        let fits = fits && open.idle.cleared == self.cleared.load(Ordering::Acquire);
        if !fits || handle.node.orphan.lock().is_some() || !branch_stays() {
            return;
        }
        open.idle.used.store(true, Ordering::Relaxed);
        if open.idle.queued.load(Ordering::Relaxed) {
            // As a rule, and without a lock that others want. Should it be thrown out at this moment, it is opened anew.
            return;
        }
        let mut queue = self.shared.0.lock();
        let oldest = match open.idle.queued.swap(true, Ordering::Relaxed) {
            true => None,
            false => {
                queue.files.push_back(Arc::clone(open));
                if queue.files.len() > self.most { queue.pop() } else { None }
            }
        };
        if !std::mem::replace(&mut queue.looking, true) {
            let shared = Arc::downgrade(&self.shared);
            let thread = std::thread::Builder::new().name("kept".into());
            queue.looking = thread.spawn(move || look(&shared)).is_ok();
            if !queue.looking {
                // Nobody would close it.
                queue.clear();
            }
        }
        drop(queue);
        drop(slot);
        drop(oldest);
    }

    /// The file of a node that is only kept.
    pub(crate) fn of(&self, node: &Node) -> Option<Arc<OpenFile>> {
        node.open.lock().upgrade().filter(|open| open.users() == 0)
    }

    /// Closes the file of a node as soon as nobody has it open. To be called when the node goes, or its name.
    pub(crate) fn close(&self, node: &Node) {
        let slot = node.open.lock();
        let Some(open) = slot.upgrade() else { return };
        self.give_up(&open);
        drop(slot);
        drop(open);
    }

    /// Keeps a file no longer than somebody has it open.
    pub(crate) fn give_up(&self, open: &Arc<OpenFile>) {
        let mut queue = self.shared.0.lock();
        if open.idle.queued.swap(false, Ordering::Relaxed) {
            queue.files.retain(|file| !Arc::ptr_eq(file, open));
        }
    }

    /// Closes all that nobody has open, and the others once nobody has.
    pub(crate) fn clear(&self) {
        self.cleared.fetch_add(1, Ordering::Release);
        let files = self.shared.0.lock().clear();
        drop(files);
    }
}

impl Queue {
    fn pop(&mut self) -> Option<Arc<OpenFile>> {
        let oldest = self.files.pop_front()?;
        oldest.idle.queued.store(false, Ordering::Relaxed);
        Some(oldest)
    }

    fn clear(&mut self) -> VecDeque<Arc<OpenFile>> {
        for file in &self.files {
            file.idle.queued.store(false, Ordering::Relaxed);
        }
        std::mem::take(&mut self.files)
    }
}

/// Closes what is not used any more, until there is nothing left.
fn look(shared: &Weak<Shared>) {
    sched::unpin();
    loop {
        std::thread::sleep(MOMENT);
        let Some(shared) = shared.upgrade() else { return };
        let mut queue = shared.0.lock();
        let (used, unused) = queue.clear().into_iter().partition(|file| {
            let used = file.idle.used.swap(false, Ordering::Relaxed) && file.users() == 0;
            file.idle.queued.store(used, Ordering::Relaxed);
            used
        });
        queue.files = used;
        queue.looking = !queue.files.is_empty();
        let ends = !queue.looking;
        drop(queue);
        drop::<VecDeque<_>>(unused);
        if ends {
            return;
        }
    }
}
