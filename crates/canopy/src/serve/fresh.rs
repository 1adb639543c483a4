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
//! - who has changed something notes that down, then looks whether it was told of late, and if so notifies.
//!
//! Either the one sees the other's note or the other way round.

use canopy_pool::NodeId;
use rustix::time::{ClockId, clock_gettime};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// What an answer tells, or a change concerns: a node's attributes, or a name. Two may share a value; then one
/// answer more goes without time, or a notification is sent for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Subject(u64);

/// Bits of a subject; the rest of a word in the log tells whose turn it was.
const BITS: u32 = 48;
const NAME: u64 = 1 << (BITS - 1);

impl Subject {
    /// Any node and any name.
    pub(super) const ALL: Subject = Subject(NAME);

    pub(super) fn attributes(node: NodeId) -> Self {
        Subject(node.0 & (NAME - 1))
    }

    pub(super) fn name(parent: NodeId, name: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        (parent.0, name).hash(&mut hasher);
        Subject(NAME | hasher.finish() & (NAME - 1))
    }
}

/// Changes that are remembered. An answer during which more happened goes without time.
const LOG: usize = 1024;
/// Notes of what was told, by subject.
const TOLD: usize = 4096;
/// For how long an answer may lie with its reader, who has not run since, in milliseconds.
const UNDER_WAY: u32 = 2000;

pub(super) struct Fresh {
    /// How many changes there were.
    changes: AtomicU64,
    /// The last of them: subject, and the low bits of its number.
    log: Box<[AtomicU64]>,
    /// When a subject was told last, in milliseconds; 0 for never.
    told: Box<[AtomicU32]>,
}

impl Default for Fresh {
    fn default() -> Self {
        Fresh {
            changes: AtomicU64::new(0),
            log: (0..LOG).map(|_| AtomicU64::new(u64::MAX)).collect(),
            told: (0..TOLD).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl Fresh {
    /// Begins a request, before anything is read for it.
    pub(super) fn begin(&self) -> Answering<'_> {
        Answering { fresh: self, since: self.changes.load(SeqCst), now: now() }
    }

    /// Something has changed: answers that began before tell it without time from now on. True when one may be under
    /// way already, so that the kernel has to be notified.
    pub(super) fn changed(&self, subject: Subject) -> bool {
        let number = self.changes.fetch_add(1, SeqCst);
        self.log[number as usize % LOG].store(subject.0 | number << BITS, SeqCst);
        let told = self.told_at(subject).load(SeqCst);
        told != 0 && now().wrapping_sub(told) < UNDER_WAY
    }

    fn told_at(&self, subject: Subject) -> &AtomicU32 {
        &self.told[subject.0 as usize % TOLD]
    }
}

/// A request that is being worked on.
pub(super) struct Answering<'a> {
    fresh: &'a Fresh,
    since: u64,
    now: u32,
}

impl Answering<'_> {
    /// About to tell something; true if it is what it was when the request began, so that it may be remembered.
    pub(super) fn tells(&self, subject: Subject) -> bool {
        let told = self.fresh.told_at(subject);
        // A store that all must see is dear.
        if told.load(SeqCst) != self.now {
            told.store(self.now, SeqCst);
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

/// Milliseconds; never 0.
fn now() -> u32 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    (time.tv_sec as u32).wrapping_mul(1000).wrapping_add(time.tv_nsec as u32 / 1_000_000).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Subject = Subject(7);
    const OTHER: Subject = Subject(8);

    #[test]
    fn what_changed_meanwhile_is_told_without_time() {
        let fresh = Fresh::default();
        let name = Subject::name(NodeId(7), b"f");
        let answering = fresh.begin();
        assert!(answering.tells(DIR) && answering.tells(OTHER) && answering.tells(name));
        fresh.changed(DIR);
        fresh.changed(name);
        assert!(!answering.tells(DIR) && answering.tells(OTHER) && !answering.tells(name));
        assert!(fresh.begin().tells(DIR), "what begins later sees the change");
        fresh.changed(Subject::ALL);
        assert!(!answering.tells(OTHER));
    }

    #[test]
    fn a_change_knows_whether_its_subject_was_told() {
        let fresh = Fresh::default();
        assert!(!fresh.changed(DIR));
        fresh.begin().tells(DIR);
        assert!(fresh.changed(DIR));
        assert!(!fresh.changed(OTHER));
        // Long ago.
        fresh.told_at(DIR).store(now().wrapping_sub(UNDER_WAY + 10), SeqCst);
        assert!(!fresh.changed(DIR));
    }

    #[test]
    fn more_changes_than_are_remembered_concern_everything() {
        let fresh = Fresh::default();
        let answering = fresh.begin();
        for _ in 0..LOG {
            fresh.changed(OTHER);
        }
        assert!(answering.tells(DIR));
        fresh.changed(OTHER);
        assert!(!answering.tells(DIR));
    }

    /// A reader and a writer of one value, and a kernel that keeps what the reader gave it unless the writer notified.
    #[test]
    fn of_the_two_one_sees_the_other() {
        for round in 0..5_000_u64 {
            let fresh = Fresh::default();
            let answering = fresh.begin();
            let (told, notified) = std::thread::scope(|scope| {
                let changing = scope.spawn(|| fresh.changed(DIR));
                if round % 2 == 0 {
                    std::thread::yield_now();
                }
                (answering.tells(DIR), changing.join().unwrap())
            });
            assert!(!told || notified, "round {round}: told for good, and not notified");
        }
    }
}
