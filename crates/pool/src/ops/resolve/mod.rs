//! From names to branches: which branches hold a path, and which of them a policy chooses.

pub mod acl;
pub(crate) mod choose;
pub(crate) mod dir_number;
pub(crate) mod dirs;
pub mod generations;
pub(crate) mod inode_seed;
pub(crate) mod locks;
pub(crate) mod opened_copies;
pub(crate) mod places;
pub(crate) mod writable;

use crate::config::Func;
use crate::dir::symlinks::Symlinks;
use crate::node::{Node, Orphan};
use crate::ops::resolve;
use crate::pool::Op;
use acl::At;
use canopy_base::error::{Error, Refusal, Result};
use canopy_base::path::{PoolPath, join};
use canopy_branch::branch::{Branch, Branches};
use canopy_branch::fs::beneath;
use canopy_branch::fs::stat::{self, Attr, FileKey};
use canopy_policy::{self as policy, Category};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One copy of a node: a file, or a directory on one branch.
pub(crate) struct Place {
    /// The index of the branch. `None` for a file that is open, or has no name.
    pub(crate) index: Option<usize>,
    pub(crate) branch: Arc<Branch>,
    pub(crate) fd: PlaceFd,
    /// As they were when it was found.
    pub(crate) attr: Attr,
}

impl Place {
    /// Returns the attributes that it has now.
    pub(crate) fn stat(&self) -> Result<Attr, Errno> {
        self.branch.reads(|| stat::of(self.fd.as_fd()))
    }
}

pub(crate) enum PlaceFd {
    Pinned(OwnedFd),
    Shared(Arc<OwnedFd>),
    Orphan(Arc<Orphan>),
    Root(Arc<Branch>),
}

impl PlaceFd {
    /// Returns the descriptor, which other threads may then share.
    pub(crate) fn into_shared(self) -> Result<Arc<OwnedFd>, Errno> {
        Ok(match self {
            PlaceFd::Pinned(fd) => Arc::new(fd),
            PlaceFd::Shared(fd) => fd,
            PlaceFd::Orphan(orphan) => Arc::new(rustix::io::fcntl_dupfd_cloexec(&orphan.fd, 0)?),
            PlaceFd::Root(branch) => Arc::new(rustix::io::fcntl_dupfd_cloexec(&branch.root, 0)?),
        })
    }
}

impl AsFd for PlaceFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            PlaceFd::Pinned(fd) => fd.as_fd(),
            PlaceFd::Shared(fd) => fd.as_fd(),
            PlaceFd::Orphan(orphan) => orphan.fd.as_fd(),
            PlaceFd::Root(branch) => branch.root(),
        }
    }
}

/// Removes names that no longer lead to a file from the table, if the file has far more names there than links.
/// Such names were removed on the branch, which the pool does not notice while the file has another name.
pub(crate) fn tidy_names(op: &Op<'_>, node: &Node, links: u32) {
    if !node.has_doubtful_names.load(Ordering::Relaxed)
        || !node.has_doubtful_names.swap(false, Ordering::Relaxed)
    {
        return;
    }
    let names = op.nodes.known(node.id);
    // If one branch lies inside another, each link may have two names in the pool.
    let (Some(key), true) = (node.key(), names.len() > 2 * links as usize) else { return };
    for (parent, name) in names {
        let dir = op.nodes.dir_path(parent);
        let found = dir.map(|dir| find_file(resolve::dirs::follow(op), &op.branches, &dir, &name, key));
        if matches!(found, Ok(Ok(None)) | Err(_)) {
            op.nodes.name_removed(parent, &name);
        }
    }
}

/// Calls `act` with the index and the branch, the cached directory of a node's file there, its newest name and its
/// key, and returns the first result. Returns `None` if nothing is cached. The name may lead to another file by now,
/// so `act` must compare keys.
pub(crate) fn via_cached_parent<R>(
    op: &Op<'_>,
    node: &Node,
    mut act: impl FnMut(usize, &Arc<Branch>, BorrowedFd<'_>, &[u8], FileKey) -> Option<R>,
) -> Option<R> {
    let key = node.key()?;
    let (dir, name) = op.nodes.newest_name(node.id)?;
    // Identifies the directory that is now at the node's current path.
    let current_dir = |branch: &Branch| {
        let path = op.nodes.dir_path(dir.id).ok()?;
        let (opened, _) = resolve::dirs::follow(op).dir(branch.root.as_fd(), &path).ok()?;
        let attr = stat::of(opened.as_fd()).ok()?;
        Some((attr.dev, attr.ino))
    };
    let cached = op.dir_cache.unverified(&dir, &op.branches)?;
    let holders = cached.names.holders(&name);
    let may_hold = |index: usize| holders.is_none_or(|holders| holders.has(index));
    op.branches
        .iter()
        .enumerate()
        .filter(|(index, branch)| may_hold(*index) && branch.dev == key.dev)
        .find_map(|(index, branch)| {
            let opened = cached.opened.get(&op.branches, index)?;
            branch.tries(|| {
                let stays = op.dir_cache.in_place(&cached, index, || current_dir(branch));
                stays.then(|| act(index, branch, opened, &name, key))?
            })
        })
}

/// Returns true if a search function always acts on the node's own file.
pub(crate) fn acts_on_own_file(op: &Op<'_>, func: Func) -> bool {
    let (own, shown) = (op.config.policies.get(func), op.config.policies.get(Func::Getattr));
    op.branches.len() == 1 || own == shown && policy::first_only(own, Category::Search)
}

/// Returns true if of several files with one name, the first in the order of the branches is shown.
pub(crate) fn acts_on_first(op: &Op<'_>) -> bool {
    policy::first_only(op.config.policies.get(Func::Getattr), Category::Search)
        && !resolve::generations::knows_copies(op)
}

/// Returns attributes as the pool shows them. Uses the path only if `needs_path` returns true. The kernel judges by them who may
/// remove a directory, so the node records its owner.
pub(crate) fn show(
    op: &Op<'_>,
    node: &Node,
    branch: &Branch,
    path: &[u8],
    mut attr: Attr,
    at: At<'_>,
) -> Attr {
    resolve::acl::mask_mode(op, branch, &mut attr, at);
    node.tell_owner(attr.uid);
    if !op.config.trash.is_empty() && is_in_trash(op, node) {
        attr.nlink = attr.nlink.saturating_sub(1);
    }
    attr.ino = match node.identity() {
        crate::node::Identity::Directory { .. } => resolve::dir_number::number_of(op, node),
        crate::node::Identity::File(_) => match node.kept_number() {
            0 => {
                let seed = resolve::inode_seed::seed(op, branch, attr.dev, || {
                    resolve::inode_seed::some_fd(op, node, branch)
                });
                op.config.inode.inode_seeded(seed, path, attr.ino, false)
            }
            known => op.config.inode.fit(known),
        },
    };
    if node.is_symlinkified() {
        attr.show_as_symlink(on_branch(branch, path).len());
    }
    attr
}

/// Returns whether the last name of a file has gone to the trash, so that for clients it has none.
fn is_in_trash(op: &Op<'_>, node: &Node) -> bool {
    crate::ops::trash::recognize(op, node);
    node.orphan().is_some_and(|orphan| orphan.kept) && op.nodes.names(node.id).next().is_none()
}

/// Returns true if the attributes that the pool shows for a file depend on its path.
pub(crate) fn needs_path(op: &Op<'_>, node: &Node) -> bool {
    node.is_symlinkified() || op.config.inode.uses_path(false)
}

/// Returns the attributes of a file as the pool shows them. Looks up its path only if they depend on it.
pub(crate) fn show_file(op: &Op<'_>, node: &Node, branch: &Branch, attr: Attr, at: At<'_>) -> Attr {
    if needs_path(op, node) {
        let path = a_path(op, node).unwrap_or_default();
        return show(op, node, branch, &path, attr, at);
    }
    show(op, node, branch, b"", attr, at)
}

/// Returns one of the paths of a file.
pub(crate) fn a_path(op: &Op<'_>, node: &Node) -> Option<PoolPath> {
    op.nodes.names(node.id).next().map(|(dir, name)| join(&dir, &name))
}

/// Returns whether a file keeps its inode number when it moves. Numbers derived from the path need no keeping.
pub(crate) fn keeps_inode_numbers(op: &Op<'_>) -> bool {
    !op.config.inode.uses_path(false)
}

/// Searches the branches for the file with this key under a name. Returns the error of a branch that cannot answer
/// only if no other holds the file.
pub(crate) fn find_file(
    follow: Symlinks,
    branches: &Branches,
    dir: &[u8],
    name: &[u8],
    key: FileKey,
) -> Result<Option<Place>, Errno> {
    let mut failed = branches.timeout_error();
    // Only below a mount or in a subvolume does a file have another device than its branch.
    let likely = |branch: &Branch| branch.dev == key.dev;
    let (first, others) = (branches.iter().enumerate(), branches.iter().enumerate());
    let first = first.filter(|(_, branch)| likely(branch));
    for (index, branch) in first.chain(others.filter(|(_, branch)| !likely(branch))) {
        let pinned = branch.reads(|| {
            let fd = follow.dir(branch.root.as_fd(), dir).and_then(|(dir, _)| follow.pin(dir, name))?;
            Ok((stat::of(fd.as_fd())?, fd))
        });
        match pinned {
            Ok((attr, fd)) if attr.key() == key => {
                let (branch, fd) = (branch.clone(), PlaceFd::Pinned(fd));
                return Ok(Some(Place { index: Some(index), branch, fd, attr }));
            }
            Ok(_) => {}
            Err(errno) if beneath::is_absent(errno) => {}
            Err(errno) => failed = Some(errno),
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
