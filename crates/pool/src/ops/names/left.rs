//! Directories that the kernel knows from the process before, by their place in the tree.
//!
//! An id leads to the oldest copy of a directory. Once that is gone, or there is an older one, the place that the process before
//! has recorded tells which directory it is.

use crate::export::StableId;
use crate::pool::State;
use canopy_base::ids::NodeId;
use canopy_branch::branch::Branch;
use canopy_branch::fs::stat::Attr;

/// Returns the id by which the kernel knows the directory under a name from the process before, if it has no node here yet.
pub(crate) fn at<'a>(
    pool: &State,
    (parent, name): (NodeId, &[u8]),
    copies: impl Iterator<Item = (&'a Branch, &'a Attr)>,
) -> Option<StableId> {
    let left = pool.nodes.left_at(parent, name)?;
    let mut other = false;
    for copy in copies.filter_map(|(branch, attr)| StableId::of(branch, attr.key())) {
        if copy.id == left.id {
            return Some(left);
        }
        other |= pool.nodes.is_known(copy.id);
    }
    // The process before has renamed a directory, and could not record it.
    (!other).then_some(left)
}
