//! The directory that a request names, on all branches.

use crate::coherence::catalogue::Found;
use crate::config::FollowSymlinks;
use crate::dir::merged::{MergedDir, Trust};
use crate::dir::symlinks::{Symlinkify, Symlinks, device};
use crate::node::Node;
use crate::node::dir_state::CachedDir;
use crate::node::name_index::Holders;
use crate::ops::external_changes;
use crate::paths::Uses;
use crate::pool::Op;
use canopy_base::error::Result;
use canopy_base::ids::{BranchId, NodeId};
use canopy_base::lock::rank;
use canopy_base::lock::ranked::assert_may_take;
use canopy_base::path::{FileName, PoolPath, split};
use canopy_branch::branch::Branches;
use rustix::fd::BorrowedFd;
use smallvec::SmallVec;
use std::sync::Arc;

/// Where the copies of a directory are, as far as the cache tells: it is cached itself, or its parent is.
pub(crate) struct KnownCopies {
    cached: Arc<CachedDir>,
    /// Its name in the cached directory, with the branches that may hold that; `None` if it is the cached one.
    below: Option<(FileName, Option<Holders>)>,
}

impl KnownCopies {
    /// Returns where to open the copy on a branch: a directory, and the path in it. `None` if there is no copy.
    pub(crate) fn at<'a>(
        &'a self,
        branches: &'a Branches,
        index: usize,
    ) -> Option<(BorrowedFd<'a>, &'a [u8])> {
        let dir = self.cached.opened.get(branches, index)?;
        match &self.below {
            None => Some((dir, b"")),
            Some((name, holders)) => holders.is_none_or(|holders| holders.has(index)).then_some((dir, name)),
        }
    }

    /// Returns whether no branch that does not answer has it.
    pub(crate) fn is_whole(&self) -> bool {
        self.cached.opened.is_whole()
    }
}

/// Returns the cache version that an operation may trust, if any. Must be called before the operation takes a lock.
pub(crate) fn cache_trust(op: &Op<'_>) -> Trust {
    assert_may_take::<rank::FileMove>();
    op.kernel.load().caught_up().then(|| op.dir_cache.version())
}

/// Caches the directory in which files had to be searched for, if there is one. Must be called before the operation
/// takes a lock.
pub(crate) fn cache_wanted_dir(op: &mut Op<'_>) {
    let Some(dir) = op.dir_cache.take_wanted() else { return };
    let trust = cache_trust(op);
    let _held = op.using(Uses::node(dir));
    if trust.is_some() {
        drop(dirs(op, dir, trust));
    }
}

/// Returns the path of a directory, and the directory opened on every branch.
pub(crate) fn dirs<'b>(op: &'b Op<'_>, id: NodeId, trust: Trust) -> Result<(PoolPath, MergedDir<'b>)> {
    let (node, path) = op.nodes.dir(id)?;
    let dirs = dirs_of(op, node, &path, trust);
    Ok((path, dirs))
}

/// Returns a directory opened on every branch, from the cache if that can be trusted.
pub(crate) fn dirs_of<'b>(op: &'b Op<'_>, node: Arc<Node>, path: &[u8], trust: Trust) -> MergedDir<'b> {
    if trust.is_some()
        && let Some(cached) = op.dir_cache.get(&node, &op.branches)
    {
        return MergedDir::cached(&op.branches, node, &cached);
    }
    let begun = op.changes.ticket();
    let below = trust.and_then(|_| open_in_parent(op, &node));
    let mut dirs = below.unwrap_or_else(|| match holders(op, path, trust) {
        Some(holders) => {
            MergedDir::open_on(follow(op), &op.branches, path, |branch| holders.contains(&branch.id))
        }
        None => MergedDir::open(follow(op), &op.branches, path),
    });
    if let Some(stamp) = trust
        && dirs.follow.is_plain()
        && dirs.opened.error.is_none()
    {
        if op.branches.timeout_error().is_some()
            && let Some(parent) = cached_parent(op, &node)
        {
            dirs.set_below(&parent.opened);
        }
        dirs.names = op.dir_cache.insert(&node, &op.branches, &dirs.opened, (stamp, begun));
    }
    dirs.node = Some(node);
    dirs
}

/// Returns whether an operation, which has taken its place in the tree, may rely on the catalogue. If it has waited for a
/// directory that moved, the events of that may not have been processed.
pub(crate) fn may_ask_catalogue(op: &Op<'_>, trust: Trust) -> bool {
    trust.is_some()
        && op.catalogue.is_on()
        && op.branches.timeout_error().is_none()
        && op.resting == Some(op.paths.moves())
}

/// Returns the branches that hold a directory, if they are known. The others need not be asked, whose disks may sleep.
fn holders(op: &Op<'_>, path: &[u8], trust: Trust) -> Option<SmallVec<[BranchId; 4]>> {
    if path.is_empty() || op.branches.len() == 1 || !may_ask_catalogue(op, trust) {
        return None;
    }
    let (dir, name) = split(path);
    match op.catalogue.find(dir, name) {
        Found::There(facts) if facts.attr.is_dir() => {
            Some(facts.copies.iter().map(|copy| copy.branch).collect())
        }
        _ => None,
    }
}

/// Returns the cached directory that holds another one. The caller may trust the cache.
fn cached_parent(op: &Op<'_>, node: &Node) -> Option<Arc<CachedDir>> {
    let (parent, _) = op.nodes.newest_name(node.id)?;
    op.dir_cache.get(&parent, &op.branches)
}

/// Returns what the cache tells of a directory's copies, without caching it. The caller may trust the cache.
pub(crate) fn known_copies(op: &Op<'_>, node: &Node) -> Option<KnownCopies> {
    if let Some(cached) = op.dir_cache.get(node, &op.branches) {
        return Some(KnownCopies { cached, below: None });
    }
    let (parent, name) = op.nodes.newest_name(node.id)?;
    let cached = op.dir_cache.get(&parent, &op.branches)?;
    let holders = cached.names.holders(&name);
    Some(KnownCopies { cached, below: Some((name, holders)) })
}

/// Opens a directory in its cached parent directory, on the branches that hold it, if these are known. The caller may
/// trust the cache.
fn open_in_parent<'b>(op: &'b Op<'_>, node: &Node) -> Option<MergedDir<'b>> {
    let (parent, name) = op.nodes.newest_name(node.id)?;
    let parent = op.dir_cache.get(&parent, &op.branches)?;
    MergedDir::open_in(&parent, &op.branches, &name)
}

/// Records that a name was created on a branch, as [`MergedDir::name_created`] does, for a caller that has only the
/// directory's path.
pub(crate) fn name_created(op: &Op<'_>, dir: &[u8], name: &[u8], branch: BranchId) {
    if let Some(node) = external_changes::known(op).dir(dir).and_then(|id| op.nodes.get(id).ok()) {
        node.name_created(name, branch);
    }
}

/// Records that the pool has made and removed files in a directory by its path on some branch, and a note of that in
/// the branch's root.
pub(crate) fn dir_rewritten(op: &Op<'_>, path: &[u8]) {
    let dirs = [external_changes::known(op).dir(path), Some(NodeId::ROOT)];
    for dir in dirs.into_iter().flatten().filter_map(|id| op.nodes.get(id).ok()) {
        dir.copies_changed();
    }
}

/// Returns how the options say symlinks are treated.
pub(crate) fn follow(op: &Op<'_>) -> Symlinks {
    let config = &op.config;
    let mode = config.follow_symlinks;
    let pool = if mode == FollowSymlinks::Never || config.mountpoint.as_os_str().is_empty() {
        None
    } else {
        device(rustix::fs::CWD, config.mountpoint.as_path()).ok()
    };
    let symlinkify =
        if config.symlinkify { Symlinkify::After(config.symlinkify_timeout) } else { Symlinkify::None };
    Symlinks { mode, symlinkify, pool }
}
