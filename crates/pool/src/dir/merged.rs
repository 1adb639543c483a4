//! A directory of the pool on all branches, and the copies of its names.

use super::symlinks::Symlinks;
use crate::branch::Branches;
use crate::branch::health::OpKind;
use crate::error::{Error, Result};
use crate::fs::beneath::{self, Dir};
use crate::fs::stat::{self, Attr};
use crate::node::Node;
use crate::node::dir_state::{BranchDirs, CacheVersion};
use crate::node::name_index::NameIndex;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::Arc;

/// The cache version that an operation may trust, if it may trust the cache.
pub(crate) type CacheTrust = Option<CacheVersion>;

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
}

impl<'b> MergedDir<'b> {
    pub(crate) fn open(follow: Symlinks, branches: &'b Branches, path: &[u8]) -> Self {
        let (mut error, mut by_link) = (None, false);
        let list = branches
            .iter()
            .map(|branch| match follow.dir(branch.root.as_fd(), path) {
                Ok((dir, through)) => {
                    by_link |= through;
                    Some(dir.into())
                }
                Err(errno) => {
                    if !beneath::is_absent(errno) {
                        error.get_or_insert(branch.record_error(errno, OpKind::Read));
                    }
                    None
                }
            })
            .collect();
        MergedDir {
            branches,
            opened: Arc::new(BranchDirs { list, error }),
            follow,
            by_link,
            node: None,
            names: None,
        }
    }

    /// Returns the reason that no branch holds the directory.
    pub(crate) fn missing(&self) -> Error {
        self.opened.error.or(self.branches.timeout_error()).map_or(Error::Absent, Error::Branch)
    }

    pub(crate) fn get(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.opened.get(self.branches, index)
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
        Copies {
            found: SmallVec::new(),
            branches,
            follow: self.follow,
            error,
            unheard: self.branches.timeout_error(),
        }
    }

    /// Looks at the directory itself on each branch.
    pub(crate) fn own(&self) -> Copies {
        let mut copies = self.empty_copies();
        for (index, dir) in self.each() {
            self.put_copy(&mut copies, index, stat::of(dir));
        }
        copies
    }

    fn put_copy(&self, copies: &mut Copies, index: usize, answer: Result<Attr, Errno>) {
        match answer {
            Ok(attr) => copies.found.push((index, attr)),
            Err(errno) if !beneath::is_absent(errno) => {
                copies.error.get_or_insert(self.branches[index].record_error(errno, OpKind::Read));
            }
            Err(_) => {}
        }
    }

    /// Removes a name from a branch.
    pub(crate) fn unlink(&self, index: usize, name: &[u8], flags: AtFlags) -> Result<(), Errno> {
        let dir = self.get(index).ok_or(Errno::NOENT)?;
        rustix::fs::unlinkat(dir, name, flags)
            .map_err(|errno| self.branches[index].record_error(errno, OpKind::Change))
    }

    /// Looks up a name on each branch.
    pub(crate) fn copies(&self, name: &[u8]) -> Copies {
        self.ask(name, false)
    }

    /// As `copies`, but stops at the first branch that holds the name, unless that holds a directory, for which all
    /// copies count.
    pub(crate) fn first_copy(&self, name: &[u8]) -> Copies {
        self.ask(name, true)
    }

    fn ask(&self, name: &[u8], first: bool) -> Copies {
        let mut copies = self.empty_copies();
        let known = self.names.as_ref().and_then(|names| names.holders(name));
        let mut misses = 0;
        for (index, dir) in self.each() {
            if known.is_some_and(|holders| !holders.has(index)) {
                continue;
            }
            let answer = self.follow.at(dir, name);
            if matches!(answer, Err(errno) if beneath::is_absent(errno)) {
                misses += 1;
                if let (Some(names), Some(holders)) = (&self.names, known) {
                    names.remove_holder(name, index, holders);
                }
            }
            let found = matches!(&answer, Ok(attr) if !attr.is_dir());
            self.put_copy(&mut copies, index, answer);
            if first && found {
                break;
            }
        }
        if let (Some(names), None) = (&self.names, known)
            && misses > 0
            && names.count_misses(misses)
        {
            names.build_from(self.each());
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
    pub(crate) branches: usize,
    /// How symlinks were treated in the lookup.
    pub(crate) follow: Symlinks,
    pub(crate) error: Option<Errno>,
    /// Set if branches were not asked because they do not answer.
    pub(crate) unheard: Option<Errno>,
}

impl Copies {
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
