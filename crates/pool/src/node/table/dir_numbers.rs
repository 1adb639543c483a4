//! Records of known directories in memory that outlives this process, so that the next one shows the same numbers, and finds
//! each again.
//!
//! A number cannot be computed again: it depends on the path at which the directory was first found, on the branch that
//! answered then, and on which numbers were taken. An id tells where the oldest copy was, and that may be gone (a branch was
//! drained), or not be the oldest any more. So the place in the tree is recorded too. A directory that was removed, and that
//! the kernel still uses, has no place: its descriptor is recorded.
//!
//! A record is complete once its first word is set, and void once that is zero; the others are written before. A place is
//! complete once its second word is set. No store moves before an earlier one.

use crate::export::StableId;
use canopy_base::hash::{HashMap, keyed, shrink};
use canopy_base::ids::NodeId;
use canopy_sys::process::{AtomicU64, SharedWords};
use rustix::fd::RawFd;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The words before the records.
pub const DIR_NUMBERS_HEAD: usize = 2;
/// The words of a record.
pub const DIR_NUMBER_WORDS: usize = 5;

/// How many records have ever been used.
const USED: usize = 0;
/// The key of the hashes of names.
const KEY: usize = 1;

const NODE: usize = 0;
const NUMBER: usize = 1;
const GENERATION: usize = 2;
/// The directory above, or [`REMOVED`].
const PARENT: usize = 3;
/// The hash of the name there, or the descriptor of one that was removed; zero if neither is known.
const NAME: usize = 4;

/// No node has this id.
const REMOVED: u64 = u64::MAX;

/// A directory above, and the hash of a name there.
type Place = (NodeId, u64);

/// A directory that the kernel knows from the process before, and that has no node here yet.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    number: u64,
    generation: u32,
    place: Option<Place>,
}

/// A directory that was removed before, and that the kernel still uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Removed {
    pub(crate) stable: StableId,
    pub(crate) number: u64,
    pub(crate) fd: RawFd,
    /// The lower half of its branch's number.
    pub(crate) branch: u32,
}

/// The records of a pool's directories. Changed under the lock of the node table.
#[derive(Debug)]
pub struct DirNumbers {
    words: Arc<SharedWords>,
    range: Range<usize>,
    /// Where the record of each directory is.
    records: HashMap<NodeId, u32>,
    waiting: HashMap<NodeId, Waiting>,
    /// Those of them with a place.
    places: HashMap<Place, NodeId>,
    removed: Vec<Removed>,
    /// All that the process before has left, until the kernel forgets them.
    left: HashSet<NodeId>,
    free: Vec<u32>,
    /// All records from here on have never been used.
    unused: u32,
    key: u64,
}

impl DirNumbers {
    /// The records in a range of words: [`DIR_NUMBERS_HEAD`], then [`DIR_NUMBER_WORDS`] words each.
    #[must_use]
    pub fn new(words: Arc<SharedWords>, range: Range<usize>) -> DirNumbers {
        let unused = words[range.start + USED].load(Ordering::Acquire) as u32;
        let mut key = words[range.start + KEY].load(Ordering::Acquire);
        if key == 0 {
            key = RandomState::new().hash_one(()).max(1);
            words[range.start + KEY].store(key, Ordering::Release);
        }
        let (records, waiting, places, removed, left, free) = Default::default();
        let mut numbers =
            DirNumbers { words, range, records, waiting, places, removed, left, free, unused, key };
        numbers.records.reserve(numbers.unused as usize);
        numbers.waiting.reserve(numbers.unused as usize);
        for place in 0..numbers.unused {
            let node = NodeId(numbers.record(place)[NODE].load(Ordering::Acquire));
            if node.0 != 0 && numbers.records.insert(node, place).is_none() {
                numbers.found(node, place);
            } else {
                numbers.free.push(place)
            }
        }
        numbers
    }

    /// Takes up what the process before has recorded.
    fn found(&mut self, node: NodeId, place: u32) {
        let record = self.record(place);
        let [number, generation, parent, name] =
            [NUMBER, GENERATION, PARENT, NAME].map(|word| record[word].load(Ordering::Acquire));
        let generation = generation as u32;
        self.left.insert(node);
        if parent == REMOVED && name != 0 {
            let (fd, branch) = unpack(name);
            let stable = StableId { id: node, generation };
            self.removed.push(Removed { stable, number, fd, branch });
            return;
        }
        let place = (name != 0).then_some((NodeId(parent), name));
        place.into_iter().for_each(|place| {
            self.places.insert(place, node);
        });
        self.waiting.insert(node, Waiting { number, generation, place });
    }

    /// Returns the descriptors that are recorded in a range of words.
    #[must_use]
    pub fn descriptors(words: &SharedWords, range: Range<usize>) -> Vec<RawFd> {
        let used = words[range.start + USED].load(Ordering::Acquire) as usize;
        let records =
            words[range.start + DIR_NUMBERS_HEAD..range.end].chunks_exact(DIR_NUMBER_WORDS).take(used);
        let word = |record: &[AtomicU64], word: usize| record[word].load(Ordering::Acquire);
        records
            .filter(|record| word(record, NODE) != 0 && word(record, PARENT) == REMOVED)
            .map(|record| word(record, NAME))
            .filter(|name| *name != 0)
            .map(|name| unpack(name).0)
            .collect()
    }

    /// Returns the directories that the kernel knows from the process before, with their numbers.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (NodeId, u64)> {
        self.waiting.iter().map(|(&node, waiting)| (node, waiting.number))
    }

    /// Returns, once, the directories that were removed before.
    pub(crate) fn take_removed(&mut self) -> Vec<Removed> {
        std::mem::take(&mut self.removed)
    }

    /// Returns the number of a directory that has no node here yet. It gets one now.
    pub(crate) fn take(&mut self, node: NodeId) -> Option<u64> {
        let waiting = self.waiting.remove(&node)?;
        self.leaves(node, waiting.place);
        shrink(&mut self.waiting);
        Some(waiting.number)
    }

    fn leaves(&mut self, node: NodeId, place: Option<Place>) {
        if let Some(place) = place.filter(|place| self.places.get(place) == Some(&node)) {
            self.places.remove(&place);
            shrink(&mut self.places);
        }
    }

    /// As `take`, without a node: another one asks.
    pub(crate) fn waits(&self, node: NodeId) -> Option<u64> {
        self.waiting.get(&node).map(|waiting| waiting.number)
    }

    /// Returns the directory without a node here that had this name.
    pub(crate) fn waits_at(&self, parent: NodeId, name: &[u8]) -> Option<StableId> {
        if self.places.is_empty() {
            return None;
        }
        let id = *self.places.get(&(parent, self.hash(name)))?;
        self.waiting.get(&id).map(|waiting| StableId { id, generation: waiting.generation })
    }

    /// Returns the directory above one without a node here, and what tells its name.
    pub(crate) fn place(&self, node: NodeId) -> Option<(NodeId, NameHash)> {
        let (parent, hash) = self.waiting.get(&node)?.place?;
        Some((parent, NameHash { key: self.key, hash }))
    }

    /// Returns whether the kernel knows a directory from the process before.
    pub(crate) fn is_left(&self, node: NodeId) -> bool {
        self.left.contains(&node)
    }

    /// Returns whether there are directories that have no node here yet.
    pub(crate) fn any_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Records the number of a directory, unless there are too many. To be called before the kernel learns of it.
    pub(crate) fn set(&mut self, node: StableId, number: u64) {
        if let Some(&place) = self.records.get(&node.id) {
            self.record(place)[NUMBER].store(number, Ordering::Release);
            return;
        }
        let Some(place) = self.free.pop().or_else(|| self.another()) else { return };
        self.records.insert(node.id, place);
        let record = self.record(place);
        for (word, value) in [
            (NAME, 0),
            (PARENT, 0),
            (NUMBER, number),
            (GENERATION, node.generation.into()),
            (NODE, node.id.0),
        ] {
            record[word].store(value, Ordering::Release);
        }
    }

    /// Records where a directory is.
    pub(crate) fn set_place(&mut self, node: NodeId, parent: NodeId, name: &[u8]) {
        self.set_words(node, parent.0, self.hash(name));
    }

    /// Records that something else has a directory's place.
    pub(crate) fn set_nowhere(&mut self, node: NodeId) {
        self.set_words(node, 0, 0);
    }

    /// Records that a directory was removed, and is open.
    pub(crate) fn set_removed(&mut self, node: NodeId, fd: RawFd, branch: u64) {
        self.set_words(node, REMOVED, pack(fd, branch));
    }

    fn set_words(&self, node: NodeId, parent: u64, name: u64) {
        let Some(&place) = self.records.get(&node) else { return };
        let record = self.record(place);
        // Between them there is no place.
        for (word, value) in [(NAME, 0), (PARENT, parent), (NAME, name)] {
            record[word].store(value, Ordering::Release);
        }
    }

    /// Records that a name was renamed, or removed, of what has no node here.
    pub(crate) fn renamed(&mut self, from: (NodeId, &[u8]), to: Option<(NodeId, &[u8])>) {
        if self.places.is_empty() {
            return;
        }
        let to = to.map(|(parent, name)| (parent, self.hash(name)));
        let victim = to.and_then(|to| self.places.remove(&to));
        let moved = self.places.remove(&(from.0, self.hash(from.1)));
        self.comes_to(victim, None);
        self.comes_to(moved, to);
    }

    /// Records that two names were exchanged, of what has no node here.
    pub(crate) fn exchanged(&mut self, one: (NodeId, &[u8]), other: (NodeId, &[u8])) {
        if self.places.is_empty() {
            return;
        }
        let [one, other] = [one, other].map(|(parent, name)| (parent, self.hash(name)));
        let [first, second] = [one, other].map(|place| self.places.remove(&place));
        self.comes_to(first, Some(other));
        self.comes_to(second, Some(one));
    }

    fn comes_to(&mut self, node: Option<NodeId>, place: Option<Place>) {
        let Some(node) = node else { return };
        if let Some(waiting) = self.waiting.get_mut(&node) {
            waiting.place = place;
        }
        place.into_iter().for_each(|place| {
            self.places.insert(place, node);
        });
        let (parent, name) = place.map_or((0, 0), |(parent, name)| (parent.0, name));
        self.set_words(node, parent, name);
    }

    fn hash(&self, name: &[u8]) -> u64 {
        keyed(self.key, name).max(1)
    }

    fn another(&mut self) -> Option<u32> {
        let capacity = (self.range.len() - DIR_NUMBERS_HEAD) / DIR_NUMBER_WORDS;
        let place = self.unused;
        if place as usize >= capacity {
            return None;
        }
        self.unused += 1;
        self.words[self.range.start + USED].store(self.unused.into(), Ordering::Release);
        Some(place)
    }

    /// Makes the record of a directory void, because the kernel does not know it any more. Returns its number if it had no
    /// node here.
    pub(crate) fn remove(&mut self, node: NodeId) -> Option<u64> {
        self.left.remove(&node);
        if let Some(place) = self.records.remove(&node) {
            self.record(place)[NODE].store(0, Ordering::Release);
            self.free.push(place);
            shrink(&mut self.records);
        }
        self.take(node)
    }

    /// Makes all records void.
    pub(crate) fn clear(&mut self) {
        let known: Vec<NodeId> = self.records.keys().copied().collect();
        for node in known {
            self.remove(node);
        }
    }

    fn record(&self, place: u32) -> &[AtomicU64] {
        let start = self.range.start + DIR_NUMBERS_HEAD + place as usize * DIR_NUMBER_WORDS;
        &self.words[start..start + DIR_NUMBER_WORDS]
    }
}

/// What is known of a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NameHash {
    key: u64,
    hash: u64,
}

impl NameHash {
    pub(crate) fn is(self, name: &[u8]) -> bool {
        keyed(self.key, name).max(1) == self.hash
    }
}

/// A descriptor, above the lower half of a branch's number.
fn pack(fd: RawFd, branch: u64) -> u64 {
    (u64::from(fd.cast_unsigned()) + 1) << u32::BITS | branch & u64::from(u32::MAX)
}

fn unpack(word: u64) -> (RawFd, u32) {
    (((word >> u32::BITS) as u32).wrapping_sub(1).cast_signed(), word as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stable(id: u64) -> StableId {
        StableId { id: NodeId(id), generation: id as u32 + 1 }
    }

    #[test]
    fn the_next_process_finds_what_was_recorded_and_not_removed() {
        let words = Arc::new(SharedWords::new(32).unwrap());
        let end = 1 + DIR_NUMBERS_HEAD + 3 * DIR_NUMBER_WORDS;
        let open = || DirNumbers::new(Arc::clone(&words), 1..end);
        let mut numbers = open();
        for (node, number) in [(7, 70), (8, 80), (9, 90), (10, 100)] {
            numbers.set(stable(node), number);
        }
        assert_eq!(numbers.remove(NodeId(8)), None, "it had a node");
        assert_eq!(words[0].load(Ordering::Relaxed) + words[end].load(Ordering::Relaxed), 0);

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
        next.set(stable(7), 71);
        next.set(stable(11), 110);
        next.set(stable(12), 120);
        let mut found: Vec<_> = open().waiting().collect();
        found.sort_unstable();
        assert_eq!(found, [(NodeId(7), 71), (NodeId(11), 110), (NodeId(12), 120)]);
    }

    /// Whatever becomes of a directory, the next process knows it by its place, if it has one, or by its descriptor.
    #[test]
    fn the_next_process_finds_places_and_what_was_removed() {
        let words = Arc::new(SharedWords::new(64).unwrap());
        let open = || DirNumbers::new(Arc::clone(&words), 0..64);
        let at = |numbers: &DirNumbers, parent: u64, name: &str| {
            numbers.waits_at(NodeId(parent), name.as_bytes()).map(|found| (found.id.0, found.generation))
        };
        let mut numbers = open();
        for (node, name) in [(7, "a"), (8, "b"), (9, "c"), (10, "d")] {
            numbers.set(stable(node), node * 10);
            numbers.set_place(NodeId(node), NodeId(1), name.as_bytes());
        }
        numbers.set_place(NodeId(8), NodeId(7), b"e");
        numbers.set_removed(NodeId(9), 5, (3 << 32) + 2);
        assert_eq!(DirNumbers::descriptors(&words, 0..64), [5]);

        let mut next = open();
        let removed = Removed { stable: stable(9), number: 90, fd: 5, branch: 2 };
        assert_eq!((next.take_removed(), next.take_removed()), (vec![removed], vec![]));
        assert_eq!((at(&next, 1, "a"), at(&next, 7, "e")), (Some((7, 8)), Some((8, 9))));
        assert_eq!((at(&next, 1, "b"), at(&next, 1, "c"), at(&next, 1, "")), (None, None, None));
        let (parent, name) = next.place(NodeId(8)).unwrap();
        assert_eq!((parent, name.is(b"e"), name.is(b"b")), (NodeId(7), true, false));
        // What has no node yet is renamed, replaced and exchanged.
        next.renamed((NodeId(7), b"e"), Some((NodeId(1), b"a")));
        next.exchanged((NodeId(1), b"a"), (NodeId(1), b"d"));
        let check = |numbers: &DirNumbers| {
            assert_eq!((at(numbers, 1, "a"), at(numbers, 1, "d")), (Some((10, 11)), Some((8, 9))));
            assert_eq!((at(numbers, 7, "e"), numbers.waits(NodeId(7))), (None, Some(70)));
        };
        check(&next);
        check(&open());
        next.renamed((NodeId(1), b"a"), None);
        next.remove(NodeId(9));
        // One that has a node here is found by that.
        next.take(NodeId(8));
        assert_eq!((at(&next, 1, "a"), at(&next, 1, "d")), (None, None));
        assert_eq!((at(&open(), 1, "a"), at(&open(), 1, "d")), (None, Some((8, 9))));
        assert!(DirNumbers::descriptors(&words, 0..64).is_empty());
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
        // A reference that is given back here leaves those that the kernel has.
        assert!(second.keeps_left(NodeId(10)) && !second.keeps_left(NodeId(12)));
        assert_eq!(open().waits(NodeId(10)), Some(50));
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

    fn stable(id: u64) -> StableId {
        StableId { id: NodeId(id), generation: 1 }
    }

    fn words() -> Arc<SharedWords> {
        Arc::new(SharedWords::new(DIR_NUMBERS_HEAD + DIR_NUMBER_WORDS).unwrap())
    }

    fn open(words: &Arc<SharedWords>) -> DirNumbers {
        DirNumbers::new(Arc::clone(words), 0..words.len())
    }

    /// A directory is found where it is or was, and nowhere else.
    #[test]
    fn a_place_is_old_or_new_or_unknown() {
        let found = left_by_the_dead(
            words,
            move |words| {
                let mut numbers = open(words);
                numbers.set(stable(7), 70);
                numbers.set_place(NodeId(7), NodeId(1), b"a");
                numbers.set_place(NodeId(7), NodeId(2), b"b");
                numbers.set_removed(NodeId(7), 3, 4);
            },
            move |words| {
                let mut numbers = open(words);
                let at = |parent, name: &str| numbers.waits_at(NodeId(parent), name.as_bytes()).is_some();
                let at = [at(1, "a"), at(1, "b"), at(2, "a"), at(2, "b")];
                (at, numbers.take_removed().first().map(|removed| removed.fd))
            },
        );
        let crossed = found.iter().any(|(at, _)| at[1] || at[2]);
        let each = [0, 3].map(|place| found.iter().any(|(at, _)| at[place]));
        assert!(!crossed && each == [true; 2] && found.iter().any(|(_, fd)| *fd == Some(3)), "{found:?}");
        assert!(found.iter().all(|(_, fd)| fd.is_none_or(|fd| fd == 3)), "{found:?}");
    }

    #[test]
    fn a_place_that_is_used_again_has_one_directory_with_its_own_number() {
        let found = left_by_the_dead(
            words,
            move |words| {
                let mut numbers = open(words);
                numbers.set(stable(7), 70);
                numbers.set(stable(7), 71);
                numbers.remove(NodeId(7));
                numbers.set(stable(8), 80);
            },
            move |words| open(words).waiting().map(|(node, number)| (node.0, number)).collect::<Vec<_>>(),
        );
        let mut found = found.concat();
        found.sort_unstable();
        assert_eq!(found, [(7, 70), (7, 71), (8, 80)]);
    }
}
