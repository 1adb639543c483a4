//! The cached state of a directory, kept in its node.

use super::copy_attrs::CopyAttrs;
use super::name_index::{CacheCounters, NameIndex};
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::{Branch, Branches};
use canopy_branch::fs::beneath::Dir;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A value per branch, in branch order.
pub(crate) type PerBranch<T> = SmallVec<[T; 4]>;

/// A directory opened on the branches. The descriptors may be used by many threads at once, and cached.
#[derive(Clone, Default)]
pub(crate) struct BranchDirs {
    pub(crate) list: PerBranch<Option<BranchDir>>,
    /// The first error other than absence: that of a failing branch.
    pub(crate) error: Option<Errno>,
    /// The branches that are left out because they do not answer, if all of them are known to lack it, and so to hold none of
    /// its names.
    pub(crate) lacked_by: SmallVec<[Arc<Branch>; 1]>,
}

#[derive(Clone)]
pub(crate) enum BranchDir {
    /// The branch's root, which the branch keeps open.
    Root,
    Dir(Arc<OwnedFd>),
}

impl From<Dir<'_>> for BranchDir {
    fn from(dir: Dir<'_>) -> Self {
        match dir {
            Dir::Root(_) => BranchDir::Root,
            Dir::Opened(fd) => BranchDir::Dir(Arc::new(fd)),
        }
    }
}

impl BranchDirs {
    pub(crate) fn get<'a>(&'a self, branches: &'a Branches, index: usize) -> Option<BorrowedFd<'a>> {
        self.list[index].as_ref().map(|dir| match dir {
            BranchDir::Root => branches.as_slice()[index].root(),
            BranchDir::Dir(fd) => fd.as_fd(),
        })
    }

    /// Returns the only branch that may hold a name, if that is known: no other has the directory, or the names of each are
    /// known.
    pub(crate) fn only_holder(&self, names: Option<&NameIndex>, name: &[u8]) -> Option<usize> {
        let mut holding =
            self.list.iter().enumerate().filter_map(|(index, dir)| dir.is_some().then_some(index));
        match (holding.next(), holding.next()) {
            (only, None) if self.error.is_none() => only,
            _ => names?.holders(name)?.only(),
        }
    }

    /// Returns it without a branch that is to be left out and lacks it.
    pub(crate) fn without(&self, index: usize, branch: &Arc<Branch>) -> BranchDirs {
        let mut without = self.clone();
        without.list.remove(index);
        without.lacked_by.push(Arc::clone(branch));
        without
    }

    /// Returns whether no branch that does not answer has it, now or soon: an operation that has timed out may go on to clone
    /// it.
    pub(crate) fn is_whole(&self) -> bool {
        !self.lacked_by.is_empty() && !self.lacked_by.iter().any(|branch| branch.gets_clones())
    }

    /// Returns the number of descriptors that it keeps open.
    pub(crate) fn descriptors(&self) -> usize {
        self.list.iter().filter(|dir| matches!(dir, Some(BranchDir::Dir(_)))).count()
    }
}

/// The place of a cached directory in its node.
pub(crate) type CacheSlot = Mutex<Option<Arc<CachedDir>>, rank::DirState>;

/// A cached directory.
pub(crate) struct CachedDir {
    pub(crate) branches: Branches,
    pub(crate) stamp: CacheVersion,
    pub(crate) opened: Arc<BranchDirs>,
    /// Device and inode number on each branch.
    pub(crate) ids: PerBranch<Option<(u64, u64)>>,
    /// For each branch, the latest value of `places` for which the directory was known to be there.
    pub(crate) seen: PerBranch<AtomicU64>,
    pub(crate) names: Arc<NameIndex>,
    pub(crate) attrs: Arc<CopyAttrs>,
    /// It was used since eviction last considered it.
    pub(crate) used: AtomicBool,
    pub(crate) tally: Arc<CacheCounters>,
}

impl CachedDir {
    /// Returns the number of branches that hold the directory.
    pub(crate) fn copies(&self) -> usize {
        self.ids.iter().flatten().count()
    }

    pub(crate) fn new(
        branches: Branches,
        stamp: CacheVersion,
        opened: Arc<BranchDirs>,
        ids: PerBranch<Option<(u64, u64)>>,
        names: Arc<NameIndex>,
        attrs: Arc<CopyAttrs>,
        tally: &Arc<CacheCounters>,
    ) -> Arc<CachedDir> {
        tally.dirs.fetch_add(1, Ordering::Relaxed);
        tally.descriptors.fetch_add(opened.descriptors(), Ordering::Relaxed);
        Arc::new(CachedDir {
            branches,
            stamp,
            opened,
            seen: ids.iter().map(|_| AtomicU64::new(stamp.places)).collect(),
            ids,
            names,
            attrs,
            used: AtomicBool::new(true),
            tally: Arc::clone(tally),
        })
    }

    /// Returns the directory as it is after a change by the pool. `attrs` may be its own: those of the copies that have not
    /// changed.
    pub(crate) fn with(
        &self,
        stamp: CacheVersion,
        opened: Arc<BranchDirs>,
        ids: PerBranch<Option<(u64, u64)>>,
        names: Arc<NameIndex>,
        attrs: Arc<CopyAttrs>,
    ) -> Arc<CachedDir> {
        CachedDir::new(self.branches.clone(), stamp, opened, ids, names, attrs, &self.tally)
    }
}

/// The state of the cache, read before directories are opened that are to be cached.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheVersion {
    pub(crate) places: u64,
    pub(crate) epoch: u64,
}

impl Drop for CachedDir {
    fn drop(&mut self) {
        self.tally.dirs.fetch_sub(1, Ordering::Relaxed);
        self.tally.descriptors.fetch_sub(self.opened.descriptors(), Ordering::Relaxed);
    }
}
