//! Keeps the kernel from caching an answer that a change has overtaken.
//!
//! A LOOKUP or GETATTR may read the old state just before a change. If the kernel processes that answer after the
//! answer to the change, it caches the old state until the TTL expires. After a CREATE, for one, the kernel drops the
//! attributes of the directory that it has cached, but still accepts those that are in flight (fs/fuse/dir.c
//! fuse_dir_changed). A notification makes it reject them, because it increments the attribute version
//! (fs/fuse/inode.c fuse_reverse_inval_inode). Sending a notification for every change would cost each change a
//! system call. Instead:
//!
//! - An answer records what it contains, then checks whether that has changed since the request began
//!   ([`Changes`]). If so, it gets a TTL of zero.
//! - A change is told, then its thread checks whether an answer with the changed item went to another client
//!   thread recently. If so, it notifies the kernel.
//!
//! Whichever comes second sees the record of the first. An answer to the thread that now requests the change is no
//! longer in flight, because a thread has one request at a time. So a client that works alone in a directory, the
//! usual case, causes no notifications, each of which would make the kernel fetch the attributes again.
//!
//! Before it reads anything, a request may process events on the branches itself, and so tell of changes. Its answer
//! contains these changes, so they do not overtake it ([`Freshness::caught_up`]).

use canopy_base::ids::NodeId;
use canopy_branch::fs::stat::Attr;
use canopy_pool::coherence::changes::{Change, Changes, Client, Item, Ticket};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// What an answer contains or a change affects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheKey {
    item: Item,
    kind: Kind,
}

/// Whose attributes they are. Recipients of directories have slots of their own. Otherwise clients that are given many
/// files, each client its own, would seem to have been given each other's directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Directory,
    /// Or it is a name.
    File,
    Unknown,
}

impl CacheKey {
    pub(crate) fn directory(node: NodeId) -> Self {
        CacheKey { item: Item::node(node), kind: Kind::Directory }
    }

    pub(crate) fn attributes(node: NodeId, attr: &Attr) -> Self {
        CacheKey { item: Item::node(node), kind: if attr.is_dir() { Kind::Directory } else { Kind::File } }
    }

    pub(crate) fn name(parent: NodeId, name: &[u8]) -> Self {
        CacheKey { item: Item::name(parent, name), kind: Kind::File }
    }

    /// Returns what a change affects, unless that is too much for one key.
    pub(crate) fn of(change: Change<'_>) -> Option<Self> {
        match change {
            Change::Name { dir, name } | Change::Holders { dir, name } => Some(CacheKey::name(dir, name)),
            Change::Names(dir) => Some(CacheKey::directory(dir)),
            Change::Attributes(node) => Some(CacheKey { item: Item::node(node), kind: Kind::Unknown }),
            Change::Places | Change::Answers | Change::Listings | Change::Missed => None,
        }
    }
}

/// The number of slots for recipients of directories, and of everything else.
const SLOTS: usize = 4096;
/// How long an answer may wait for its client thread to be scheduled and process it, in ticks: 2 seconds.
const IN_FLIGHT_TICKS: u64 = 125;

/// A client thread, by the id in the request header; 0 for one that has no id in the pid namespace of the mount.
pub(crate) type ThreadId = u32;
/// No client thread in particular: a change behind the pool's back.
pub(crate) const EXTERNAL: ThreadId = 0;

/// Which client threads were given a key, in one word: 22 bits for the latest thread (ids are below PID_MAX_LIMIT),
/// 21 for when it was last given the key, and 21 for when another thread was. 0 if none ever was.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Recipients(u64);

impl Recipients {
    const TICKS: u32 = 21;

    fn new(thread: u64, latest_at: u64, other_at: u64) -> Recipients {
        Recipients(thread << (2 * Recipients::TICKS) | latest_at << Recipients::TICKS | other_at)
    }

    fn thread(self) -> u64 {
        self.0 >> (2 * Recipients::TICKS)
    }

    fn latest_at(self) -> u64 {
        self.0 >> Recipients::TICKS & TICKS
    }

    fn other_at(self) -> u64 {
        self.0 & TICKS
    }

    /// Adds an answer to this thread.
    fn with(self, thread: ThreadId, now: u64) -> Recipients {
        match u64::from(thread) {
            // Threads with id 0 may be different ones.
            0 => Recipients::new(0, now, now),
            thread if self.0 == 0 => {
                Recipients::new(thread, now, now.wrapping_sub(IN_FLIGHT_TICKS + 1) & TICKS)
            }
            thread if thread == self.thread() => Recipients::new(thread, now, self.other_at()),
            thread => Recipients::new(thread, now, self.latest_at()),
        }
    }

    /// Returns whether a thread other than this one was recently given the key.
    fn any_but(self, thread: ThreadId, now: u64) -> bool {
        let recent = |at: u64| now.wrapping_sub(at) & TICKS < IN_FLIGHT_TICKS;
        self.0 != 0
            && (recent(self.latest_at()) && (thread == EXTERNAL || self.thread() != u64::from(thread))
                || recent(self.other_at()))
    }
}

thread_local! {
    /// The changes before this one are in whatever the request that this thread serves reads, though they may have been
    /// told after it began.
    static CAUGHT_UP: Cell<Ticket> = const { Cell::new(Ticket::FIRST) };
}

pub(crate) struct Freshness {
    changes: Arc<Changes>,
    /// The [`Recipients`] of each key, by its kind.
    of_directories: Box<[AtomicU64]>,
    of_files: Box<[AtomicU64]>,
}

impl Freshness {
    pub(crate) fn new(changes: Arc<Changes>) -> Self {
        let slots = || (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        Freshness { changes, of_directories: slots(), of_files: slots() }
    }

    /// Begins a request. To be called before anything is read for it.
    pub(crate) fn begin(&self, thread: ThreadId) -> PendingAnswer<'_> {
        CAUGHT_UP.set(Ticket::FIRST);
        PendingAnswer { freshness: self, thread, since: self.changes.ticket(), now: now() }
    }

    /// Records that nothing was read yet for the request that this thread serves, so that its answer will contain the
    /// changes so far.
    pub(crate) fn caught_up(&self) {
        CAUGHT_UP.set(self.changes.ticket());
    }

    /// Returns whether an answer with the state before a change, which was told, may be in flight to others than the client
    /// that made it, so that the kernel must be notified.
    pub(crate) fn may_be_in_flight(&self, key: CacheKey, by: Client) -> bool {
        let (now, slot) = (now(), key.item.slot(SLOTS));
        let by = match by {
            Client::Thread(thread) => thread,
            Client::Outside => EXTERNAL,
        };
        let given = |slots: &[AtomicU64]| Recipients(slots[slot].load(SeqCst)).any_but(by, now);
        match key.kind {
            Kind::Directory => given(&self.of_directories),
            Kind::File => given(&self.of_files),
            Kind::Unknown => given(&self.of_directories) || given(&self.of_files),
        }
    }
}

/// A request in progress.
pub(crate) struct PendingAnswer<'a> {
    freshness: &'a Freshness,
    thread: ThreadId,
    since: Ticket,
    now: u64,
}

impl PendingAnswer<'_> {
    pub(crate) fn thread(&self) -> ThreadId {
        self.thread
    }

    /// Records that the answer contains `key`. Returns whether `key` is unchanged since it can have been read, so that
    /// the kernel may cache it. To be called by the thread that began the request.
    pub(crate) fn record(&self, key: CacheKey) -> bool {
        self.record_at(key, self.now)
    }

    /// As `record`, for an answer that may have taken long to read.
    pub(crate) fn record_now(&self, key: CacheKey) -> bool {
        self.record_at(key, now())
    }

    fn record_at(&self, key: CacheKey, at: u64) -> bool {
        let slots = match key.kind {
            Kind::Directory => &self.freshness.of_directories,
            Kind::File | Kind::Unknown => &self.freshness.of_files,
        };
        let recipients = &slots[key.item.slot(SLOTS)];
        let mut before = recipients.load(SeqCst);
        // A store that every processor must see is expensive.
        while let after = Recipients(before).with(self.thread, at).0
            && after != before
            && let Err(meanwhile) = recipients.compare_exchange(before, after, SeqCst, SeqCst)
        {
            before = meanwhile;
        }
        let changes = &self.freshness.changes;
        changes.unchanged(self.since.max(CAUGHT_UP.get()), key.item)
            // The TTLs are those of when the request began.
            && changes.unchanged(self.since, Item::ANSWERS)
    }
}

const TICKS: u64 = (1 << Recipients::TICKS) - 1;

/// Returns ticks of 16 milliseconds, which wrap around every nine hours.
fn now() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    (((time.tv_sec as u64).wrapping_mul(1000) + time.tv_nsec as u64 / 1_000_000) / 16) & TICKS
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ThreadId = 11;
    const TWO: ThreadId = 4_194_303;
    const DIR: CacheKey = dir(7);
    const OTHER: CacheKey = dir(8);

    const fn dir(id: u64) -> CacheKey {
        CacheKey { item: Item::node(NodeId(id)), kind: Kind::Directory }
    }

    fn file(id: u64) -> CacheKey {
        CacheKey { kind: Kind::File, ..dir(id) }
    }

    fn new() -> Freshness {
        Freshness::new(Arc::default())
    }

    /// Returns whether the kernel must be notified of a change that a thread has requested.
    fn change(freshness: &Freshness, key: CacheKey, by: ThreadId) -> bool {
        freshness.changes.record(key.item);
        freshness.may_be_in_flight(key, Client::Thread(by))
    }

    #[test]
    fn an_answer_is_stale_after_a_change_during_its_request() {
        let freshness = new();
        let name = CacheKey::name(NodeId(7), b"f");
        let answer = freshness.begin(ONE);
        assert!(answer.record(DIR) && answer.record(OTHER) && answer.record(name));
        change(&freshness, DIR, TWO);
        change(&freshness, name, TWO);
        assert!(!answer.record(DIR) && answer.record(OTHER) && !answer.record(name));
        assert!(freshness.begin(ONE).record(DIR), "a later request reads the new state");
        freshness.changes.record(Item::ANSWERS);
        assert!(!answer.record(OTHER));
    }

    #[test]
    fn an_answer_contains_the_changes_before_its_request_caught_up() {
        let freshness = new();
        let answer = freshness.begin(ONE);
        change(&freshness, DIR, EXTERNAL);
        assert!(!answer.record(DIR));
        freshness.caught_up();
        assert!(answer.record(DIR));
        change(&freshness, DIR, EXTERNAL);
        assert!(!answer.record(DIR), "changed after it was read");
        let answer = freshness.begin(ONE);
        freshness.changes.record(Item::ANSWERS);
        freshness.caught_up();
        assert!(!answer.record(DIR), "the TTLs may have changed too");
        // What the thread did in one request means nothing for another of its requests.
        let answer = freshness.begin(ONE);
        change(&freshness, DIR, EXTERNAL);
        freshness.begin(TWO);
        assert!(!answer.record(DIR));
    }

    #[test]
    fn a_change_knows_whether_another_thread_was_given_the_item() {
        let freshness = new();
        assert!(!change(&freshness, DIR, TWO));
        freshness.begin(ONE).record(DIR);
        assert!(change(&freshness, DIR, TWO));
        assert!(!change(&freshness, OTHER, TWO));
        assert!(change(&freshness, DIR, EXTERNAL));
        assert!(!change(&freshness, DIR, ONE), "the thread that requests a change has had its answer");
    }

    #[test]
    fn other_recipients_are_remembered_while_an_answer_may_be_in_flight() {
        for start in [1, 100, TICKS - 60, TICKS] {
            let at = |later: u64| (start + later) & TICKS;
            let recipients = Recipients(0).with(ONE, at(0));
            assert!(recipients.any_but(TWO, at(0)) && recipients.any_but(TWO, at(IN_FLIGHT_TICKS - 1)));
            assert!(!recipients.any_but(TWO, at(IN_FLIGHT_TICKS)));
            let recipients = recipients.with(TWO, at(10));
            assert!(recipients.any_but(ONE, at(10)) && recipients.any_but(TWO, at(10)));
            let recipients = recipients.with(TWO, at(100));
            assert!(
                recipients.any_but(TWO, at(IN_FLIGHT_TICKS - 1))
                    && !recipients.any_but(TWO, at(IN_FLIGHT_TICKS))
            );
            assert!(
                recipients.any_but(ONE, at(IN_FLIGHT_TICKS))
                    && !recipients.any_but(ONE, at(100 + IN_FLIGHT_TICKS))
            );
            // A thread with id 0, which may be any.
            let recipients = recipients.with(EXTERNAL, at(500));
            assert!(recipients.any_but(ONE, at(500)) && recipients.any_but(EXTERNAL, at(500)));
            let recipients = recipients.with(ONE, at(510));
            assert!(recipients.any_but(ONE, at(510)) && !recipients.any_but(ONE, at(510 + IN_FLIGHT_TICKS)));
        }
    }

    #[test]
    fn many_files_given_to_others_are_not_taken_for_a_directory() {
        let freshness = new();
        freshness.begin(ONE).record(DIR);
        for id in 0..2 * SLOTS as u64 {
            freshness.begin(TWO).record(file(id));
        }
        assert!(
            !change(&freshness, DIR, ONE),
            "only the thread that makes the change was given the directory"
        );
        let any = CacheKey::of(Change::Attributes(NodeId(7))).unwrap();
        assert!(change(&freshness, any, ONE), "it may be one of the files");
        assert!(change(&freshness, any, TWO), "it may be the directory");
    }

    /// A reader and a writer of one value, and a kernel that caches what the reader gave it unless the writer sends a
    /// notification.
    #[test]
    fn either_the_answer_is_stale_or_the_change_notifies() {
        for round in 0..5_000_u64 {
            let freshness = new();
            let answer = freshness.begin(ONE);
            let (cached, notified) = std::thread::scope(|scope| {
                let changing = scope.spawn(|| change(&freshness, DIR, TWO));
                if round % 2 == 0 {
                    std::thread::yield_now();
                }
                (answer.record(DIR), changing.join().unwrap())
            });
            assert!(!cached || notified, "round {round}: cached, but no notification");
        }
    }
}
