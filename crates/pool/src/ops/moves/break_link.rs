//! Replacing one of several hard links by a file of its own.

use crate::node::Node;
use crate::ops::resolve;
use crate::paths::Uses;
use crate::pool::Op;
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_base::path::{join, split};
use canopy_branch::fs::stat;
use canopy_branch::relocate::file::can_leave;
use canopy_branch::relocate::journal::{JournalEntry, Original, Plan};
use canopy_branch::relocate::lease::{LeasedFile, readable};
use canopy_branch::relocate::links::holds;
use canopy_branch::relocate::replica::Replica;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::sync::Arc;

/// Replaces one of a node's names by a copy of its file. The other names keep the file.
///
/// If another name is known, the node stays with it, the method returns false, and the kernel has to look the name
/// up again. Otherwise the node now belongs to the copy, and the method returns true. The caller holds no lock.
///
/// Errors: [`Error::Wait`] while the file moves. `EBUSY` when the file is open, or open for writing on the branch: that writer would go on writing the
/// file of the other names. `EAGAIN` when the file or its name has changed meanwhile.
pub(crate) fn replace_link_by_copy(
    op: &mut Op<'_>,
    node: &Arc<Node>,
    parent: NodeId,
    name: &[u8],
) -> Result<bool> {
    let replaced = put_copy_over_link(op, node, parent, name);
    if let Ok(dir) = op.nodes.dir_path(parent) {
        resolve::dirs::dir_rewritten(op, &dir);
    }
    replaced
}

fn put_copy_over_link(op: &mut Op<'_>, node: &Arc<Node>, parent: NodeId, name: &[u8]) -> Result<bool> {
    let _alone = node.take()?;
    let (branch, path, file) = {
        let _held = op.using(Uses::node(node.id).and(Uses::name(parent, name)));
        let primary = resolve::places::primary(op, node)?;
        let path = join(&op.nodes.dir_path(parent)?, name);
        (primary.branch, path, LeasedFile::hold_if_possible(readable(&primary.fd)?)?)
    };
    let before = branch.reads(|| stat::of(file.as_fd()))?;
    if !can_leave(&before) {
        return Err(Error::NotPermitted);
    }
    let (dir, _) = split(&path);
    let plan = Plan { source: Vec::new(), original: Original::Goes, names: vec![path.clone()] };
    let _copying = op.state().stuck_operations.moving();
    let mut copy = branch.changes(|| {
        let copy = Replica::begin(branch.root(), dir, true, JournalEntry::write(branch.root(), &plan)?)?;
        copy.fill(&file, &before, &|| !op.kernel.load().caller_is_killed())?;
        Ok::<_, Errno>(copy)
    })?;
    // From here on, no other request uses one of its names or opens it.
    let _held = op.claim_file(node.id, before.nlink as usize)?;
    let now = branch.reads(|| stat::of(file.as_fd()))?;
    let same = (now.size, now.mtime, now.ctime) == (before.size, before.mtime, before.ctime)
        && op.nodes.dir_path(parent).is_ok_and(|at| at.as_slice() == dir)
        && holds(branch.root(), &path, &now);
    if !same {
        return Err(Errno::AGAIN.into());
    }
    if node.opened().is_some() {
        return Err(Errno::BUSY.into());
    }
    op.dir_cache.idle_files.close(node);
    let key = copy.key()?;
    file.check()?;
    branch.changes(|| copy.replace(name))?;
    let alone = op.nodes.known(node.id).len() < 2;
    if alone {
        // The node takes the copy's inode number: the old one belongs to the other names.
        op.nodes.moved(node, key, 0)
    } else {
        op.nodes.name_removed(parent, name)
    }
    op.kernel.load().invalidate_attr(node.id);
    Ok(alone)
}
