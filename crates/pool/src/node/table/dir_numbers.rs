//! Records of the inode numbers of known directories in memory that outlives this process, so that the next one shows
//! the same.
//!
//! A number cannot be computed again: it depends on the path at which the directory was first found, on the branch that
//! answered then, and on which numbers were taken. A record is complete once its first word is set, and void once that is
//! zero; the other word is written before. No store moves before an earlier one.

use canopy_base::hash::{HashMap, shrink};
use canopy_base::ids::NodeId;
use canopy_sys::process::{AtomicU64, SharedWords};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The words of a record.
pub const DIR_NUMBER_WORDS: usize = 2;

const NODE: usize = 0;
const NUMBER: usize = 1;

/// The records of a pool's directories. Changed under the lock of the node table.
#[derive(Debug)]
pub struct DirNumbers {
    words: Arc<SharedWords>,
    range: Range<usize>,
    /// Where the record of each directory is.
    places: HashMap<NodeId, u32>,
    /// The numbers of directories that the kernel knows from the process before, and that have no node here yet.
    waiting: HashMap<NodeId, u64>,
    free: Vec<u32>,
    /// All records from here on have never been used.
    unused: u32,
}

impl DirNumbers {
    /// The records in a range of words: first the number of those that have ever been used, then [`DIR_NUMBER_WORDS`] words
    /// each.
    #[must_use]
    pub fn new(words: Arc<SharedWords>, range: Range<usize>) -> DirNumbers {
        let (places, waiting, free) = Default::default();
        let mut numbers = DirNumbers { words, range, places, waiting, free, unused: 0 };
        numbers.unused = numbers.used().load(Ordering::Acquire) as u32;
        numbers.places.reserve(numbers.unused as usize);
        numbers.waiting.reserve(numbers.unused as usize);
        for place in 0..numbers.unused {
            let record = numbers.record(place);
            let (node, number) =
                (record[NODE].load(Ordering::Acquire), record[NUMBER].load(Ordering::Relaxed));
            let again = node != 0 && numbers.places.insert(NodeId(node), place).is_none();
            if again {
                numbers.waiting.insert(NodeId(node), number);
            } else {
                numbers.free.push(place)
            }
        }
        numbers
    }

    /// Returns the directories that the kernel knows from the process before, with their numbers.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (NodeId, u64)> {
        self.waiting.iter().map(|(&node, &number)| (node, number))
    }

    /// Returns the number of a directory that has no node here yet. It gets one now.
    pub(crate) fn take(&mut self, node: NodeId) -> Option<u64> {
        let number = self.waiting.remove(&node);
        shrink(&mut self.waiting);
        number
    }

    /// As `take`, without a node: another one asks.
    pub(crate) fn waits(&self, node: NodeId) -> Option<u64> {
        self.waiting.get(&node).copied()
    }

    /// Returns whether there are directories that have no node here yet.
    pub(crate) fn any_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Records the number of a directory, unless there are too many. To be called before the kernel learns of it.
    pub(crate) fn set(&mut self, node: NodeId, number: u64) {
        let place = match self.places.get(&node) {
            Some(&place) => place,
            None => {
                let Some(place) = self.free.pop().or_else(|| self.another()) else { return };
                self.places.insert(node, place);
                place
            }
        };
        let record = self.record(place);
        record[NUMBER].store(number, Ordering::Release);
        record[NODE].store(node.0, Ordering::Release);
    }

    fn another(&mut self) -> Option<u32> {
        let capacity = (self.range.len() - 1) / DIR_NUMBER_WORDS;
        let place = self.unused;
        if place as usize >= capacity {
            return None;
        }
        self.unused += 1;
        self.used().store(self.unused.into(), Ordering::Release);
        Some(place)
    }

    /// Makes the record of a directory void, because the kernel does not know it any more. Returns its number if it had no
    /// node here.
    pub(crate) fn remove(&mut self, node: NodeId) -> Option<u64> {
        if let Some(place) = self.places.remove(&node) {
            self.record(place)[NODE].store(0, Ordering::Release);
            self.free.push(place);
            shrink(&mut self.places);
        }
        self.take(node)
    }

    /// Makes all records void.
    pub(crate) fn clear(&mut self) {
        let known: Vec<NodeId> = self.places.keys().copied().collect();
        for node in known {
            self.remove(node);
        }
    }

    fn used(&self) -> &AtomicU64 {
        &self.words[self.range.start]
    }

    fn record(&self, place: u32) -> &[AtomicU64] {
        let start = self.range.start + 1 + place as usize * DIR_NUMBER_WORDS;
        &self.words[start..start + DIR_NUMBER_WORDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_process_finds_what_was_recorded_and_not_removed() {
        let words = Arc::new(SharedWords::new(32).unwrap());
        let open = || DirNumbers::new(Arc::clone(&words), 1..8);
        let mut numbers = open();
        for (node, number) in [(7, 70), (8, 80), (9, 90), (10, 100)] {
            numbers.set(NodeId(node), number);
        }
        assert_eq!(numbers.remove(NodeId(8)), None, "it had a node");
        assert_eq!(words[0].load(Ordering::Relaxed) + words[8].load(Ordering::Relaxed), 0);

        let mut next = open();
        let mut found: Vec<_> = next.waiting().collect();
        found.sort_unstable();
        assert_eq!(found, [(NodeId(7), 70), (NodeId(9), 90)], "there is room for three");
        assert_eq!(
            (next.waits(NodeId(7)), next.take(NodeId(7)), next.take(NodeId(7))),
            (Some(70), Some(70), None)
        );
        assert_eq!(next.remove(NodeId(9)), Some(90));
        assert!(!next.any_waits());
        // The places of those that are gone are used again.
        next.set(NodeId(7), 71);
        next.set(NodeId(11), 110);
        next.set(NodeId(12), 120);
        let mut found: Vec<_> = open().waiting().collect();
        found.sort_unstable();
        assert_eq!(found, [(NodeId(7), 71), (NodeId(11), 110), (NodeId(12), 120)]);
    }

    /// A number is kept until the kernel forgets the directory, whether that has got a node here or not.
    #[test]
    fn a_directory_shows_the_number_that_the_process_before_told() {
        use crate::export::StableId;
        use crate::node::Identity;
        use crate::node::nodes::Nodes;

        let words = Arc::new(SharedWords::new(64).unwrap());
        let open = || DirNumbers::new(Arc::clone(&words), 0..64);
        let process = || {
            let nodes = Nodes::new(1);
            nodes.adopt_numbers(open());
            nodes
        };
        let give = |nodes: &Nodes, name: &str, number: u64, id: u64| {
            let stable = StableId { id: NodeId(id), generation: 1 };
            let node = nodes.give_out_dir(NodeId::ROOT, name.as_bytes(), number, || Some(stable)).unwrap();
            match node.identity() {
                Identity::Directory { ino } => ino,
                Identity::File(_) => 0,
            }
        };
        let first = process();
        assert_eq!((give(&first, "a", 50, 10), give(&first, "b", 60, 11)), (50, 60));
        drop(first);
        let second = process();
        // The other two have been renamed, and others have their paths.
        assert_ne!(give(&second, "a", 50, 12), 50);
        assert_eq!(give(&second, "c", 70, 10), 50);
        second.forget(NodeId(10), 5, |_| {});
        second.forget(NodeId(11), 5, |_| {});
        second.forget(NodeId(11), 5, |_| {});
        assert_eq!(give(&second, "b", 60, 13), 60, "nobody has the number any more");
        drop(second);
        let mut left: Vec<_> = open().waiting().map(|(node, _)| node.0).collect();
        left.sort_unstable();
        assert_eq!(left, [12, 13]);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use canopy_sys::process::left_by_the_dead;

    #[test]
    fn a_place_that_is_used_again_has_one_directory_with_its_own_number() {
        let open = |words: &Arc<SharedWords>| DirNumbers::new(Arc::clone(words), 0..words.len());
        let found = left_by_the_dead(
            || Arc::new(SharedWords::new(1 + DIR_NUMBER_WORDS).unwrap()),
            move |words| {
                let mut numbers = open(words);
                numbers.set(NodeId(7), 70);
                numbers.set(NodeId(7), 71);
                numbers.remove(NodeId(7));
                numbers.set(NodeId(8), 80);
            },
            move |words| open(words).waiting().map(|(node, number)| (node.0, number)).collect::<Vec<_>>(),
        );
        let mut found = found.concat();
        found.sort_unstable();
        assert_eq!(found, [(7, 70), (7, 71), (8, 80)]);
    }
}
