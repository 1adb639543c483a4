//! A slot for each thread that uses paths.

use super::LAST_LOOK;
use super::scope::{Changing, Tree, Used, Uses, touches};
use super::sync::{self, AtomicU64, AtomicUsize, Ordering};

/// As many threads can use paths at once. There are fewer workers than that, the ones that are stuck included.
#[cfg(not(loom))]
const SLOTS: usize = 1024;
#[cfg(loom)]
const SLOTS: usize = 2;

/// The slots, and how many of them were ever taken.
pub(super) struct Slots {
    slots: Box<[Slot]>,
    high: AtomicUsize,
}

/// What one thread uses.
#[derive(Default)]
#[repr(align(64))]
struct Slot {
    /// Odd while it is taken.
    taken: AtomicU64,
    nodes: [AtomicU64; 2],
    names: [AtomicU64; 2],
}

impl Default for Slots {
    fn default() -> Slots {
        Slots { slots: (0..SLOTS).map(|_| Slot::default()).collect(), high: AtomicUsize::new(0) }
    }
}

impl Slots {
    /// Takes a slot: the one that the calling thread had last, if no other thread has it, so that threads rarely meet.
    pub(super) fn take(&self, uses: Uses) -> usize {
        let first = sync::last_slot();
        loop {
            for index in (first..SLOTS).chain(0..first) {
                let slot = &self.slots[index];
                let taken = slot.taken.load(Ordering::Relaxed);
                let take = |taken| {
                    slot.taken.compare_exchange(taken, taken + 1, Ordering::Acquire, Ordering::Relaxed)
                };
                if taken % 2 == 1 || take(taken).is_err() {
                    continue;
                }
                if self.high.load(Ordering::Relaxed) <= index {
                    self.high.fetch_max(index + 1, Ordering::Relaxed);
                }
                for (at, used) in uses.0.iter().enumerate() {
                    slot.nodes[at].store(used.node, Ordering::Relaxed);
                    slot.names[at].store(u64::from(used.name), Ordering::Relaxed);
                }
                if index != first {
                    sync::set_last_slot(index);
                }
                return index;
            }
            sync::pause(LAST_LOOK);
        }
    }

    pub(super) fn leave(&self, index: usize) {
        // Only the thread that has it writes it.
        let taken = self.slots[index].taken.load(Ordering::Relaxed);
        debug_assert!(taken % 2 == 1);
        self.slots[index].taken.store(taken + 1, Ordering::Release);
    }

    /// Returns whether anybody uses what is about to change.
    pub(super) fn any_uses(&self, scope: &[Changing], tree: &impl Tree) -> bool {
        let high = self.high.load(Ordering::Relaxed);
        self.slots[..high].iter().any(|slot| {
            // What is read of a slot that is just being written may be old. Then its thread sees the claim.
            slot.taken.load(Ordering::Acquire) % 2 == 1
                && touches(
                    scope,
                    (0..2).map(|at| Used {
                        node: slot.nodes[at].load(Ordering::Relaxed),
                        name: slot.names[at].load(Ordering::Relaxed) as u32,
                    }),
                    tree,
                )
        })
    }
}
