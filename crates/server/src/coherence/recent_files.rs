//! Recently changed files, whose attributes the kernel may cache all the same.
//!
//! There is no event while a program writes to a file on a branch, only when it closes it, and a file that has just
//! changed is likely to change again. So such files are rechecked once a second until their last change is
//! [`SETTLED`] ago, and the kernel is notified when one has changed. The number of slots is limited; files without
//! one get a short TTL.

use super::Coherence;
use crate::lock_rank as rank;
use canopy_base::ids::NodeId;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::fs::stat::{Attr, Time};
use canopy_pool::coherence::changes::{Change, Client};
use canopy_pool::ops;
use rustix::io::Errno;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, Thread};
use std::time::Duration;

/// How often the files are rechecked.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long after its last change a file is rechecked, and the longest TTL for attributes.
pub(crate) const SETTLED: Duration = Duration::from_secs(10);

/// On how many branches a file is searched for to recheck it. To search many for thousands of files costs more than to
/// let the kernel ask for those it needs.
const FEW_BRANCHES: usize = 4;

/// The number of slots, a power of two.
const SLOTS: usize = 4096;

#[derive(Default)]
pub(crate) struct RecentFiles {
    /// By node: the node, and its attributes when they were last given out.
    slots: Slots,
    /// The thread has nothing to recheck.
    idle: AtomicBool,
    thread: OnceLock<Thread>,
}

struct Slots(Box<[Slot]>);

type Slot = Mutex<Option<Tracked>, rank::RecentFile>;

impl Slots {
    fn of(&self, node: NodeId) -> &Slot {
        &self.0[node.0 as usize % SLOTS]
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Tracked {
    node: NodeId,
    fingerprint: u64,
    /// The file was closed after writing since.
    closed: bool,
}

impl Default for Slots {
    fn default() -> Self {
        Slots((0..SLOTS).map(|_| Mutex::default()).collect())
    }
}

/// Returns how long ago `time` was, in whole seconds.
pub(crate) fn age(time: Time) -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse).tv_sec;
    Duration::from_secs(u64::try_from(now.saturating_sub(time.sec)).unwrap_or_default())
}

impl Tracked {
    fn new(node: NodeId, attr: &Attr) -> Tracked {
        let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let time = |time: Time| (time.sec.cast_unsigned() << 30) | u64::from(time.nsec);
        let fingerprint = mix(mix(mix(1, attr.size), time(attr.mtime)), time(attr.ctime));
        Tracked { node, fingerprint, closed: false }
    }
}

impl RecentFiles {
    /// Tracks a regular file whose attributes are about to be given out. Returns whether it will be rechecked.
    pub(crate) fn track(&self, node: NodeId, attr: &Attr) -> bool {
        let new = Tracked::new(node, attr);
        match &mut *self.slots.of(node).lock() {
            Some(tracked) if tracked.node != node => return false,
            slot => *slot = Some(new),
        }
        self.wake();
        true
    }

    /// Records that a file was closed after writing.
    fn closed(&self, node: NodeId) {
        if let Some(tracked) = self.slots.of(node).lock().as_mut().filter(|tracked| tracked.node == node) {
            tracked.closed = true;
        }
    }

    /// Returns whether the attributes of a file have certainly been given out since it was closed.
    fn given_since_close(&self, node: NodeId) -> bool {
        self.slots.of(node).lock().is_some_and(|tracked| tracked.node == node && !tracked.closed)
    }

    /// Wakes the thread if it has nothing to recheck.
    fn wake(&self) {
        if self.idle.load(SeqCst)
            && self.idle.swap(false, SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Iterates over the tracked files and their slots.
    fn tracked(&self) -> impl Iterator<Item = (Tracked, &Slot)> {
        self.slots.0.iter().filter_map(|slot| Some(((*slot.lock())?, slot)))
    }
}

impl Coherence {
    /// Makes sure that the thread runs, because a listing will have to be dropped.
    pub(super) fn wake_rechecks(&self) {
        self.recent.wake();
    }

    /// Records that a file was closed after writing. Must be followed by [`Coherence::expire_closed_file`].
    pub(crate) fn file_closed(&self, node: NodeId) {
        // An answer that was read before is overtaken by the change, or was tracked before (`Answer::attr_ttl`).
        self.tell(Change::Attributes(node), Client::Outside);
        self.recent.closed(node);
    }

    /// Makes the kernel fetch the attributes of a closed file again, unless it has been given them since.
    pub(crate) fn expire_closed_file(&self, node: NodeId) {
        if !self.recent.given_since_close(node) {
            self.expire_node(node, false);
        }
    }

    /// Starts the thread that rechecks recent files and drops listings. It ends with the pool.
    pub(super) fn start_rechecks(&self) -> io::Result<()> {
        let weak = self.weak_self.clone();
        let thread = thread::Builder::new().name("canopy-recent".into()).spawn(move || {
            loop {
                let Some(coherence) = weak.upgrade() else { return };
                coherence.drop_due_listings();
                let idle = coherence.recheck_recent_files();
                drop(coherence);
                if idle { thread::park() } else { thread::park_timeout(RECHECK_INTERVAL) }
            }
        })?;
        let _ = self.recent.thread.set(thread.thread().clone());
        Ok(())
    }

    /// Rechecks all tracked files; returns whether none is left, and no listing either.
    fn recheck_recent_files(&self) -> bool {
        for (tracked, slot) in self.recent.tracked() {
            let node = tracked.node;
            let attr = ops::names::lookup::attr_at_hand(&self.pool, node, FEW_BRANCHES);
            let known = attr.as_ref().and_then(|attr| attr.as_ref().ok());
            // The kernel was told when the name went: by an answer, or by a notification.
            let gone = matches!(&attr, Some(Err(why)) if matches!(why.errno(), Errno::NOENT | Errno::STALE));
            let same = known.is_some_and(|attr| Tracked::new(node, attr).fingerprint == tracked.fingerprint);
            if same && known.is_some_and(|attr| age(attr.ctime) < SETTLED) {
                continue;
            }
            let mut slot = slot.lock();
            // Tracked again meanwhile, it is rechecked again.
            if *slot == Some(tracked) {
                *slot = None;
            }
            drop(slot);
            if !same && !gone {
                self.tell(Change::Attributes(node), Client::Outside);
                self.expire_node(node, false);
            }
        }
        self.recent.idle.store(true, SeqCst);
        let idle = self.recent.tracked().next().is_none() && self.kept.is_idle();
        if !idle {
            self.recent.idle.store(false, SeqCst);
        }
        idle
    }
}

impl Drop for RecentFiles {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(size: u64, nsec: u32) -> Attr {
        Attr { size, mtime: Time { sec: 1_800_000_000, nsec }, ..Attr::default() }
    }

    #[test]
    fn a_slot_holds_its_node_and_detects_changed_attributes() {
        let recent = RecentFiles::default();
        let nodes = [1, SLOTS as u64 - 1, SLOTS as u64, 5 * SLOTS as u64 + 7, u64::MAX - 5];
        for node in nodes {
            assert!(recent.track(NodeId(node), &attr(1, 2)), "{node}");
        }
        let mut tracked: Vec<u64> = recent.tracked().map(|(tracked, _)| tracked.node.0).collect();
        tracked.sort_unstable();
        assert_eq!(tracked, nodes);
        let tracked = |attr| Tracked::new(NodeId(9), &attr);
        assert!(tracked(attr(1, 2)) == tracked(attr(1, 2)));
        assert!(tracked(attr(1, 2)) != tracked(attr(2, 2)));
        assert!(tracked(attr(1, 2)) != tracked(attr(1, 3)));
    }

    #[test]
    fn a_file_whose_slot_is_taken_is_not_tracked() {
        let recent = RecentFiles::default();
        assert!(recent.track(NodeId(7), &attr(1, 2)) && recent.track(NodeId(7), &attr(2, 2)));
        assert!(!recent.track(NodeId(7 + SLOTS as u64), &attr(1, 2)));
        assert_eq!(recent.tracked().count(), 1);
    }

    #[test]
    fn a_closed_file_is_known_to_be_given_out_again() {
        let recent = RecentFiles::default();
        let (file, other) = (NodeId(7), NodeId(7 + SLOTS as u64));
        recent.closed(file);
        assert!(!recent.given_since_close(file), "it is not tracked");
        recent.track(file, &attr(1, 2));
        assert!(recent.given_since_close(file) && !recent.given_since_close(other));
        recent.closed(other);
        assert!(recent.given_since_close(file), "another one was closed");
        recent.closed(file);
        assert!(!recent.given_since_close(file));
        recent.track(file, &attr(1, 2));
        assert!(recent.given_since_close(file));
    }
}
