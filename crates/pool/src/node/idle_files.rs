//! Files that were read and closed a moment ago, and are still open on their branch.
//!
//! A file that was read is often read again soon. Opening it on the branch, registering it for passthrough and
//! undoing both costs more than the rest of an open, so the file of the last reader stays open for a moment.
//! Meanwhile it counts as closed: an open for anything but reading opens it afresh, and an operation that removes or
//! moves it closes it first. It is open for reading only, so its filesystem can still be remounted read-only. An open
//! that uses it again has looked the name up first, like any open, and the name must lead to this file.

use super::Node;
use super::handles::FileHandle;
use super::open_file::{IdleState, OpenFile};
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::Branches;
use canopy_branch::tend;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// The pause between two checks. A file that was not used between two checks is closed.
const CHECK_PAUSE: Duration = Duration::from_millis(500);

/// The name of the threads that close them, one for each branch.
const CLOSES: &CStr = c"idle-files";

/// The most idle files.
const MAX_FILES: u64 = 512;
/// The share of the process's descriptors for idle files: one in so many.
const SHARE: u64 = 16;

pub(crate) struct IdleFiles {
    shared: Arc<Shared>,
    most: usize,
    /// How often all were closed.
    cleared: AtomicU32,
}

#[derive(Default)]
struct Shared(Mutex<Queue, rank::Leaf>);

#[derive(Default)]
struct Queue {
    /// Oldest first. Some may be in use again.
    files: VecDeque<Arc<OpenFile>>,
    /// The queue is checked again and again.
    watching: bool,
}

impl IdleFiles {
    /// Prepares for a process that may have `descriptors` descriptors.
    pub(crate) fn new(descriptors: u64) -> IdleFiles {
        let most = (descriptors / SHARE).min(MAX_FILES) as usize;
        IdleFiles { shared: Arc::default(), most, cleared: AtomicU32::new(0) }
    }

    /// Prepares the state of a file that will be opened.
    pub(crate) fn begin(&self) -> IdleState {
        IdleState {
            cleared: self.cleared.load(Ordering::Acquire),
            queued: AtomicBool::new(false),
            used: AtomicBool::new(false),
        }
    }

    /// Keeps the file of a handle that is about to be closed, if no other handle has it open and it can be used
    /// again.
    pub(crate) fn keep(&self, handle: &FileHandle, branches: &Branches) {
        // Held until the file is in the queue: an operation that removes its last name pins the file, then
        // closes idle files.
        let slot = handle.node.open().lock();
        let open = &*handle.open;
        let location = open.location();
        // What is read from a copy is looked at anew at each open.
        let fits =
            location.reads.is_some() && open.users() == 1 && !open.is_detached() && open.copy().is_none();
        let branch_stays = || branches.index_of(location.branch.id).is_some();
        // A file that was opened before `clear` might have to be opened differently now.
        let fits = fits && open.idle.cleared == self.cleared.load(Ordering::Acquire);
        if !fits || handle.node.orphan().is_some() || !branch_stays() {
            return;
        }
        open.idle.used.store(true, Ordering::Relaxed);
        if open.idle.queued.load(Ordering::Relaxed) {
            // The usual case, without a contended lock. If the file is dropped from the queue right now,
            // the next open opens it afresh.
            return;
        }
        let mut queue = self.shared.0.lock();
        let oldest = if open.idle.queued.swap(true, Ordering::Relaxed) {
            None
        } else {
            queue.files.push_back(Arc::clone(open));
            if queue.files.len() > self.most { queue.pop() } else { None }
        };
        let begins = !std::mem::replace(&mut queue.watching, true);
        drop(queue);
        drop(slot);
        if begins {
            tend::sweep(CHECK_PAUSE, (CLOSES, 0), &self.shared, close_unused);
        }
        drop(oldest);
    }

    /// Returns the file of a node if it is idle.
    pub(crate) fn of(&self, node: &Node) -> Option<Arc<OpenFile>> {
        node.open_if_any()?.lock().upgrade().filter(|open| open.users() == 0)
    }

    /// Closes the file of a node as soon as no handle has it open. Called when the node or its name goes.
    pub(crate) fn close(&self, node: &Node) {
        let Some(slot) = node.open_if_any() else { return };
        let slot = slot.lock();
        let Some(open) = slot.upgrade() else { return };
        self.give_up(&open);
        drop(slot);
        drop(open);
    }

    /// Keeps a file open only as long as a handle has it open.
    pub(crate) fn give_up(&self, open: &Arc<OpenFile>) {
        let mut queue = self.shared.0.lock();
        if open.idle.queued.swap(false, Ordering::Relaxed) {
            queue.files.retain(|file| !Arc::ptr_eq(file, open));
        }
    }

    /// Closes all idle files, and the others once no handle has them open.
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

/// Closes unused files; returns whether others are left.
fn close_unused(shared: &Arc<Shared>) -> bool {
    let mut queue = shared.0.lock();
    let (used, unused): (VecDeque<_>, VecDeque<_>) = queue.clear().into_iter().partition(|file| {
        let used = file.idle.used.swap(false, Ordering::Relaxed) && file.users() == 0;
        file.idle.queued.store(used, Ordering::Relaxed);
        used
    });
    queue.files = used;
    queue.watching = !queue.files.is_empty();
    let more = queue.watching;
    drop(queue);
    for file in unused {
        let branch = file.location().branch.id;
        tend::apart((CLOSES, branch.0.into()), move || drop(file));
    }
    more
}
