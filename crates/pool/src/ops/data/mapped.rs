//! Files that programs may change without anybody telling the pool: through a mapping of the branch's own file.
//!
//! With passthrough, a shared mapping maps the file on the branch. Neither a store into it nor msync(2) becomes a
//! request, and fanotify reports neither. So the kernel may not cache attributes of such a file. A mapping outlives the
//! handles; once none is open for writing, a lease shows whether one is left.

use crate::node::Node;
use crate::ops::resolve;
use crate::pool::{Op, Pool};
use canopy_base::ids::NodeId;
use canopy_branch::relocate::lease::is_written_now;
use rustix::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Records that a handle allows such a mapping. `known_before`: the kernel may have attributes of the file.
pub(crate) fn may_be_mapped(op: &Op<'_>, node: &Node, known_before: bool) {
    op.maps_files.store(true, Ordering::Relaxed);
    // Before the notification: the kernel rejects answers from before it, and later ones are not cached.
    if !node.mapped.swap(true, Ordering::AcqRel) && known_before {
        op.kernel.load().invalidate_attr(node.id);
    }
}

/// Returns whether the attributes of a file may change without a request or an event.
pub fn changes_unseen(pool: &Pool, id: NodeId) -> bool {
    pool.maps_files.load(Ordering::Relaxed)
        && pool.nodes.get(id).is_ok_and(|node| node.mapped.load(Ordering::Relaxed))
}

/// Finds out whether a mapping is left. To be called before the attributes are read: what it can still change is seen
/// later, and what it has changed is in them. The caller uses the paths of the node.
pub(crate) fn look_for_mapping(op: &Op<'_>, node: &Arc<Node>) {
    if !node.mapped.load(Ordering::Relaxed) || has_writers(node) {
        return;
    }
    // Cleared first. Whoever opens the file meanwhile counts as a writer before setting it, so that either is seen here.
    node.mapped.swap(false, Ordering::AcqRel);
    if has_writers(node)
        || resolve::places::primary(op, node).map_or(true, |place| is_written_now(place.fd.as_fd()))
    {
        node.mapped.store(true, Ordering::Release);
    }
}

fn has_writers(node: &Node) -> bool {
    node.opened().is_some_and(|open| open.is_written())
}
