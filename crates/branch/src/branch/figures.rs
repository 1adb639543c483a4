//! What statvfs(3) says of the whole pool, remembered for a moment.
//!
//! Asking every filesystem takes a system call each. A program that asks again and again gets the same answer for
//! `MOMENT`, unless the pool has changed something on a branch since, or a file is open for writing: the kernel may
//! write that without the daemon.

use super::Branches;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::RwLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long an answer may miss what other programs change on the branches. Shorter than a program that shows free space
/// takes to start, and long enough that filesystems are asked seldom by a program that does nothing else.
const MOMENT: Duration = Duration::from_millis(10);

/// The fields of statvfs(3), with its names and units.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    pub bsize: u64,
    pub frsize: u64,
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub favail: u64,
    pub namemax: u64,
}

impl From<&rustix::fs::StatVfs> for Figures {
    fn from(stat: &rustix::fs::StatVfs) -> Figures {
        Figures {
            bsize: stat.f_bsize,
            frsize: stat.f_frsize,
            blocks: stat.f_blocks,
            bfree: stat.f_bfree,
            bavail: stat.f_bavail,
            files: stat.f_files,
            ffree: stat.f_ffree,
            favail: stat.f_favail,
            namemax: stat.f_namemax,
        }
    }
}

/// The pool's last answer to statvfs(3), and what may have overtaken it.
#[derive(Default)]
pub struct PoolFigures {
    /// How many operations have changed something on a branch.
    changes: AtomicU64,
    /// How many changes are in progress, and how many handles are open for writing.
    active: AtomicUsize,
    last: RwLock<Option<Counted>, rank::Leaf>,
}

struct Counted {
    asked: Instant,
    changes: u64,
    branches: Branches,
    figures: Figures,
}

/// An operation that changes something on a branch. Until it ends, and from then on, no earlier answer is used again.
pub struct Change<'a>(&'a PoolFigures);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.changes.fetch_add(1, Ordering::Release);
        self.0.active.fetch_sub(1, Ordering::Release);
    }
}

impl PoolFigures {
    /// Drops the last answer, which keeps its branches open.
    pub fn forget(&self) {
        let before = self.last.write().take();
        drop(before);
    }

    /// Begins a change, which ends when the returned value is dropped: before the client has its answer.
    pub fn changes(&self) -> Change<'_> {
        self.active.fetch_add(1, Ordering::Acquire);
        Change(self)
    }

    /// Records that a handle is open for writing.
    pub fn writer_opened(&self) {
        self.active.fetch_add(1, Ordering::Acquire);
    }

    /// Records that such a handle is closed.
    pub fn writer_closed(&self) {
        drop(Change(self));
    }

    /// Returns the figures for these branches: the last answer, if it still holds, or that of `ask`. An answer of which a
    /// part is missing (`None`) is not remembered.
    pub fn get(&self, branches: &Branches, ask: impl FnOnce() -> (Figures, Option<()>)) -> Figures {
        self.get_at(Instant::now(), branches, ask)
    }

    fn get_at(
        &self,
        asked: Instant,
        branches: &Branches,
        ask: impl FnOnce() -> (Figures, Option<()>),
    ) -> Figures {
        let changes = self.changes.load(Ordering::Acquire);
        let quiet = self.active.load(Ordering::Acquire) == 0;
        if quiet
            && let Some(last) = &*self.last.read()
            && last.changes == changes
            && asked.saturating_duration_since(last.asked) < MOMENT
            && last.branches.are(branches)
        {
            return last.figures;
        }
        let (figures, complete) = ask();
        let answer = complete.filter(|()| quiet).map(|()| Counted {
            asked,
            changes,
            branches: branches.clone(),
            figures,
        });
        let before = std::mem::replace(&mut *self.last.write(), answer);
        drop(before);
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::list::{BranchList, BranchSpec, Mode};

    #[test]
    fn an_answer_holds_for_a_moment_unless_something_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        let spec = BranchSpec { path: dir.path().to_owned(), mode: Mode::Rw, min_free: None };
        let list: BranchList = std::iter::once(spec).collect();
        let branches = Branches::open(&list).expect("branches");
        let other = Branches::open(&list).expect("branches");
        let (pool, start, asked) = (PoolFigures::default(), Instant::now(), std::cell::Cell::new(0));
        let get_of = |branches: &Branches, millis, complete| {
            let ask = || {
                asked.set(asked.get() + 1);
                (Figures { bfree: asked.get(), ..Figures::default() }, complete)
            };
            pool.get_at(start + Duration::from_millis(millis), branches, ask).bfree
        };
        let get = |millis| get_of(&branches, millis, Some(()));
        assert_eq!([get(0), get(9), get(10), get(19)], [1, 1, 2, 2], "asked again after a moment");
        assert_eq!(get_of(&other, 19, Some(())), 3, "other branches");
        assert_eq!([get(20), get(20)], [4, 4]);
        let change = pool.changes();
        assert_eq!([get(20), get(20)], [5, 6], "while a change is made");
        drop(change);
        assert_eq!([get(20), get(20)], [7, 7], "after it");
        pool.writer_opened();
        assert_eq!([get(20), get(20)], [8, 9], "while a file is open for writing");
        pool.writer_closed();
        assert_eq!([get(20), get(20)], [10, 10], "after it was closed");
        assert_eq!(get_of(&branches, 40, None), 11, "a branch failed");
        assert_eq!([get(40), get(40)], [12, 12], "so its answer is not remembered");
    }
}
