//! What the pool shows of branches that are missing, and what it refuses to do there.
//!
//! What the other branches hold comes first. Only a name that none of them has is looked for among those that are remembered. It is
//! shown as it was; opening it fails with EIO, and changing it, removing it, or putting something in its place with EROFS. Where it
//! is not known whether a missing branch has a name, any use of it fails with EIO.

use crate::dir::merged::MergedDir;
use crate::node::{Identity, Node};
use crate::ops::names::lookup::Entry;
use crate::ops::resolve;
use crate::paths::Uses;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_base::inode_number::OfDirectory;
use canopy_base::path::join;
use canopy_branch::fs::stat::Attr;
use canopy_branch::remember::{Known, MissingName};
use rustix::io::Errno;
use std::sync::Arc;

/// What a request is about to do with a file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Open it, or read what is not remembered.
    Open,
    Change,
}

/// What a request is about to do with a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameUse {
    Make,
    Unlink,
    Rmdir,
    RenameFrom,
    RenameTo,
}

/// What is to become of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It does not concern a missing branch.
    Pass,
    Refuse(Errno),
    /// It has been carried out.
    Done,
}

/// Returns the entry of a name that no other branch has.
pub(crate) fn or_entry(
    op: &Op<'_>,
    (parent, path): (NodeId, &[u8]),
    name: &[u8],
    found: Result<Entry>,
) -> Result<Entry> {
    let missing = op.branches.missing();
    match found {
        Err(error) if !missing.is_empty() && resolve::is_absent(error) => match missing.name(path, name) {
            Known::Yes(known) => entry(op, (parent, path), name, &known),
            Known::No => Err(error),
            Known::Unknown => Err(Error::Branch(Errno::IO)),
        },
        found => found,
    }
}

/// Hands out the node of a remembered name.
fn entry(
    op: &Op<'_>,
    (parent, path): (NodeId, &[u8]),
    name: &[u8],
    found: &MissingName<'_>,
) -> Result<Entry> {
    let full = join(path, name);
    let node = if found.row.attr.is_dir() {
        op.nodes.give_out_dir(parent, name, dir_ino(op, &full, found), || None)?
    } else {
        op.nodes.hand_out_remembered(parent, name, found.row.attr.key())?
    };
    let attr = shown(op, &node, &full, found);
    node.tell_owner(attr.uid);
    // It is looked up again before it is used, so that it need not be revoked.
    Ok(Entry { brief: true, ..Entry::new(&node, attr) })
}

fn dir_ino(op: &Op<'_>, path: &[u8], found: &MissingName<'_>) -> u64 {
    let by_path = op.config.inode.of_directory() == OfDirectory::Path;
    op.config.inode.inode_seeded(found.branch.seed, path, found.row.attr.ino, by_path)
}

/// Returns the attributes of what is remembered as the pool shows them.
fn shown(op: &Op<'_>, node: &Node, path: &[u8], found: &MissingName<'_>) -> Attr {
    let mut attr = found.row.attr;
    attr.ino = match node.identity() {
        Identity::Directory { .. } => resolve::dir_number::number_of(op, node),
        Identity::File(_) => match node.kept_number() {
            0 => op.config.inode.inode_seeded(found.branch.seed, path, attr.ino, false),
            known => op.config.inode.fit(known),
        },
    };
    attr
}

/// Returns the inode number that a listing has for a remembered name. It is not 0.
pub(crate) fn listed_ino(op: &Op<'_>, dir: &Node, path: &[u8], name: &[u8], found: &MissingName<'_>) -> u64 {
    let full = join(path, name);
    let known = op.nodes.child(dir.id, name).filter(|node| node.is_dir() == found.row.attr.is_dir());
    let ino = match known {
        Some(node) => shown(op, &node, &full, found).ino,
        None if found.row.attr.is_dir() => dir_ino(op, &full, found),
        None => op.config.inode.inode_seeded(found.branch.seed, &full, found.row.attr.ino, false),
    };
    ino.max(1)
}

/// Returns what is remembered of a node, and its path.
fn of_node<'o>(op: &'o Op<'_>, node: &Node) -> Known<(Vec<u8>, MissingName<'o>)> {
    let missing = op.branches.missing();
    if node.is_dir() {
        let Ok(path) = op.nodes.dir_path(node.id) else { return Known::No };
        return match missing.path(&path) {
            Known::Yes(found) if found.row.attr.is_dir() => Known::Yes((path.to_vec(), found)),
            Known::Yes(_) | Known::No => Known::No,
            Known::Unknown => Known::Unknown,
        };
    }
    let mut unknown = false;
    for (dir, name) in op.nodes.names(node.id) {
        match missing.name(&dir, &name) {
            Known::Yes(found) if Some(found.row.attr.key()) == node.key() => {
                return Known::Yes((join(&dir, &name).to_vec(), found));
            }
            Known::Unknown => unknown = true,
            Known::Yes(_) | Known::No => {}
        }
    }
    if unknown { Known::Unknown } else { Known::No }
}

/// Returns the attributes of a node that no other branch has.
pub(crate) fn or_attr(op: &Op<'_>, node: &Arc<Node>, found: Result<Attr>) -> Result<Attr> {
    let Err(error) = found else { return found };
    if op.branches.missing().is_empty() || matches!(error, Error::Wait(_)) {
        return found;
    }
    match of_node(op, node) {
        Known::Yes((path, known)) => Ok(shown(op, node, &path, &known)),
        Known::No => Err(error),
        Known::Unknown => Err(Error::Branch(Errno::IO)),
    }
}

/// Returns the target of a symlink that no other branch has.
pub(crate) fn link(op: &Op<'_>, node: &Arc<Node>) -> Option<Vec<u8>> {
    if op.branches.missing().is_empty() || is_present(op, node) {
        return None;
    }
    match of_node(op, node) {
        Known::Yes((_, found)) => found.row.link.map(Vec::from),
        Known::No | Known::Unknown => None,
    }
}

/// Returns whether a branch that is there has the node, or somebody has it open.
fn is_present(op: &Op<'_>, node: &Node) -> bool {
    if node.opened().is_some() || node.orphan().is_some() {
        return true;
    }
    let follow = resolve::dirs::follow(op);
    if node.is_dir() {
        let path = op.nodes.dir_path(node.id);
        return path.is_ok_and(|path| MergedDir::open(follow, &op.branches, &path).first().is_ok());
    }
    op.nodes.names(node.id).any(|(dir, name)| {
        let copies = MergedDir::open(follow, &op.branches, &dir).copies(&name);
        copies.any() || copies.error.is_some()
    })
}

/// Returns whether a request may use a file or directory.
pub fn judge(pool: &Pool, id: NodeId, use_: Use) -> Verdict {
    if !pool.any_missing() {
        return Verdict::Pass;
    }
    let op = &mut Op::begin(pool);
    let _held = op.using(Uses::node(id));
    let Ok(node) = op.nodes.get(id) else { return Verdict::Pass };
    if id == NodeId::ROOT || is_present(op, &node) {
        return Verdict::Pass;
    }
    match (of_node(op, &node), use_) {
        (Known::No, _) => Verdict::Pass,
        (Known::Yes(_), Use::Change) => Verdict::Refuse(Errno::ROFS),
        (Known::Yes(_), Use::Open) | (Known::Unknown, _) => Verdict::Refuse(Errno::IO),
    }
}

/// Returns whether a request may use a name.
pub fn judge_name(pool: &Pool, parent: NodeId, name: &[u8], use_: NameUse) -> Verdict {
    if !pool.any_missing() {
        return Verdict::Pass;
    }
    let op = &mut Op::begin(pool);
    let _held = op.using(Uses::name(parent, name));
    let Ok(path) = op.nodes.dir_path(parent) else { return Verdict::Pass };
    let dirs = MergedDir::open(resolve::dirs::follow(op), &op.branches, &path);
    let copies = dirs.copies(name);
    if copies.error.is_some() {
        return Verdict::Pass;
    }
    let missing = op.branches.missing();
    let below = missing.names(&join(&path, name));
    // Files of the other branches change as if nothing were missing.
    let (is_there, is_dir) = (copies.any(), copies.any_dir());
    let holds = below.unknown || !below.found.is_empty();
    match use_ {
        NameUse::Make | NameUse::Unlink if is_there => Verdict::Pass,
        NameUse::RenameFrom | NameUse::RenameTo if is_there && !is_dir => Verdict::Pass,
        NameUse::RenameFrom if is_there && (below.exists || below.unknown) => Verdict::Refuse(Errno::ROFS),
        NameUse::RenameTo | NameUse::Rmdir if is_dir && below.unknown => Verdict::Refuse(Errno::IO),
        NameUse::RenameTo | NameUse::Rmdir if is_dir && holds => Verdict::Refuse(Errno::NOTEMPTY),
        NameUse::RenameTo | NameUse::RenameFrom if is_there => Verdict::Pass,
        NameUse::Rmdir if below.exists && !holds => {
            missing.remove(&join(&path, name));
            if is_there {
                return Verdict::Pass;
            }
            op.nodes.name_removed(parent, name);
            Verdict::Done
        }
        NameUse::Rmdir if is_there => Verdict::Pass,
        NameUse::Rmdir if below.exists => Verdict::Refuse(Errno::NOTEMPTY),
        _ => match missing.name(&path, name) {
            Known::Yes(_) => Verdict::Refuse(Errno::ROFS),
            Known::Unknown => Verdict::Refuse(Errno::IO),
            // No branch that is there has the directory.
            Known::No if dirs.first().is_err() && missing.names(&path).exists => Verdict::Refuse(Errno::ROFS),
            Known::No => Verdict::Pass,
        },
    }
}
