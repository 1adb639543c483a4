//! Exclusion between cloning directories to a branch and changing directories' attributes.
//!
//! A clone must not miss a change of the directory that it copies. The kernel serializes a change of a directory only
//! with operations in that directory itself, but cloning copies the directory's parents, too. Work on other directories
//! and clones to other branches do not wait for each other: a branch may be slow.

use super::rank;
use canopy_base::ids::BranchId;
use canopy_base::lock::ranked::{Condvar, Hold, Mutex};
use canopy_base::path::PoolPath;
use std::time::{Duration, Instant};

#[derive(Default)]
pub(crate) struct CloneLocks {
    in_progress: Mutex<Vec<(u64, Work)>, rank::Leaf>,
    ended: Condvar,
}

/// Work that excludes other work.
enum Work {
    /// Clones a directory and its parents to a branch. One at a time for each branch.
    Clone { path: PoolPath, to: BranchId },
    /// Changes a directory's attributes on all branches.
    Change { path: PoolPath },
}

/// Work in progress; ends when dropped.
pub(crate) struct CloneGuard<'a> {
    locks: &'a CloneLocks,
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

/// Returns true if `dir` is the directory at `path` or one of its parents. The root does not count: every branch has
/// it.
fn is_at_or_above(dir: &[u8], path: &[u8]) -> bool {
    !dir.is_empty()
        && path.strip_prefix(dir).is_some_and(|rest| rest.first().is_none_or(|&byte| byte == b'/'))
}

impl CloneLocks {
    /// Begins to clone the directory at `path` to a branch. `None` if other work takes longer than `limit`.
    pub(crate) fn begin_clone(
        &self,
        path: &[u8],
        to: BranchId,
        limit: Option<Duration>,
    ) -> Option<CloneGuard<'_>> {
        self.begin(Work::Clone { path: PoolPath::from_slice(path), to }, limit)
    }

    /// Begins to change the attributes of a directory. `None` if other work takes longer than `limit`.
    pub(crate) fn begin_change(&self, path: PoolPath, limit: Option<Duration>) -> Option<CloneGuard<'_>> {
        self.begin(Work::Change { path }, limit)
    }

    fn begin(&self, work: Work, limit: Option<Duration>) -> Option<CloneGuard<'_>> {
        let hold = Hold::take();
        let until = limit.map(|limit| Instant::now() + limit);
        let mut in_progress = self.in_progress.lock();
        while in_progress.iter().any(|(_, other)| work.excludes(other)) {
            match until {
                None => self.ended.wait(&mut in_progress),
                Some(until) if self.ended.wait_until(&mut in_progress, until).timed_out() => return None,
                Some(_) => {}
            }
        }
        let number = in_progress.iter().map(|(number, _)| number + 1).max().unwrap_or_default();
        in_progress.push((number, work));
        Some(CloneGuard { locks: self, number, _hold: hold })
    }
}

impl Drop for CloneGuard<'_> {
    fn drop(&mut self) {
        self.locks.in_progress.lock().retain(|(number, _)| *number != self.number);
        self.locks.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_on_the_same_directories_waits() {
        let locks = CloneLocks::default();
        let (one, two) = (BranchId(1), BranchId(2));
        let at_once = Some(Duration::ZERO);
        // Whether another thread can begin without waiting; its work ends with the thread.
        let clones = |path: &[u8], to| {
            std::thread::scope(|scope| {
                scope.spawn(|| locks.begin_clone(path, to, at_once).is_some()).join().unwrap()
            })
        };
        let changes = |path: &str| {
            let path = PoolPath::from_slice(path.as_bytes());
            std::thread::scope(|scope| {
                scope.spawn(|| locks.begin_change(path, at_once).is_some()).join().unwrap()
            })
        };
        let clone = locks.begin_clone(b"a/b", one, None);
        assert!(!clones(b"c", one), "one at a time for a branch");
        assert!(clones(b"a/b", two));
        for (changed, waits) in [("a", true), ("a/b", true), ("a/b/c", false), ("a/bc", false), ("", false)] {
            assert_eq!(!changes(changed), waits, "{changed}");
        }
        drop(clone);
        let change = locks.begin_change(PoolPath::from_slice(b"a"), at_once);
        assert!(change.is_some() && changes("a"));
        assert!(!clones(b"a/b", one));
        drop(change);
        assert!(clones(b"a/b", one));
    }
}
