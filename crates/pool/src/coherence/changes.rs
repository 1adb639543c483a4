//! What has changed, so that nothing is stored or promised that was read before a change.
//!
//! Whoever reads something takes a [`Ticket`] before, and asks afterwards whether the items in question are
//! [unchanged](Changes::unchanged) since. Whoever changes something tells after the system call and before its answer
//! (`tell`).
//!
//! Of a reader and a teller, the second sees the first. A reader whose ticket is newer than a change has read what is there
//! after it. Of the others, either the reader finds that the item has changed, or whatever it noted before it asked is
//! seen by the teller after it has told.
//!
//! Items share slots, in which the number of the latest change is kept. So an item may seem to have changed when another one
//! has: too much, never too little.

use canopy_base::ids::NodeId;
#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
use rapidhash::v3::rapidhash_v3;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// The number of slots: 64 KiB.
#[cfg(not(loom))]
const SLOTS: usize = 8192;
#[cfg(loom)]
const SLOTS: usize = 2;

/// A moment in the order of changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(u64);

impl Ticket {
    /// From before all changes.
    pub const FIRST: Ticket = Ticket(0);
}

/// What has changed on the branches.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The branches that hold a name, and so what it leads to.
    Holders { dir: NodeId, name: &'a [u8] },
    /// What a name leads to.
    Name { dir: NodeId, name: &'a [u8] },
    /// The names in a directory, and so its attributes.
    Names(NodeId),
    /// The attributes of a node.
    Attributes(NodeId),
    /// A directory was created, moved or removed on a branch.
    Places,
    /// Whatever an answer in progress contains.
    Answers,
    /// The names in any directory.
    Listings,
    /// Changes were missed or are no longer watched, or mounts have changed.
    Missed,
}

/// Who has made a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Client {
    /// A thread that has requested it, by the id in the request header. The operation has told what the pool itself
    /// remembers of the branches.
    Thread(u32),
    /// Somebody behind the pool's back.
    Outside,
}

/// What a change affects and an answer contains. Two items may be equal by accident.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item(u64);

/// The bits that tell the items of one kind apart.
const KIND: u32 = 48;
const NODE: u64 = 0;
const NAME: u64 = 1 << KIND;
const PLACES: u64 = 2 << KIND;
const ALL: u64 = 3 << KIND;

impl Item {
    /// Every answer in progress.
    pub const ANSWERS: Item = Item(ALL);
    /// The names in every directory.
    pub const LISTINGS: Item = Item(ALL | 1);

    /// The attributes of a node and, of a directory, its names.
    pub const fn node(node: NodeId) -> Item {
        Item(NODE | node.0 & (NAME - 1))
    }

    /// What a name leads to.
    pub fn name(dir: NodeId, name: &[u8]) -> Item {
        Item(NAME | (rapidhash_v3(name) ^ spread(dir)) & (NAME - 1))
    }

    /// The branches that hold a directory because the pool has created it there.
    pub(crate) fn places(dir: NodeId) -> Item {
        Item(PLACES | spread(dir) & (NAME - 1))
    }

    /// Returns one of so many numbers. Nodes with consecutive ids get different ones.
    pub fn slot(self, slots: usize) -> usize {
        self.0 as usize % slots
    }
}

/// Makes it unrelated to any pattern in consecutive numbers.
fn spread(dir: NodeId) -> u64 {
    dir.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8
}

/// The changes so far.
pub struct Changes {
    /// How many there are.
    told: AtomicU64,
    /// For each slot, the number of the latest change of one of its items; then those of the two items that stand for many.
    latest: Box<[AtomicU64]>,
}

impl Default for Changes {
    fn default() -> Changes {
        Changes { told: AtomicU64::new(0), latest: (0..SLOTS + 2).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Changes {
    /// Taken before anything is read.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.told.load(SeqCst))
    }

    /// Returns whether an item is as it was when the ticket was taken.
    pub fn unchanged(&self, since: Ticket, item: Item) -> bool {
        in_one_order();
        self.latest(item).load(SeqCst) <= since.0
    }

    /// Records that an item has changed. What others see of the change must be in place: it is not new to those who take a
    /// ticket from now on.
    pub fn record(&self, item: Item) {
        let number = self.told.fetch_add(1, SeqCst) + 1;
        // Another thread may have recorded a later change already.
        self.latest(item).fetch_max(number, SeqCst);
        in_one_order();
    }

    fn latest(&self, item: Item) -> &AtomicU64 {
        let at = match item {
            Item::ANSWERS => SLOTS,
            Item::LISTINGS => SLOTS + 1,
            item => item.slot(SLOTS),
        };
        &self.latest[at]
    }
}

/// Separates what this thread noted from what it is about to look at. The accesses themselves are in one order for all
/// threads, but `loom` takes them for weaker ones.
fn in_one_order() {
    #[cfg(loom)]
    if !WITHOUT_FENCES.get() {
        loom::sync::atomic::fence(SeqCst);
    }
}

#[cfg(loom)]
std::thread_local! {
    /// Set to prove that they are needed. `loom` runs all its threads on one of the system's.
    static WITHOUT_FENCES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const DIR: NodeId = NodeId(7);

    #[test]
    fn kinds_of_items_differ() {
        let items = [
            Item::ANSWERS,
            Item::LISTINGS,
            Item::node(DIR),
            Item::name(DIR, b""),
            Item::name(DIR, b"f"),
            Item::name(NodeId(8), b"f"),
            Item::places(DIR),
            Item::places(NodeId(8)),
        ];
        for (at, item) in items.iter().enumerate() {
            let changes = Changes::default();
            let since = changes.ticket();
            changes.record(*item);
            for (other_at, other) in items.iter().enumerate() {
                assert_eq!(changes.unchanged(since, *other), at != other_at, "{item:?} {other:?}");
                assert!(changes.unchanged(changes.ticket(), *other));
            }
        }
    }

    /// Against a map of the latest changes: nothing that has changed seems unchanged, and little that has not seems changed.
    #[test]
    fn too_much_but_never_too_little() {
        let (changes, mut latest) = (Changes::default(), HashMap::new());
        let mut tickets = vec![(changes.ticket(), 0)];
        let mut random = 1_u64;
        let (mut asked, mut needless) = (0, 0);
        for now in 1..=20_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let id = NodeId(2 + (random >> 33) % 3000);
            let item = match random >> 62 {
                0 => Item::node(id),
                1 => Item::places(id),
                _ => Item::name(id, b"f"),
            };
            changes.record(item);
            latest.insert(item.0, now);
            tickets.push((changes.ticket(), now));
            let (since, then) = tickets[tickets.len() - 1 - (random >> 40) as usize % tickets.len().min(50)];
            for item in [item, Item::node(NodeId(2 + now % 3000)), Item::name(NodeId(2 + now % 3000), b"f")] {
                let truly = latest.get(&item.0).is_none_or(|changed| *changed <= then);
                let said = changes.unchanged(since, item);
                assert!(truly || !said, "{item:?} since {then}, now {now}");
                asked += 1;
                needless += usize::from(truly && !said);
            }
        }
        assert!(needless * 50 < asked, "{needless} of {asked}");
    }
}

/// `scripts/models.sh`
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::atomic::AtomicBool;
    use loom::sync::{Arc, Mutex};
    use std::sync::atomic::Ordering;

    const DIR: NodeId = NodeId(2);

    #[derive(Default)]
    struct World {
        changes: Changes,
        /// What the branch holds: a system call is in order with others on the same directory.
        branch: Mutex<u32>,
        /// What the reader notes for tellers.
        noted: AtomicBool,
    }

    impl World {
        /// Changes the branch, tells, and returns whether a reader has noted something.
        fn change(&self, add: u32) -> bool {
            *self.branch.lock().unwrap() += add;
            self.changes.record(Item::node(DIR));
            self.noted.load(Ordering::SeqCst)
        }

        /// Returns what it has read, and whether that may be promised.
        fn read(&self) -> (u32, bool) {
            let since = self.changes.ticket();
            let read = *self.branch.lock().unwrap();
            self.noted.store(true, Ordering::SeqCst);
            (read, self.changes.unchanged(since, Item::node(DIR)))
        }
    }

    /// One reader, and tellers each of whom adds a bit of its own.
    fn check(tellers: u32) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let world = Arc::new(World::default());
            let tell = |at: u32| {
                let world = Arc::clone(&world);
                loom::thread::spawn(move || world.change(1 << at))
            };
            let telling: Vec<_> = (0..tellers).map(tell).collect();
            let (read, promised) = world.read();
            for (at, teller) in telling.into_iter().enumerate() {
                let sees = teller.join().unwrap();
                assert!(read >> at & 1 != 0 || !promised || sees, "neither has seen the other");
            }
        });
    }

    #[test]
    fn of_reader_and_teller_the_second_sees_the_first() {
        check(1);
    }

    #[test]
    fn a_later_change_is_not_hidden_by_an_earlier_one() {
        check(2);
    }

    #[test]
    #[should_panic(expected = "neither has seen the other")]
    fn without_the_fences_they_may_miss_each_other() {
        WITHOUT_FENCES.set(true);
        check(1);
    }
}
