//! Files that have changed of late, and whose attributes the kernel may rely upon all the same.
//!
//! Nothing tells that somebody writes a file on a branch before he closes it, and what has changed of late is likely to
//! change again. So such files are looked at once a second for as long as they are young; where one has changed, the
//! kernel is told to ask again. There is room for so many; others are given out for a short time.

use super::Coherence;
use canopy_pool::{Attr, NodeId, Time};
use parking_lot::Mutex;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, Thread};
use std::time::Duration;

/// Files are at most looked at every so often.
const EVERY: Duration = Duration::from_secs(1);
/// Attributes of others are relied upon for this long at most.
pub(crate) const OLD: Duration = Duration::from_secs(10);

/// How many; a power of two.
const FILES: usize = 4096;

#[derive(Default)]
pub(crate) struct RecentFiles {
    /// By node: which it is, and what its attributes were when they were given last.
    slots: Slots,
    /// Nothing is being looked at.
    idle: AtomicBool,
    looking: OnceLock<Thread>,
}

struct Slots(Box<[Mutex<Option<Held>>]>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Held {
    node: NodeId,
    print: u64,
}

impl Default for Slots {
    fn default() -> Self {
        Slots((0..FILES).map(|_| Mutex::default()).collect())
    }
}

/// In whole seconds.
pub(crate) fn age(time: Time) -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse).tv_sec;
    Duration::from_secs(u64::try_from(now.saturating_sub(time.sec)).unwrap_or_default())
}

impl Held {
    fn new(node: NodeId, attr: &Attr) -> Held {
        let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let time = |time: Time| (time.sec.cast_unsigned() << 30) | u64::from(time.nsec);
        let print = mix(mix(mix(1, attr.size), time(attr.mtime)), time(attr.ctime));
        Held { node, print }
    }
}

impl RecentFiles {
    /// Attributes of a regular file are about to be given; true if they will be looked at again.
    pub(crate) fn takes(&self, node: NodeId, attr: &Attr) -> bool {
        let new = Held::new(node, attr);
        match &mut *self.slots.0[node.0 as usize % FILES].lock() {
            Some(held) if held.node != node => return false,
            slot => *slot = Some(new),
        }
        if self.idle.load(SeqCst)
            && self.idle.swap(false, SeqCst)
            && let Some(thread) = self.looking.get()
        {
            thread.unpark();
        }
        true
    }

    /// Those that are held, each with its slot.
    fn held(&self) -> impl Iterator<Item = (Held, &Mutex<Option<Held>>)> {
        self.slots.0.iter().filter_map(|slot| Some(((*slot.lock())?, slot)))
    }
}

impl Coherence {
    /// Starts to look at recent files; ends with the pool.
    pub(super) fn look_at_recent_files(&self) -> io::Result<()> {
        let weak = self.own.clone();
        let thread = thread::Builder::new().name("canopy-recent".into()).spawn(move || {
            loop {
                let Some(coherence) = weak.upgrade() else { return };
                let rests = coherence.sweep_recent_files();
                drop(coherence);
                match rests {
                    true => thread::park(),
                    false => thread::park_timeout(EVERY),
                }
            }
        })?;
        let _ = self.recent.looking.set(thread.thread().clone());
        Ok(())
    }

    /// Looks at all of them; true when there is none.
    fn sweep_recent_files(&self) -> bool {
        for (held, slot) in self.recent.held() {
            let node = held.node;
            let attr = self.pool.getattr(node, None);
            let same = attr.as_ref().is_ok_and(|attr| Held::new(node, attr) == held);
            if same && attr.is_ok_and(|attr| age(attr.ctime) < OLD) {
                continue;
            }
            let mut slot = slot.lock();
            // Given once more meanwhile, it is looked at once more.
            if *slot == Some(held) {
                *slot = None;
            }
            drop(slot);
            if !same {
                self.attributes_changed(node);
                self.expire_node(node, false);
            }
        }
        self.recent.idle.store(true, SeqCst);
        let rests = self.recent.held().next().is_none();
        if !rests {
            self.recent.idle.store(false, SeqCst);
        }
        rests
    }
}

impl Drop for RecentFiles {
    fn drop(&mut self) {
        if let Some(thread) = self.looking.get() {
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
    fn a_slot_tells_its_node_and_whether_the_attributes_are_the_same() {
        let recent = RecentFiles::default();
        let nodes = [1, FILES as u64 - 1, FILES as u64, 5 * FILES as u64 + 7, u64::MAX - 5];
        for node in nodes {
            assert!(recent.takes(NodeId(node), &attr(1, 2)), "{node}");
        }
        let mut held: Vec<u64> = recent.held().map(|(held, _)| held.node.0).collect();
        held.sort_unstable();
        assert_eq!(held, nodes);
        let held = |attr| Held::new(NodeId(9), &attr);
        assert!(held(attr(1, 2)) == held(attr(1, 2)));
        assert!(held(attr(1, 2)) != held(attr(2, 2)));
        assert!(held(attr(1, 2)) != held(attr(1, 3)));
    }

    #[test]
    fn whose_slot_is_taken_is_not() {
        let recent = RecentFiles::default();
        assert!(recent.takes(NodeId(7), &attr(1, 2)) && recent.takes(NodeId(7), &attr(2, 2)));
        assert!(!recent.takes(NodeId(7 + FILES as u64), &attr(1, 2)));
        assert_eq!(recent.held().count(), 1);
    }
}
