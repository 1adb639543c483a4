//! Files that have changed of late, and whose attributes the kernel may rely upon all the same.
//!
//! Nothing tells that somebody writes a file on a branch before he closes it, and what has changed of late is likely to
//! change again. So such files are looked at once a second for as long as they are young; where one has changed, the
//! kernel is told to ask again. There is room for so many; others are given out for a short time.

use super::dispatch::Dispatch;
use super::fresh::{NOBODY, Subject};
use canopy_fuse as wire;
use canopy_pool::{Attr, NodeId, Time};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{self, Thread};
use std::time::Duration;

/// Files are at most looked at every so often.
const EVERY: Duration = Duration::from_secs(1);
/// Attributes of others are relied upon for this long at most.
pub(super) const OLD: Duration = Duration::from_secs(10);

/// How many; a power of two.
const FILES: u64 = 4096;
/// Bits of a slot that tell the attributes; those above tell the node, less what the slot's place tells of it. A node
/// whose number does not fit, after 2^40 others, is not taken.
const PRINT: u32 = 36;

#[derive(Default)]
pub(super) struct Young {
    /// By node: which it is, and what its attributes were when they were given last. 0: none.
    slots: Slots,
    /// Nothing is being looked at.
    idle: AtomicBool,
    looking: OnceLock<Thread>,
}

struct Slots(Box<[AtomicU64]>);

impl Default for Slots {
    fn default() -> Self {
        Slots((0..FILES).map(|_| AtomicU64::new(0)).collect())
    }
}

/// In whole seconds.
pub(super) fn age(time: Time) -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse).tv_sec;
    Duration::from_secs(u64::try_from(now.saturating_sub(time.sec)).unwrap_or_default())
}

/// A node and its attributes as a slot holds them; never 0.
fn packed(node: NodeId, attr: &Attr) -> Option<u64> {
    let high = node.0 / FILES;
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let time = |time: Time| (time.sec.cast_unsigned() << 30) | u64::from(time.nsec);
    let print = mix(mix(mix(1, attr.size), time(attr.mtime)), time(attr.ctime)) >> (64 - PRINT);
    (high < 1 << (64 - PRINT)).then_some(high << PRINT | print | 1)
}

impl Young {
    /// Attributes of a regular file are about to be given; true if they will be looked at again.
    pub(super) fn takes(&self, node: NodeId, attr: &Attr) -> bool {
        let Some(new) = packed(node, attr) else { return false };
        let slot = &self.slots.0[(node.0 % FILES) as usize];
        let mut held = slot.load(SeqCst);
        while held != new {
            if held != 0 && held >> PRINT != new >> PRINT {
                return false;
            }
            match slot.compare_exchange(held, new, SeqCst, SeqCst) {
                Ok(_) => break,
                Err(meanwhile) => held = meanwhile,
            }
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
    fn held(&self) -> impl Iterator<Item = (NodeId, &AtomicU64, u64)> {
        self.slots.0.iter().zip(0..).filter_map(|(slot, place)| {
            let held = slot.load(SeqCst);
            (held != 0).then(|| (NodeId((held >> PRINT) * FILES + place), slot, held))
        })
    }

    /// Begins to look at what is taken; ends with the pool.
    pub(super) fn look(serving: &Dispatch) -> io::Result<()> {
        let weak = serving.own.clone();
        let thread = thread::Builder::new().name("canopy-young".into()).spawn(move || {
            loop {
                let Some(serving) = weak.upgrade() else { return };
                let rests = serving.young.sweep(&serving);
                drop(serving);
                match rests {
                    true => thread::park(),
                    false => thread::park_timeout(EVERY),
                }
            }
        })?;
        let _ = serving.young.looking.set(thread.thread().clone());
        Ok(())
    }

    /// Looks at all of them; true when there is none.
    fn sweep(&self, serving: &Dispatch) -> bool {
        for (node, slot, held) in self.held() {
            let attr = serving.pool.getattr(node, None);
            let same = attr.as_ref().is_ok_and(|attr| packed(node, attr) == Some(held));
            if same && attr.is_ok_and(|attr| age(attr.ctime) < OLD) {
                continue;
            }
            // Given once more meanwhile, it is looked at once more.
            let _ = slot.compare_exchange(held, 0, SeqCst, SeqCst);
            if !same {
                serving.pool.attributes_changed(node);
                serving.fresh.changed(Subject::attributes(node), NOBODY);
                let _ = serving.notifier.forget_attributes(wire::NodeId(node.0));
            }
        }
        self.idle.store(true, SeqCst);
        let rests = self.held().next().is_none();
        if !rests {
            self.idle.store(false, SeqCst);
        }
        rests
    }
}

impl Drop for Young {
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
        let young = Young::default();
        for node in [1, FILES - 1, FILES, 5 * FILES + 7, (1 << 40) - FILES + 8] {
            assert!(young.takes(NodeId(node), &attr(1, 2)), "{node}");
        }
        let mut nodes: Vec<u64> = young.held().map(|(node, ..)| node.0).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [1, FILES - 1, FILES, 5 * FILES + 7, (1 << 40) - FILES + 8]);
        let print = |attr| packed(NodeId(9), &attr);
        assert_eq!(print(attr(1, 2)), print(attr(1, 2)));
        assert_ne!(print(attr(1, 2)), print(attr(2, 2)));
        assert_ne!(print(attr(1, 2)), print(attr(1, 3)));
    }

    #[test]
    fn whose_slot_is_taken_is_not() {
        let young = Young::default();
        assert!(young.takes(NodeId(7), &attr(1, 2)) && young.takes(NodeId(7), &attr(2, 2)));
        assert!(!young.takes(NodeId(7 + FILES), &attr(1, 2)));
        assert!(!young.takes(NodeId(1 << 40), &attr(1, 2)), "its number does not fit");
        assert_eq!(young.held().count(), 1);
    }
}
