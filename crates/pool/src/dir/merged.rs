//! A directory of the pool on all branches, and the copies of its names.

use super::symlinks::Symlinks;
use crate::config::FollowSymlinks;
use crate::node::Node;
use crate::node::copy_attrs::{CopyAttrs, FEW_COPIES};
use crate::node::dir_state::{BranchDir, BranchDirs, CacheVersion, CachedDir};
use crate::node::name_index::NameIndex;
use canopy_base::error::{Error, Result};
use canopy_branch::branch::{Branch, Branches};
use canopy_branch::fs::beneath::{self, Dir};
use canopy_branch::fs::stat::{self, Attr};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::Arc;

/// The cache version that an operation may trust, if it may trust the cache.
pub(crate) type Trust = Option<CacheVersion>;

/// One directory of the pool, opened on every branch that holds it.
pub(crate) struct MergedDir<'b> {
    pub(crate) branches: &'b Branches,
    pub(crate) opened: Arc<BranchDirs>,
    pub(crate) follow: Symlinks,
    /// A symlink leads to it on some branch.
    pub(crate) by_link: bool,
    /// Its node, if the directory was found by that.
    pub(crate) node: Option<Arc<Node>>,
    /// The cached names, if they may be trusted.
    pub(crate) names: Option<Arc<NameIndex>>,
    /// The remembered attributes of its copies, if they may be trusted.
    attrs: Option<Arc<CopyAttrs>>,
}

impl<'b> MergedDir<'b> {
    pub(crate) fn open(follow: Symlinks, branches: &'b Branches, path: &[u8]) -> Self {
        Self::open_on(follow, branches, path, |_| true)
    }

    /// As `open`, for a directory that is known to be on those branches alone that `may_hold` it. The others are not asked.
    pub(crate) fn open_on(
        follow: Symlinks,
        branches: &'b Branches,
        path: &[u8],
        may_hold: impl Fn(&Branch) -> bool,
    ) -> Self {
        let (mut error, mut by_link) = (None, false);
        let mut open = |branch: &Arc<Branch>| match branch.reads(|| follow.dir(branch.root.as_fd(), path)) {
            Ok((dir, through)) => {
                by_link |= through;
                Some(dir.into())
            }
            Err(errno) => {
                if !beneath::is_absent(errno) {
                    error.get_or_insert(errno);
                }
                None
            }
        };
        let list = branches.iter().map(|branch| if may_hold(branch) { open(branch) } else { None }).collect();
        MergedDir {
            follow,
            by_link,
            ..MergedDir::plain(branches, BranchDirs { list, error, ..BranchDirs::default() })
        }
    }

    /// Opens a directory by its name in a cached one, on the branches that may hold the name. `None` if it is not known
    /// which ones do.
    pub(crate) fn open_in(parent: &CachedDir, branches: &'b Branches, name: &[u8]) -> Option<Self> {
        let holders = parent.names.holders(name)?;
        let mut opened = BranchDirs { lacked_by: parent.opened.lacked_by.clone(), ..BranchDirs::default() };
        for (index, branch) in branches.iter().enumerate() {
            let dir = parent.opened.get(branches, index).filter(|_| holders.has(index));
            let found = match dir.map(|dir| branch.reads(|| beneath::subdir(dir, name))) {
                Some(Err(errno)) if !beneath::is_absent(errno) => {
                    opened.error.get_or_insert(errno);
                    None
                }
                found => found.and_then(Result::ok),
            };
            opened.list.push(found.map(|dir| BranchDir::Dir(Arc::new(dir))));
        }
        Some(MergedDir::plain(branches, opened))
    }

    fn plain(branches: &'b Branches, opened: BranchDirs) -> Self {
        let (opened, follow) = (Arc::new(opened), Symlinks::NEVER);
        MergedDir { branches, opened, follow, by_link: false, node: None, names: None, attrs: None }
    }

    /// Returns a directory as it is cached, for a caller that may trust that.
    pub(crate) fn cached(branches: &'b Branches, node: Arc<Node>, cached: &CachedDir) -> Self {
        MergedDir {
            branches,
            opened: Arc::clone(&cached.opened),
            follow: Symlinks::NEVER,
            by_link: false,
            node: Some(node),
            names: Some(Arc::clone(&cached.names)),
            attrs: Some(Arc::clone(&cached.attrs)),
        }
    }

    /// Returns the reason that no branch holds the directory.
    pub(crate) fn missing(&self) -> Error {
        self.opened.error.or(self.timeout_error()).map_or(Error::Absent, Error::Branch)
    }

    /// Records that it is below a directory that the branches which do not answer lack.
    pub(crate) fn set_below(&mut self, above: &BranchDirs) {
        Arc::make_mut(&mut self.opened).lacked_by.clone_from(&above.lacked_by);
    }

    /// Returns `ETIMEDOUT` if a branch that does not answer may have it.
    fn timeout_error(&self) -> Option<Errno> {
        self.branches.timeout_error().filter(|_| !self.opened.is_whole())
    }

    pub(crate) fn get(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.opened.get(self.branches, index)
    }

    /// Returns the branch's directory; `None` for its root.
    pub(crate) fn opened_dir(&self, index: usize) -> Option<&Arc<OwnedFd>> {
        match self.opened.list[index].as_ref()? {
            BranchDir::Root => None,
            BranchDir::Dir(fd) => Some(fd),
        }
    }

    pub(crate) fn lacks(&self, index: usize) -> bool {
        self.opened.list[index].is_none()
    }

    /// Records that a branch now has the directory.
    pub(crate) fn put(&mut self, index: usize, dir: Dir<'_>) {
        Arc::make_mut(&mut self.opened).list[index] = Some(dir.into());
    }

    pub(crate) fn first(&self) -> Result<usize> {
        self.opened.list.iter().position(Option::is_some).ok_or_else(|| self.missing())
    }

    /// Returns the branches that hold it.
    fn each(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        (0..self.opened.list.len()).filter_map(|index| self.get(index).map(|dir| (index, dir)))
    }

    fn empty_copies(&self) -> Copies {
        let (branches, error) = (self.branches.len(), self.opened.error);
        let (found, current, unheard) = (SmallVec::new(), None, self.timeout_error());
        Copies { found, current, branches, follow: self.follow, error, unheard }
    }

    /// Looks at the directory itself on each branch.
    pub(crate) fn own(&self) -> Copies {
        let mut copies = self.empty_copies();
        for (index, dir) in self.each() {
            self.put_copy(&mut copies, index, self.branches[index].reads(|| stat::of(dir)));
        }
        copies
    }

    /// Returns what is remembered of its copies' attributes: nothing if that may not be trusted, or if there are few.
    pub(crate) fn attrs(&self) -> Arc<CopyAttrs> {
        let many = || self.each().count() > FEW_COPIES;
        self.attrs.clone().filter(|_| many()).unwrap_or_default()
    }

    /// As `own`, but asks only the copies whose attributes are not remembered. For a caller for which all changes on the
    /// branches have been processed.
    pub(crate) fn own_remembered(&self) -> Copies {
        let mut copies = self.empty_copies();
        let count = self.opened.list.len();
        copies.found.reserve(count);
        let ask = |index| {
            let dir = self.get(index).ok_or(Errno::NOENT)?;
            self.branches[index].reads(|| stat::of(dir))
        };
        self.attrs().each(
            count,
            |index| !self.lacks(index),
            ask,
            |index, answer| {
                self.put_copy(&mut copies, index, answer);
            },
        );
        copies
    }

    /// Records that the directory has changed on a branch, by a change of its names. Must be called before the kernel
    /// learns of it.
    pub(crate) fn copy_changed(&self, index: usize) {
        if let Some(node) = &self.node {
            node.copy_changed(self.branches.as_slice()[index].id);
        }
    }

    fn put_copy(&self, copies: &mut Copies, index: usize, answer: Result<Attr, Errno>) {
        match answer {
            Ok(attr) => copies.found.push((index, attr)),
            Err(errno) if !beneath::is_absent(errno) => {
                copies.error.get_or_insert(errno);
            }
            Err(_) => {}
        }
    }

    /// Returns whether a name that the pool shows as a directory is a followed symlink on a branch.
    pub(crate) fn is_link(&self, index: usize, name: &[u8]) -> bool {
        let is_link = |dir| stat::at(dir, name).is_ok_and(|attr| attr.is_symlink());
        self.follow.mode != FollowSymlinks::Never && self.get(index).is_some_and(is_link)
    }

    /// Removes a name from a branch.
    pub(crate) fn unlink(&self, index: usize, name: &[u8], flags: AtFlags) -> Result<(), Errno> {
        let dir = self.get(index).ok_or(Errno::NOENT)?;
        let removed = self.branches[index].changes(|| rustix::fs::unlinkat(dir, name, flags));
        self.copy_changed(index);
        removed
    }

    /// Looks up a name on each branch.
    pub(crate) fn copies(&self, name: &[u8]) -> Copies {
        self.ask(name, false, |_, dir| self.follow.at(dir, name))
    }

    /// As `copies`, but stops at the first branch that holds the name, unless that holds a directory, for which all
    /// copies count.
    pub(crate) fn first_copy(&self, name: &[u8]) -> Copies {
        self.ask(name, true, |_, dir| self.follow.at(dir, name))
    }

    /// As `copies`, and pins each copy (`O_PATH`). The descriptors are in the order of the copies.
    pub(crate) fn pinned_copies(&self, name: &[u8]) -> (Copies, SmallVec<[OwnedFd; 1]>) {
        let mut pinned = SmallVec::new();
        let copies = self.ask(name, false, |_, dir| {
            let fd = self.follow.pin(dir, name)?;
            let attr = stat::of(fd.as_fd())?;
            pinned.push(fd);
            Ok(attr)
        });
        (copies, pinned)
    }

    /// Returns the only branch that may hold a name, if that is known.
    pub(crate) fn only_holder(&self, name: &[u8]) -> Option<usize> {
        self.opened.only_holder(self.names.as_deref(), name)
    }

    fn ask(
        &self,
        name: &[u8],
        first: bool,
        mut look: impl FnMut(usize, BorrowedFd<'_>) -> Result<Attr, Errno>,
    ) -> Copies {
        let mut copies = self.empty_copies();
        let known = self.names.as_ref().and_then(|names| names.holders(name));
        let mut kept = known.map(|holders| holders.kept());
        let (mut misses, mut stopped) = (0, false);
        for (index, dir) in self.each() {
            if known.is_some_and(|holders| !holders.has(index)) {
                continue;
            }
            let mut keep = || kept.iter_mut().for_each(|kept| kept.add(index));
            if stopped {
                keep();
                continue;
            }
            let answer = self.branches[index].reads(|| look(index, dir));
            match &answer {
                Err(errno) if beneath::is_absent(*errno) => misses += 1,
                _ => keep(),
            }
            stopped = first && matches!(&answer, Ok(attr) if !attr.is_dir());
            self.put_copy(&mut copies, index, answer);
            if stopped && known.is_none() {
                break;
            }
        }
        match (&self.names, known, kept) {
            (Some(names), Some(holders), Some(kept)) => names.keep_holders(name, &kept, holders),
            (Some(names), None, _) if misses > 0 && names.count_misses(misses) => {
                names.build_from(self.each());
            }
            _ => {}
        }
        copies
    }

    /// Records that a name was created on a branch. Must be called before the kernel learns of it.
    pub(crate) fn name_created(&self, name: &[u8], index: usize) {
        if let Some(node) = &self.node {
            node.name_created(name, self.branches.as_slice()[index].id);
        }
        // The cache of this operation may have been dropped in the meantime, with the directory that was here.
        if let Some(names) = &self.names {
            names.add_holder(name, index);
        }
    }
}

/// The copies that the branches hold under one path.
pub(crate) struct Copies {
    /// Index of the branch and attributes of its copy, in branch order.
    pub(crate) found: SmallVec<[(usize, Attr); 1]>,
    /// The branches whose copies are up to date, if generations were compared: those of the others are not shown.
    pub(crate) current: Option<SmallVec<[usize; 2]>>,
    pub(crate) branches: usize,
    /// How symlinks were treated in the lookup.
    pub(crate) follow: Symlinks,
    pub(crate) error: Option<Errno>,
    /// Set if branches were not asked because they do not answer.
    pub(crate) unheard: Option<Errno>,
}

impl Copies {
    /// Returns these copies without those that `keep` rules out.
    pub(crate) fn only(&self, keep: impl Fn(usize) -> bool) -> Copies {
        let found = self.found.iter().filter(|(index, _)| keep(*index)).copied().collect();
        let Copies { branches, follow, error, unheard, .. } = *self;
        Copies { found, current: None, branches, follow, error, unheard }
    }

    /// Returns false for a copy that is known to be out of date.
    pub(crate) fn is_current(&self, index: usize) -> bool {
        self.current.as_ref().is_none_or(|current| current.contains(&index))
    }

    /// Returns the copy on one branch.
    pub(crate) fn get(&self, index: usize) -> Option<&Attr> {
        self.found.iter().find(|(at, _)| *at == index).map(|(_, attr)| attr)
    }

    /// Returns the copies with the indices of their branches.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Attr)> {
        self.found.iter().map(|(index, attr)| (*index, attr))
    }

    /// Returns for each branch its copy, if any.
    pub(crate) fn each(&self) -> impl Iterator<Item = Option<&Attr>> {
        let mut found = self.found.iter().peekable();
        (0..self.branches).map(move |index| found.next_if(|(at, _)| *at == index).map(|(_, attr)| attr))
    }

    pub(crate) fn count(&self) -> usize {
        self.found.len()
    }

    /// Returns the first branch with a copy.
    pub(crate) fn first(&self) -> Option<usize> {
        self.found.first().map(|(index, _)| *index)
    }

    pub(crate) fn any(&self) -> bool {
        !self.found.is_empty()
    }

    pub(crate) fn any_dir(&self) -> bool {
        self.found.iter().any(|(_, attr)| attr.is_dir())
    }

    /// Returns the error for a name without a copy: `Absent` only if every branch could answer.
    pub(crate) fn missing(&self) -> Error {
        self.error.or(self.unheard).map_or(Error::Absent, Error::Branch)
    }

    /// Fails unless every branch could answer and none holds the path.
    pub(crate) fn must_be_absent(&self) -> Result<()> {
        match self.error {
            _ if self.any() => Err(Error::Exists),
            Some(errno) => Err(Error::Branch(errno)),
            None => Ok(()),
        }
    }

    /// Merges the attributes of all copies of a directory. Entries come and go on one branch at a time, so the times
    /// are the latest of all. The link count is that of the merged directory: 2 and the number of subdirectories.
    /// Where several branches hold subdirectories, some may be the same; then it is 1, which programs take to mean
    /// "not counted" (as on btrfs and overlayfs).
    pub(crate) fn merge_dir(&self, base: Attr) -> Attr {
        let mut merged = base;
        let (mut holders, mut below, mut uncounted) = (0, 0, false);
        for (_, attr) in self.iter().filter(|(_, attr)| attr.is_dir()) {
            merged.atime = merged.atime.max(attr.atime);
            merged.mtime = merged.mtime.max(attr.mtime);
            merged.ctime = merged.ctime.max(attr.ctime);
            uncounted |= attr.nlink < 2;
            if attr.nlink > 2 {
                holders += 1;
                below += attr.nlink - 2;
            }
        }
        merged.nlink = if uncounted || holders > 1 { 1 } else { 2 + below };
        merged
    }
}
