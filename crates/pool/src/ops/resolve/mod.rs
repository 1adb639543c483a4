//! From names to branches: which branches hold a path, and which of them a policy chooses.

pub(crate) mod acl;
mod choose;
mod dirs;
mod inode_seed;
mod locks;

use crate::branch::health::OpKind;
use crate::branch::{Branch, Branches};
use crate::config::Func;
use crate::dir::merged::MergedDir;
use crate::dir::symlinks::Symlinks;
use crate::error::{Error, Refusal, Result};
use crate::export;
use crate::fs::beneath;
use crate::fs::stat::{self, Attr, FileKey};
use crate::node::Node;
use crate::policy::{self, Category};
use crate::pool::Pool;
use acl::At;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One copy, on one branch, that an operation acts on.
pub(crate) struct Target {
    /// The index of the branch. `None` for a file without a name.
    pub(crate) index: Option<usize>,
    pub(crate) fd: TargetFd,
}

pub(crate) enum TargetFd {
    Pinned(OwnedFd),
    Shared(Arc<OwnedFd>),
}

impl TargetFd {
    pub(crate) fn into_shared(self) -> Arc<OwnedFd> {
        match self {
            TargetFd::Pinned(fd) => Arc::new(fd),
            TargetFd::Shared(fd) => fd,
        }
    }

    pub(crate) fn share(&self) -> Result<TargetFd, Errno> {
        Ok(match self {
            TargetFd::Pinned(fd) => TargetFd::Pinned(rustix::io::fcntl_dupfd_cloexec(fd, 0)?),
            TargetFd::Shared(fd) => TargetFd::Shared(fd.clone()),
        })
    }
}

impl AsFd for TargetFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            TargetFd::Pinned(fd) => fd.as_fd(),
            TargetFd::Shared(fd) => fd.as_fd(),
        }
    }
}

/// The copy of a file that its node stands for.
pub(crate) struct Primary {
    pub(crate) branch: Arc<Branch>,
    pub(crate) fd: TargetFd,
    pub(crate) attr: Attr,
}

impl Pool {
    /// Removes names that no longer lead to a file from the table, if the file has far more names there than links.
    /// Such names were removed on the branch, which the pool does not notice while the file has another name.
    pub(crate) fn tidy_names(&self, branches: &Branches, node: &Node, links: u32) {
        if !node.has_doubtful_names.load(Ordering::Relaxed)
            || !node.has_doubtful_names.swap(false, Ordering::Relaxed)
        {
            return;
        }
        let names = self.nodes.known(node.id);
        // If one branch lies inside another, each link may have two names in the pool.
        let (Some(key), true) = (node.key(), names.len() > 2 * links as usize) else { return };
        for (parent, name) in names {
            let dir = self.nodes.dir_path(parent);
            let found = dir.map(|dir| find_file(self.follow(), branches, &dir, &name, key));
            if matches!(found, Ok(Ok(None)) | Err(_)) {
                self.nodes.name_removed(parent, &name);
            }
        }
    }

    /// Returns the copy that a file's node stands for. Uses the open file; else a name that still leads to it; else the
    /// descriptor that was pinned when the last name was removed; else, if no name is known, its inode number.
    ///
    /// Errors: `ESTALE` if it is not found, on which the kernel looks up the name again.
    pub(crate) fn primary(&self, branches: &Branches, node: &Arc<Node>) -> Result<Primary> {
        if let Some(open) = node.opened() {
            let place = open.location();
            let attr =
                stat::of(place.fd.as_fd()).map_err(|errno| place.branch.record_error(errno, OpKind::Read))?;
            return Ok(Primary {
                branch: place.branch.clone(),
                fd: TargetFd::Shared(place.fd.clone()),
                attr,
            });
        }
        let key = node.key().ok_or(Error::IsDirectory)?;
        // A rename moves the file before it updates the table. A request in between retries.
        let mut failed = None;
        for attempt in 0..4 {
            for (dir, name) in self.nodes.names(node.id) {
                match find_file(self.follow(), branches, &dir, &name, key) {
                    Ok(Some(found)) => return Ok(found),
                    Ok(None) => {}
                    Err(errno) => failed = Some(errno),
                }
            }
            let orphan = node.orphan.lock().clone();
            if let Some(orphan) = orphan {
                let fd = rustix::io::fcntl_dupfd_cloexec(&orphan.fd, 0)?;
                let attr =
                    stat::of(fd.as_fd()).map_err(|errno| orphan.branch.record_error(errno, OpKind::Read))?;
                return Ok(Primary { branch: orphan.branch.clone(), fd: TargetFd::Pinned(fd), attr });
            }
            if attempt > 0 {
                std::thread::yield_now();
            }
        }
        if self.nodes.names(node.id).next().is_none()
            && let Some((branch, fd, attr)) = export::reopen(branches, key)
        {
            return Ok(Primary { branch, fd: TargetFd::Pinned(fd), attr });
        }
        Err(failed.map_or(Error::Stale, Error::Branch))
    }

    /// Calls `act` with a branch, the cached directory of a node's file there, its newest name and its key, and returns
    /// the first result. Returns `None` if nothing is cached. The name may lead to another file by now, so `act` must
    /// compare keys.
    pub(crate) fn hinted<R>(
        &self,
        branches: &Branches,
        node: &Node,
        act: impl Fn(&Arc<Branch>, BorrowedFd<'_>, &[u8], FileKey) -> Option<R>,
    ) -> Option<R> {
        let key = node.key()?;
        let (dir, name) = self.nodes.newest_name(node.id)?;
        // Identifies the directory that is now at the node's current path.
        let current_dir = |branch: &Branch| {
            let path = self.nodes.dir_path(dir.id).ok()?;
            let (opened, _) = self.follow().dir(branch.root.as_fd(), &path).ok()?;
            let attr = stat::of(opened.as_fd()).ok()?;
            Some((attr.dev, attr.ino))
        };
        let own = branches.iter().enumerate().filter(|(_, branch)| branch.dev == key.dev);
        let mut found = own.filter_map(|(index, branch)| {
            let known = self.dir_cache.unverified(&dir, branches, index, || current_dir(branch))?;
            act(branch, known.opened.get(branches, index)?, &name, key)
        });
        found.next()
    }

    /// Returns true if a search function always acts on the node's own file.
    pub(crate) fn acts_on_own_file(&self, func: Func, branches: &Branches) -> bool {
        let (own, shown) = (self.config().policies.get(func), self.config().policies.get(Func::Getattr));
        branches.len() == 1 || own == shown && policy::first_only(own, Category::Search)
    }

    /// Returns the copy of a file that a search function acts on: the node's own file, unless the function's policy
    /// chooses another copy of the name that `fits`.
    pub(crate) fn chosen(
        &self,
        func: Func,
        branches: &Branches,
        node: &Arc<Node>,
        fits: impl Fn(&Attr) -> bool,
    ) -> Result<Primary> {
        let primary = self.primary(branches, node)?;
        if self.acts_on_own_file(func, branches) {
            return Ok(primary);
        }
        let Some((dir, name)) = self.nodes.names(node.id).next() else { return Ok(primary) };
        let dirs = MergedDir::open(self.follow(), branches, &dir);
        let copies = dirs.copies(&name);
        let Ok(index) = self.shown(func, branches, &copies) else { return Ok(primary) };
        let Some(attr) = copies.get(index).copied().filter(|a| fits(a) && a.key() != primary.attr.key())
        else {
            return Ok(primary);
        };
        let fd = dirs.follow.pin(dirs.get(index).ok_or(Error::Absent)?, &name)?;
        Ok(Primary { branch: branches.as_slice()[index].clone(), fd: TargetFd::Pinned(fd), attr })
    }

    /// Returns attributes as the pool shows them. Uses the path only if [`Pool::needs_path`] returns true.
    pub(crate) fn show(&self, node: &Node, branch: &Branch, path: &[u8], mut attr: Attr, at: At<'_>) -> Attr {
        self.mask_mode(branch, &mut attr, at);
        attr.ino = match node.identity() {
            crate::node::Identity::Directory { ino } => ino,
            crate::node::Identity::File(_) => match node.number.load(Ordering::Relaxed) {
                0 => {
                    let seed = self.seed(branch, attr.dev, || self.some_fd(node, branch));
                    self.config().inode.inode_seeded(seed, path, attr.ino, false)
                }
                known => known,
            },
        };
        if node.symlinkified {
            attr.show_as_symlink(on_branch(branch, path).len());
        }
        attr
    }

    /// Returns true if the attributes that the pool shows for a file depend on its path.
    pub(crate) fn needs_path(&self, node: &Node) -> bool {
        node.symlinkified || self.config().inode.uses_path(false)
    }
}

/// Searches the branches for the file with this key under a name. Returns the error of a branch that cannot answer
/// only if no other holds the file.
pub(crate) fn find_file(
    follow: Symlinks,
    branches: &Branches,
    dir: &[u8],
    name: &[u8],
    key: FileKey,
) -> Result<Option<Primary>, Errno> {
    let mut failed = branches.timeout_error();
    for branch in branches.iter() {
        let pinned = follow.dir(branch.root.as_fd(), dir).and_then(|(dir, _)| follow.pin(dir, name));
        match pinned.and_then(|fd| Ok((stat::of(fd.as_fd())?, fd))) {
            Ok((attr, fd)) if attr.key() == key => {
                return Ok(Some(Primary { branch: branch.clone(), fd: TargetFd::Pinned(fd), attr }));
            }
            Ok(_) => {}
            Err(errno) if beneath::is_absent(errno) => {}
            Err(errno) => failed = Some(branch.record_error(errno, OpKind::Read)),
        }
    }
    failed.map_or(Ok(None), Err)
}

/// Returns the absolute path, on a branch, of a path of the pool.
pub(crate) fn on_branch(branch: &Branch, path: &[u8]) -> Vec<u8> {
    [branch.path.as_os_str().as_bytes(), b"/", path].concat()
}

/// Returns true if the error only means that no branch holds the name.
pub(crate) fn is_absent(error: Error) -> bool {
    matches!(error, Error::Absent | Error::Refused(Refusal::NotFound))
}
