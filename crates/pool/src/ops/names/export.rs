//! Finding nodes that the kernel asks for by an id from a file handle after the pool has forgotten them.

use super::lookup::Entry;
use crate::dir::merged::Trust;
use crate::export::{self, FoundById, StableId, StableTarget};
use crate::ops::names;
use crate::ops::resolve;
use crate::paths::Uses;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_branch::fs::reserved::is_reserved;
use std::sync::Arc;

/// Finds the file or directory that once had this id, and hands the kernel a reference to its node.
///
/// Errors: `ESTALE` if it is gone, if it is now known as another node, or if the id is not a stable one; the error
/// of its branch if that could not answer; [`Error::Wait`] while it is being searched for.
pub(crate) fn find(pool: &Pool, id: NodeId) -> Result<Entry> {
    let wanted = StableTarget::of(id).ok_or(Error::Stale)?;
    let op = &mut Op::begin(pool);
    let trust = resolve::dirs::cache_trust(op);
    // A file in the trash has no path that the pool shows.
    let wants_path = op.config.inode.uses_path(false) || op.config.names_only || !op.config.trash.is_empty();
    let mut failed = op.branches.timeout_error();
    let branches = Arc::clone(&op.branches);
    for branch in branches.iter().filter(|branch| wanted.may_be_on(branch)) {
        // Searches without a lock, because this may take long. The path may be outdated afterwards, so
        // `enter_path` accepts only this node.
        match export::find(branch, wanted, wants_path, &op.inode_search) {
            Ok(None) => {}
            Ok(Some(FoundById { lasting, path: Some(path), .. })) => {
                return enter_path(op, &path, lasting, trust);
            }
            Ok(Some(FoundById { lasting, attr, path: None })) => {
                let node = op.nodes.hand_out_found(lasting, attr.key())?;
                let shown =
                    names::lookup::file_attr(op, &node).inspect_err(|_| names::lookup::take_back(op, id));
                return Ok(Entry::new(&node, shown?));
            }
            Err(Error::Branch(errno)) => failed = Some(errno),
            Err(other) => return Err(other),
        }
    }
    Err(failed.map_or(Error::Stale, Error::Branch))
}

/// Looks up a path, and returns the last entry if it is the wanted node.
///
/// Errors: `ESTALE` if the path leads to another node or nowhere.
fn enter_path(op: &mut Op<'_>, path: &[u8], wanted: StableId, trust: Trust) -> Result<Entry> {
    let mut above = Vec::new();
    let mut found = Err(Error::Stale);
    let mut parent = NodeId::ROOT;
    let mut parts = path.split(|&byte| byte == b'/').peekable();
    while let Some(name) = parts.next() {
        let last = parts.peek().is_none();
        found = step(op, parent, name, last.then_some(wanted), trust);
        match &found {
            Ok(entry) if !last => {
                parent = entry.node;
                above.push(parent);
            }
            _ => break,
        }
    }
    if let Ok(entry) = &found
        && entry.node != wanted.id
    {
        above.push(entry.node);
        found = Err(Error::Stale);
    }
    // The found node keeps its ancestors in the table.
    above.into_iter().for_each(|node| names::lookup::take_back(op, node));
    // It was moved meanwhile, or another file now hides it.
    found.map_err(|error| if error.errno() == rustix::io::Errno::NOENT { Error::Stale } else { error })
}

/// Looks up one part of a path. `dir` is the wanted stable id for the last part.
fn step(op: &mut Op<'_>, parent: NodeId, name: &[u8], dir: Option<StableId>, trust: Trust) -> Result<Entry> {
    if is_reserved(name) {
        return Err(Error::Stale);
    }
    // For this part alone: what is found in the end is compared with what is wanted.
    let _held = op.using(Uses::name(parent, name));
    let (path, dirs) = resolve::dirs::dirs(op, parent, trust)?;
    names::lookup::enter_as(op, parent, &path, &dirs, name, dir)
}
