//! No answer that has been overtaken is remembered.
//!
//! A LOOKUP or GETATTR may read the old state and be overtaken by a change, whose answer makes the kernel forget what
//! it knows; processed after that one, it would have the kernel keep the old state until its time runs out. For a
//! create is no reason for the kernel to take its directory's attributes for newer than those under way
//! (fs/fuse/dir.c fuse_dir_changed); a notification is (fs/fuse/inode.c fuse_reverse_inval_inode counts the version
//! up). Notifying about every change would cost each one a system call, so:
//!
//! - who tells something notes that down, then looks whether it changed since the request began, and if so gives it
//!   without time;
//! - who has changed something notes that down, then looks whether it was told to somebody else of late, and if so
//!   notifies.
//!
//! Either the one sees the other's note or the other way round. What was told to the thread itself that now asks for the
//! change is not under way any more: a thread has one request at a time. So who works alone in a directory, as most do,
//! is not slowed down by notifications, each of which makes the kernel ask for the attributes once more.

use canopy_pool::NodeId;
use rapidhash::v3::rapidhash_v3;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// What an answer tells, or a change concerns: a node's attributes, or a name. Two may share a value; then one
/// answer more goes without time, or a notification is sent for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Subject(u64);

/// Bits of a subject; the rest of a word in the log tells whose turn it was.
const BITS: u32 = 48;
const NAME: u64 = 1 << (BITS - 1);

impl Subject {
    /// Any node and any name.
    pub(crate) const ALL: Subject = Subject(NAME);

    pub(crate) fn attributes(node: NodeId) -> Self {
        Subject(node.0 & (NAME - 1))
    }

    pub(crate) fn name(parent: NodeId, name: &[u8]) -> Self {
        // Odd, and far from any pattern in numbers that follow each other.
        let parent = parent.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Subject(NAME | (rapidhash_v3(name) ^ parent) & (NAME - 1))
    }
}

/// Changes that are remembered. An answer during which more happened goes without time.
const LOG: usize = 1024;
/// Notes of what was told, by subject.
const TOLD: usize = 4096;
/// For how long an answer may lie with its reader, who has not run since, in ticks: 2 seconds.
const UNDER_WAY: u64 = 125;

/// The thread that asks for something, as the kernel numbers it; 0 for one that it cannot tell.
pub(crate) type Asker = u32;
/// Nobody in particular.
pub(crate) const NOBODY: Asker = 0;

/// To whom a subject was told, in one word: 22 bits for the last thread (below PID_MAX_LIMIT),
/// 21 for when it was told last, and 21 for when another one was told last. 0 for never.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Told(u64);

impl Told {
    const TICKS: u32 = 21;

    fn new(asker: u64, last: u64, other: u64) -> Told {
        Told(asker << (2 * Told::TICKS) | last << Told::TICKS | other)
    }

    fn asker(self) -> u64 {
        self.0 >> (2 * Told::TICKS)
    }

    fn last(self) -> u64 {
        self.0 >> Told::TICKS & TICKS
    }

    fn other(self) -> u64 {
        self.0 & TICKS
    }

    /// Once more, to this thread.
    fn to(self, asker: Asker, now: u64) -> Told {
        match u64::from(asker) {
            // One that cannot be told from others may be another one.
            0 => Told::new(0, now, now),
            asker if self.0 == 0 => Told::new(asker, now, now.wrapping_sub(UNDER_WAY + 1) & TICKS),
            asker if asker == self.asker() => Told::new(asker, now, self.other()),
            asker => Told::new(asker, now, self.last()),
        }
    }

    /// Somebody other than this thread was told of late.
    fn to_others(self, asker: Asker, now: u64) -> bool {
        let recent = |at: u64| now.wrapping_sub(at) & TICKS < UNDER_WAY;
        self.0 != 0
            && (recent(self.last()) && (asker == NOBODY || self.asker() != u64::from(asker))
                || recent(self.other()))
    }
}

pub(crate) struct Freshness {
    /// How many changes there were.
    changes: AtomicU64,
    /// The last of them: subject, and the low bits of its number.
    log: Box<[AtomicU64]>,
    /// To whom a subject was told: [`Told`].
    told: Box<[AtomicU64]>,
}

impl Default for Freshness {
    fn default() -> Self {
        Freshness {
            changes: AtomicU64::new(0),
            log: (0..LOG).map(|_| AtomicU64::new(u64::MAX)).collect(),
            told: (0..TOLD).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Freshness {
    /// Begins a request, before anything is read for it.
    pub(crate) fn begin(&self, asker: Asker) -> Answering<'_> {
        Answering { fresh: self, asker, since: self.changes.load(SeqCst), now: now() }
    }

    /// Something has changed, at a thread's request or behind the pool's back (`NOBODY`): answers that began before tell
    /// it without time from now on. True when one may be under way already, so that the kernel has to be notified.
    pub(crate) fn changed(&self, subject: Subject, by: Asker) -> bool {
        let number = self.changes.fetch_add(1, SeqCst);
        self.log[number as usize % LOG].store(subject.0 | number << BITS, SeqCst);
        Told(self.told_at(subject).load(SeqCst)).to_others(by, now())
    }

    fn told_at(&self, subject: Subject) -> &AtomicU64 {
        &self.told[subject.0 as usize % TOLD]
    }
}

/// A request that is being worked on.
pub(crate) struct Answering<'a> {
    fresh: &'a Freshness,
    asker: Asker,
    since: u64,
    now: u64,
}

impl Answering<'_> {
    pub(crate) fn asker(&self) -> Asker {
        self.asker
    }

    /// About to tell something; true if it is what it was when the request began, so that it may be remembered.
    pub(crate) fn tells(&self, subject: Subject) -> bool {
        let told = self.fresh.told_at(subject);
        let mut before = told.load(SeqCst);
        // A store that all must see is dear.
        while let after = Told(before).to(self.asker, self.now).0
            && after != before
            && let Err(meanwhile) = told.compare_exchange(before, after, SeqCst, SeqCst)
        {
            before = meanwhile;
        }
        let now = self.fresh.changes.load(SeqCst);
        now - self.since <= LOG as u64
            && (self.since..now).all(|number| {
                let entry = self.fresh.log[number as usize % LOG].load(SeqCst);
                let about = Subject(entry & ((1 << BITS) - 1));
                // One that is not written yet, or is no more, may have been anything.
                entry >> BITS == number & (u64::MAX >> BITS) && about != subject && about != Subject::ALL
            })
    }
}

const TICKS: u64 = (1 << Told::TICKS) - 1;

/// In ticks of 16 milliseconds; comes round every nine hours.
fn now() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    (((time.tv_sec as u64).wrapping_mul(1000) + time.tv_nsec as u64 / 1_000_000) / 16) & TICKS
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Subject = Subject(7);
    const OTHER: Subject = Subject(8);
    const ONE: Asker = 11;
    const TWO: Asker = 4_194_303;

    #[test]
    fn what_changed_meanwhile_is_told_without_time() {
        let fresh = Freshness::default();
        let name = Subject::name(NodeId(7), b"f");
        let answering = fresh.begin(ONE);
        assert!(answering.tells(DIR) && answering.tells(OTHER) && answering.tells(name));
        fresh.changed(DIR, TWO);
        fresh.changed(name, TWO);
        assert!(!answering.tells(DIR) && answering.tells(OTHER) && !answering.tells(name));
        assert!(fresh.begin(ONE).tells(DIR), "what begins later sees the change");
        fresh.changed(Subject::ALL, NOBODY);
        assert!(!answering.tells(OTHER));
    }

    #[test]
    fn a_change_knows_whether_its_subject_was_told() {
        let fresh = Freshness::default();
        assert!(!fresh.changed(DIR, TWO));
        fresh.begin(ONE).tells(DIR);
        assert!(fresh.changed(DIR, TWO));
        assert!(!fresh.changed(OTHER, TWO));
        assert!(fresh.changed(DIR, NOBODY));
        assert!(!fresh.changed(DIR, ONE), "a thread that asks for a change has had its answer");
    }

    #[test]
    fn others_who_were_told_are_remembered_for_as_long_as_it_matters() {
        for start in [1, 100, TICKS - 60, TICKS] {
            let at = |later: u64| (start + later) & TICKS;
            let told = Told(0).to(ONE, at(0));
            assert!(told.to_others(TWO, at(0)) && told.to_others(TWO, at(UNDER_WAY - 1)));
            assert!(!told.to_others(TWO, at(UNDER_WAY)));
            let told = told.to(TWO, at(10));
            assert!(told.to_others(ONE, at(10)) && told.to_others(TWO, at(10)));
            let told = told.to(TWO, at(100));
            assert!(told.to_others(TWO, at(UNDER_WAY - 1)) && !told.to_others(TWO, at(UNDER_WAY)));
            assert!(told.to_others(ONE, at(UNDER_WAY)) && !told.to_others(ONE, at(100 + UNDER_WAY)));
            // Who cannot be told from others.
            let told = told.to(NOBODY, at(500));
            assert!(told.to_others(ONE, at(500)) && told.to_others(NOBODY, at(500)));
            let told = told.to(ONE, at(510));
            assert!(told.to_others(ONE, at(510)) && !told.to_others(ONE, at(510 + UNDER_WAY)));
        }
    }

    #[test]
    fn more_changes_than_are_remembered_concern_everything() {
        let fresh = Freshness::default();
        let answering = fresh.begin(ONE);
        for _ in 0..LOG {
            fresh.changed(OTHER, TWO);
        }
        assert!(answering.tells(DIR));
        fresh.changed(OTHER, TWO);
        assert!(!answering.tells(DIR));
    }

    /// A reader and a writer of one value, and a kernel that keeps what the reader gave it unless the writer notified.
    #[test]
    fn of_the_two_one_sees_the_other() {
        for round in 0..5_000_u64 {
            let fresh = Freshness::default();
            let answering = fresh.begin(ONE);
            let (told, notified) = std::thread::scope(|scope| {
                let changing = scope.spawn(|| fresh.changed(DIR, TWO));
                if round % 2 == 0 {
                    std::thread::yield_now();
                }
                (answering.tells(DIR), changing.join().unwrap())
            });
            assert!(!told || notified, "round {round}: told for good, and not notified");
        }
    }
}
