//! What has changed, by file handle: a slot has the number of the latest change of any file that shares it.

use super::rows::{Copy, Facts};
use super::{Handles, seconds};
use std::collections::HashSet;

/// The number of slots for changes: 8 MiB, of which those are used that were touched.
const SLOTS: usize = 1 << 20;

/// What has changed.
pub(super) struct Log {
    /// For each slot, the number of the latest change.
    pub(super) slots: Vec<u64>,
    /// The latest change of a directory's place, and of everything.
    pub(super) moved: u64,
    pub(super) cleared: u64,
    /// Files that change without being reported.
    pub(super) writing: HashSet<u64>,
}

impl Log {
    pub(super) fn new() -> Log {
        Log { slots: vec![0; SLOTS], moved: 0, cleared: 0, writing: HashSet::new() }
    }

    pub(super) fn touch(&mut self, handle: u64, now: u64) {
        self.slots[handle as usize % SLOTS] = now;
    }

    pub(super) fn unchanged(&self, handle: u64, since: u64) -> bool {
        self.slots[handle as usize % SLOTS] <= since && self.cleared <= since
    }

    pub(super) fn all_unchanged(&self, handles: &Handles, since: u64) -> bool {
        handles.iter().all(|handle| self.unchanged(*handle, since))
    }

    pub(super) fn may_rely_on(&self, facts: &Facts) -> bool {
        let rests =
            |copy: &Copy| self.unchanged(copy.handle, facts.since) && !self.writing.contains(&copy.handle);
        facts.copies.iter().all(rests) && seconds() < facts.until
    }
}
