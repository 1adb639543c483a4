//! A bound for the nodes that are known: beyond it, the kernel is asked to forget those that it has known longest.

use super::known_tree::known;
use super::nodes::Nodes;
use super::table::slab::Slot;
use canopy_base::ids::Known;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// What a known node costs, with its name and its share of the tables, in bytes.
const NODE_BYTES: u64 = 200;

/// How many nodes may come until the kernel is asked again: an answer to a notification takes a while.
const PAUSE: usize = 32;
/// The most nodes that the kernel is asked to forget at once.
const MOST_AT_ONCE: usize = 512;
/// How many nodes are looked at for each that is to be forgotten.
const LOOKS: usize = 8;

#[derive(Default)]
pub(crate) struct Surplus {
    /// The most nodes.
    bound: AtomicUsize,
    /// How many nodes had come when the kernel was asked last.
    asked: AtomicUsize,
    /// The index of the slot after the last node that the kernel was asked about. Slots are taken in about the order in
    /// which nodes come.
    hand: AtomicU32,
}

impl Nodes {
    /// Sets how many bytes known nodes may take.
    pub(crate) fn set_bound(&self, bytes: u64) {
        let nodes = usize::try_from(bytes / NODE_BYTES).unwrap_or(usize::MAX);
        self.surplus.bound.store(nodes, Ordering::Relaxed);
    }

    /// Returns how many nodes may be known.
    pub(crate) fn bound(&self) -> usize {
        self.surplus.bound.load(Ordering::Relaxed)
    }

    /// Returns true if so many nodes are known that the kernel should get no further ones that it did not ask for.
    pub(crate) fn is_overfull(&self) -> bool {
        let bound = self.surplus.bound.load(Ordering::Relaxed);
        self.tally.known.load(Ordering::Relaxed) > bound.saturating_add(bound / 8)
    }

    /// Returns the names of nodes that the kernel should be asked to forget, if any: now and then, while more are known
    /// than the bound allows. They are those that came first, except nodes that are certainly in use.
    pub(crate) fn surplus(&self) -> Vec<Known> {
        let surplus = &self.surplus;
        let known = self.tally.known.load(Ordering::Relaxed);
        if known <= surplus.bound.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let (come, asked) = (self.tally.come.load(Ordering::Relaxed), surplus.asked.load(Ordering::Relaxed));
        let since = come.wrapping_sub(asked);
        let asks =
            |_: &_| surplus.asked.compare_exchange(asked, come, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if Some(since).filter(|&since| since >= PAUSE).filter(asks).is_none() {
            return Vec::new();
        }
        self.oldest((2 * since).min(MOST_AT_ONCE))
    }

    /// As [`Nodes::surplus`], all that are too many by now, in several parts.
    pub(crate) fn all_surplus(&self) -> impl Iterator<Item = Vec<Known>> {
        let bound = self.surplus.bound.load(Ordering::Relaxed);
        let mut left = self.tally.known.load(Ordering::Relaxed).saturating_sub(bound);
        std::iter::from_fn(move || {
            let now = left.min(MOST_AT_ONCE);
            left -= now;
            (now > 0).then(|| self.oldest(now))
        })
    }

    fn oldest(&self, count: usize) -> Vec<Known> {
        let table = self.table.read();
        let hand = Slot::from_index(self.surplus.hand.load(Ordering::Relaxed));
        let (mut found, mut last) = (Vec::new(), hand);
        for (slot, record) in table.records.from(hand).take(LOOKS * count) {
            last = slot;
            let node = &record.node;
            let in_use =
                node.lookups.load(Ordering::Relaxed) == 0 || node.is_open() || table.has_children(slot);
            if let Some(name) = record.names.newest().filter(|_| !in_use)
                && let Some(parent) = table.at(name.parent)
            {
                found.push(known(parent.id, name.text(), node));
                if found.len() == count {
                    break;
                }
            }
        }
        self.surplus.hand.store(last.index().wrapping_add(1), Ordering::Relaxed);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Identity;
    use crate::node::nodes::tests::branch;
    use canopy_base::ids::NodeId;
    use canopy_branch::fs::stat::FileKey;

    #[test]
    fn nodes_beyond_the_bound_are_forgotten_oldest_first() {
        let (nodes, branch) = (Nodes::new(1), branch());
        let bound = 1000;
        nodes.set_bound(bound as u64 * NODE_BYTES);
        let dir = nodes.give_out_dir(NodeId::ROOT, b"d", 2, || None).unwrap();
        let mut asked = Vec::new();
        for number in 0..5 * bound as u64 {
            let key = FileKey { dev: 1, ino: number, birth: (0, 0) };
            let name = format!("file{number}");
            nodes.hand_out_file(dir.id, name.as_bytes(), &branch, key, false).unwrap();
            for known in nodes.surplus() {
                assert!(!known.is_dir, "it has names");
                let Identity::File(key) = nodes.get(known.node).unwrap().identity() else { panic!("a file") };
                assert_eq!((known.parent, &*known.name), (dir.id, format!("file{}", key.ino).as_bytes()));
                asked.push(key.ino);
                nodes.forget(known.node, 1, |_| {});
            }
            assert!(!nodes.is_overfull() && nodes.len() <= bound + 2 * PAUSE);
        }
        assert!(asked.len() > 3 * bound, "{} nodes", asked.len());
        let first: Vec<u64> = asked.iter().copied().take(bound / 2).collect();
        assert_eq!(first, (0..bound as u64 / 2).collect::<Vec<_>>(), "those that came first");
    }

    #[test]
    fn a_kernel_that_keeps_nodes_is_not_asked_for_ever() {
        let (nodes, branch) = (Nodes::new(1), branch());
        nodes.set_bound(10 * NODE_BYTES);
        let mut asked = 0;
        for number in 0..1000 {
            let key = FileKey { dev: 1, ino: number, birth: (0, 0) };
            nodes.hand_out_file(NodeId::ROOT, &number.to_ne_bytes(), &branch, key, false).unwrap();
            asked += nodes.surplus().len();
        }
        assert!(nodes.is_overfull() && asked <= 2 * 1000, "{asked}");
        assert!(nodes.surplus().is_empty(), "no node has come since");
    }
}
