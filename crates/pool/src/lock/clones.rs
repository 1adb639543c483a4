//! Directories that are being brought onto further branches, and directories whose attributes are being changed.
//!
//! A clone must not miss a change of what it is a clone of. The kernel orders a change only against work in the directory
//! itself, and clones are made of all those above as well. Whoever is at work on other directories, or clones to another
//! branch, does not wait: the branch may be one that takes its time.

use super::rank;
use super::ranked::{Condvar, Hold, Mutex};
use crate::ids::BranchId;
use crate::path::PoolPath;
use std::time::{Duration, Instant};

#[derive(Default)]
pub(crate) struct CloneLocks {
    under_way: Mutex<Vec<(u64, Work)>, rank::DirClones>,
    ended: Condvar,
}

/// What somebody does.
enum Work {
    /// Brings a directory, and those above it, onto a branch. One at a time for each branch.
    Clone { path: PoolPath, to: BranchId },
    /// Changes a directory's attributes on all branches.
    Change { path: PoolPath },
}

/// It is under way for as long as this lives.
pub(crate) struct CloneGuard<'a> {
    cloning: &'a CloneLocks,
    number: u64,
    _hold: Hold<rank::DirClone>,
}

impl Work {
    fn excludes(&self, other: &Work) -> bool {
        match (self, other) {
            (Work::Clone { to, .. }, Work::Clone { to: also, .. }) => to == also,
            (Work::Clone { path, .. }, Work::Change { path: changed })
            | (Work::Change { path: changed }, Work::Clone { path, .. }) => is_at_or_above(changed, path),
            (Work::Change { .. }, Work::Change { .. }) => false,
        }
    }
}

/// Is `dir` the directory at `path`, or one of those above it? The root is not counted: every branch has it.
fn is_at_or_above(dir: &[u8], path: &[u8]) -> bool {
    !dir.is_empty()
        && path.strip_prefix(dir).is_some_and(|rest| rest.first().is_none_or(|&byte| byte == b'/'))
}

impl CloneLocks {
    /// None when somebody else's work takes longer than `limit`.
    pub(crate) fn begin_clone(
        &self,
        path: &[u8],
        to: BranchId,
        limit: Option<Duration>,
    ) -> Option<CloneGuard<'_>> {
        self.begin(Work::Clone { path: PoolPath::from_slice(path), to }, limit)
    }

    /// None when somebody else's work takes longer than `limit`.
    pub(crate) fn begin_change(&self, path: PoolPath, limit: Option<Duration>) -> Option<CloneGuard<'_>> {
        self.begin(Work::Change { path }, limit)
    }

    fn begin(&self, work: Work, limit: Option<Duration>) -> Option<CloneGuard<'_>> {
        let hold = Hold::take();
        let until = limit.map(|limit| Instant::now() + limit);
        let mut under_way = self.under_way.lock();
        while under_way.iter().any(|(_, other)| work.excludes(other)) {
            match until {
                None => self.ended.wait(&mut under_way),
                Some(until) if self.ended.wait_until(&mut under_way, until).timed_out() => return None,
                Some(_) => {}
            }
        }
        let number = under_way.iter().map(|(number, _)| number + 1).max().unwrap_or_default();
        under_way.push((number, work));
        Some(CloneGuard { cloning: self, number, _hold: hold })
    }
}

impl Drop for CloneGuard<'_> {
    fn drop(&mut self) {
        self.cloning.under_way.lock().retain(|(number, _)| *number != self.number);
        self.cloning.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clones_of_the_same_directories_wait() {
        let cloning = CloneLocks::default();
        let (one, two) = (BranchId(1), BranchId(2));
        let at_once = Some(Duration::ZERO);
        // Whether another thread can begin at once; its work ends with it.
        let clones = |path: &[u8], to| {
            std::thread::scope(|scope| {
                scope.spawn(|| cloning.begin_clone(path, to, at_once).is_some()).join().unwrap()
            })
        };
        let changes = |path: &str| {
            let path = PoolPath::from_slice(path.as_bytes());
            std::thread::scope(|scope| {
                scope.spawn(|| cloning.begin_change(path, at_once).is_some()).join().unwrap()
            })
        };
        let clone = cloning.begin_clone(b"a/b", one, None);
        assert!(!clones(b"c", one), "one at a time for a branch");
        assert!(clones(b"a/b", two));
        for (changed, waits) in [("a", true), ("a/b", true), ("a/b/c", false), ("a/bc", false), ("", false)] {
            assert_eq!(!changes(changed), waits, "{changed}");
        }
        drop(clone);
        let change = cloning.begin_change(PoolPath::from_slice(b"a"), at_once);
        assert!(change.is_some() && changes("a"));
        assert!(!clones(b"a/b", one));
        drop(change);
        assert!(clones(b"a/b", one));
    }
}
