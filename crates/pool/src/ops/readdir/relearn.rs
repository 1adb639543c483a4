//! Looking at a directory that nobody asks for, so that the catalogue knows it as if a client had walked it.
//!
//! The kernel keeps names from changing through the pool while a client looks at them, and takes note of what it is given. Nobody
//! does here. So nothing is given out: the table of nodes stays as it is, and no answer comes of this. What changes meanwhile, by
//! whomever, is told to the catalogue, which then does not learn what was seen before.

use crate::coherence::catalogue::{Copy, Facts, MAX_ROWS, Row};
use crate::config::Func;
use crate::dir::listing::cursor::{Cursor, DirEntry};
use crate::dir::listing::position::Position;
use crate::dir::merged::MergedDir;
use crate::export::StableId;
use crate::node::{Identity, Node};
use crate::ops::external_changes;
use crate::ops::names::known;
use crate::ops::resolve;
use crate::ops::resolve::acl::At;
use crate::pool::{Op, Pool};
use canopy_base::ids::NodeId;
use canopy_base::path::split;
use canopy_branch::branch::Branch;
use canopy_branch::fs::stat::Attr;
use canopy_branch::fs::xattr;
use rustix::fd::BorrowedFd;
use smallvec::SmallVec;
use std::sync::Arc;

/// Looks at a directory, unless all of it is known. Returns false if nothing can be learnt of any now, because a branch does not
/// answer or is missing, or events wait. Waits for the disks, and holds no lock meanwhile.
pub fn relearn(pool: &Pool, path: &[u8]) -> bool {
    let op = &Op::begin(pool);
    let may = op.catalogue.is_on()
        && resolve::dirs::cache_trust(op).is_some()
        && op.branches.timeout_error().is_none()
        && op.branches.missing().is_empty();
    if may && !op.catalogue.is_whole(path) {
        // Where it is not learnt, it cannot be, or has changed meanwhile.
        let _ = look(op, path);
    }
    may
}

fn look(op: &Op<'_>, path: &[u8]) -> Option<()> {
    let dirs = MergedDir::open(resolve::dirs::follow(op), &op.branches, path);
    if dirs.opened.error.is_some() {
        return None;
    }
    let dir = match external_changes::known(op).dir(path) {
        Some(id) => op.nodes.get(id).ok()?,
        None => Arc::new(nobody(Identity::Directory { ino: number(op, path)? })),
    };
    // As one that may rely on caches, without relying on any.
    let mut cursor = Cursor::begin(op, &dir, path, Position::Start(0), None).ok()?;
    let mut learning = known::begin_listing(op, path, &cursor)?;
    let above = if path.is_empty() { None } else { Some(number(op, split(path).0)?) };
    for at in 0.. {
        if at > MAX_ROWS {
            return None;
        }
        if cursor.entry(op, &dir, at).is_none() {
            break;
        }
        cursor.number(op, &dir, at);
        let DirEntry { mut ino, next, kind, name } = cursor.given(at)?;
        let facts = match name {
            b"." => None,
            b".." => {
                ino = above.unwrap_or(ino);
                None
            }
            _ => facts(op, &dirs, name, ino).map(Box::new),
        };
        // As a listing with attributes shows it.
        let ino = facts.as_ref().map_or(ino, |facts| facts.attr.ino);
        learning.listed.rows.push(Row { name: name.into(), next, kind, ino, facts });
    }
    if cursor.incomplete || cursor.pass > 0 {
        return None;
    }
    known::complete(op, learning.listed)
}

/// Returns a node of which nobody knows.
fn nobody(identity: Identity) -> Node {
    Node::new(StableId { id: NodeId(0), generation: 0 }, identity, false)
}

/// Returns the number of a directory.
fn number(op: &Op<'_>, path: &[u8]) -> Option<u64> {
    let known = external_changes::known(op);
    if let Some(node) = known.dir(path).and_then(|id| op.nodes.get(id).ok()) {
        return Some(resolve::dir_number::number_of(op, &node));
    }
    let dirs = MergedDir::open(resolve::dirs::follow(op), &op.branches, path);
    let copies = dirs.own();
    let shown = resolve::choose::shown(op, Func::Getattr, &copies).ok()?;
    let branch = |index: usize| -> &Branch { &op.branches.as_slice()[index] };
    let each = || copies.iter().map(|(index, attr)| (branch(index), attr));
    let shown = (branch(shown), copies.get(shown)?);
    let (above, name) = split(path);
    let above = known.dir(above).unwrap_or(NodeId(0));
    let number = || resolve::dir_number::dir_number(op, path, shown, each());
    Some(op.nodes.dir_ino(above, name, number, || StableId::of_dir(each())))
}

/// Returns what a lookup would show. `ino` is the number of a directory.
fn facts(op: &Op<'_>, dirs: &MergedDir<'_>, name: &[u8], ino: u64) -> Option<Facts> {
    let copies = resolve::choose::look(op, Func::Getattr, dirs, name);
    let shown = resolve::choose::shown(op, Func::Getattr, &copies).ok()?;
    if copies.error.is_some() || copies.unheard.is_some() {
        return None;
    }
    let (seen, branch, dir) = (*copies.get(shown)?, &*op.branches.as_slice()[shown], dirs.get(shown)?);
    let is_dir = seen.is_dir();
    let node = if is_dir {
        // Not its node: that has the owner which the kernel was told.
        Arc::new(nobody(Identity::Directory { ino }))
    } else {
        let known = op.nodes.file(seen.key());
        known.unwrap_or_else(|| Arc::new(nobody(Identity::File(seen.key()))))
    };
    if resolve::needs_path(op, &node) {
        return None;
    }
    let merged = if is_dir { copies.merge_dir(seen) } else { seen };
    let attr = resolve::show(op, &node, branch, b"", merged, At::Named(dirs.follow, dir, name));
    let place = |(index, attr): (usize, &Attr)| {
        let (branch, dir) = (&*op.branches.as_slice()[index], dirs.get(index)?);
        known::copy_at(branch, dir, name, attr)
    };
    let others = copies.iter().filter(|(index, _)| *index != shown);
    let all: SmallVec<[Copy; 1]> =
        std::iter::once((shown, &seen)).chain(others).map(place).collect::<Option<_>>()?;
    let mut facts = known::make(op, &node, all, attr)?;
    if seen.is_symlink() {
        facts.link = branch.tries(|| branch.read_link_at(dir, name)).map(|to| to.into_bytes().into());
    }
    let is_plain = |index: usize, dir: BorrowedFd<'_>| {
        op.branches.as_slice()[index].tries(|| xattr::list_at(dir, name, &mut []).ok()) == Some(0)
    };
    facts.is_plain = if is_dir {
        copies.iter().all(|(index, _)| dirs.get(index).is_some_and(|dir| is_plain(index, dir)))
    } else {
        is_plain(shown, dir)
    };
    Some(facts)
}
