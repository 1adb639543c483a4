//! What operations ask the catalogue, and what they tell it.
//!
//! An operation may rely on the catalogue if all events so far have been processed, and every branch answers. What it has seen
//! on the branches becomes known if these are watched there: not below mounts, and not what is reached by followed symlinks.
//! Files that a client of the pool has open, or mapped, are asked for.

use crate::coherence::catalogue::{Copy, Facts, Found, Handles, Listed, MAX_ROWS, Page, Row, handle_hash};
use crate::dir::cache::cacheable;
use crate::dir::listing::cursor::{Cursor, DirEntry, Learning};
use crate::dir::merged::{Copies, MergedDir, Trust};
use crate::export::StableId;
use crate::node::Node;
use crate::ops::names;
use crate::ops::names::lookup::{Entry, forget_surplus, take_back};
use crate::ops::resolve;
use crate::pool::Op;
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_base::path::{FileName, PoolPath, split};
use canopy_branch::branch::Branch;
use canopy_branch::fs::beneath;
use canopy_branch::fs::stat::{self, Attr, S_IFDIR, Time};
use canopy_sys::file_handle;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::FileType;
use rustix::time::{ClockId, clock_gettime};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The longest name on nearly all filesystems: to a longer one a branch answers ENAMETOOLONG.
const NAME_MAX: usize = 255;

/// Returns the cache version that an operation may trust which needs none but for the catalogue. Must be called before the
/// operation takes a lock.
pub(crate) fn trust(op: &Op<'_>) -> Trust {
    op.catalogue.is_on().then(|| resolve::dirs::cache_trust(op)).flatten()
}

/// Looks up a name in a directory, as [`names::lookup::lookup`] does. `None` if the branches must be asked.
pub(crate) fn lookup(
    op: &Op<'_>,
    (parent, path): (NodeId, &[u8]),
    name: &[u8],
    trust: Trust,
) -> Option<Result<Entry>> {
    // A thread that tries again is to be given what the branches have now.
    if !resolve::dirs::may_ask_catalogue(op, trust) || op.replaced.are_kept() || name.len() > NAME_MAX {
        return None;
    }
    match op.catalogue.find(path, name) {
        Found::Unknown => None,
        Found::Absent => Some(Err(Error::Absent)),
        Found::There(facts) => {
            let found = hand_out(op, parent, name, &facts).map(|(entry, _)| Ok(entry));
            forget_surplus(op);
            found
        }
    }
}

/// Hands the kernel a reference to what a name leads to. `None` if the branches must be asked.
fn hand_out(op: &Op<'_>, parent: NodeId, name: &[u8], facts: &Facts) -> Option<(Entry, Arc<Node>)> {
    let branch = |copy: &Copy| op.branches.iter().find(|branch| branch.id == copy.branch);
    let shown = facts.copies.first()?;
    let mut attr = facts.attr;
    if attr.is_dir() {
        let dir = |copy: &Copy| {
            let (sec, nsec) = copy.key.birth;
            let (dev, ino, btime) = (copy.key.dev, copy.key.ino, Time { sec, nsec });
            Some((&**branch(copy)?, Attr { dev, ino, btime, mode: S_IFDIR, ..Attr::default() }))
        };
        let dirs: SmallVec<[(&Branch, Attr); 4]> = facts.copies.iter().map(dir).collect::<Option<_>>()?;
        let each = || dirs.iter().map(|(branch, attr)| (*branch, attr));
        let left = names::left::at(op, (parent, name), each());
        let lasting = || left.or_else(|| StableId::of_dir(each()));
        let node = op.nodes.give_out_dir(parent, name, attr.ino, lasting).ok()?;
        attr.ino = resolve::dir_number::number_of(op, &node);
        node.tell_owner(attr.uid);
        return Some((Entry::new(&node, attr), node));
    }
    let node = op.nodes.hand_out_file(parent, name, branch(shown)?, shown.key, false).ok()?;
    if changes_unseen(&node) {
        take_back(op, node.id);
        return None;
    }
    if facts.number != 0 && node.kept_number() == 0 {
        op.nodes.number_known(&node, facts.number);
    }
    attr.ino = shown_number(op, &node, attr.ino);
    node.tell_owner(attr.uid);
    Some((Entry::new(&node, attr), node))
}

fn shown_number(op: &Op<'_>, node: &Node, known: u64) -> u64 {
    match node.kept_number() {
        0 => known,
        kept => op.config.inode.fit(kept),
    }
}

/// Returns whether a file may change without any event.
fn changes_unseen(node: &Node) -> bool {
    node.is_open() || node.mapped.load(Ordering::Acquire) || node.orphan().is_some()
}

/// Returns the path of the directory that holds a node, and the node's name there.
fn place_of(op: &Op<'_>, node: &Node) -> Option<(PoolPath, FileName)> {
    if node.id == NodeId::ROOT {
        return None;
    }
    if node.is_dir() {
        let path = op.nodes.dir_path(node.id).ok()?;
        let (dir, name) = split(&path);
        return Some((dir.into(), name.into()));
    }
    let (parent, name) = op.nodes.newest_name(node.id)?;
    Some((op.nodes.dir_path(parent.id).ok()?, name))
}

/// Returns what is known of a node.
fn facts(op: &Op<'_>, node: &Node, trust: Trust) -> Option<Box<Facts>> {
    if !resolve::dirs::may_ask_catalogue(op, trust) || !node.is_dir() && changes_unseen(node) {
        return None;
    }
    let (dir, name) = place_of(op, node)?;
    match op.catalogue.find(&dir, &name) {
        Found::There(facts) if is_of(&facts, node) => Some(facts),
        _ => None,
    }
}

/// Returns whether facts are those of a node, not of what has come to its place.
fn is_of(facts: &Facts, node: &Node) -> bool {
    match node.key() {
        None => facts.attr.is_dir() && node.is_dir(),
        key => key == facts.copies.first().map(|copy| copy.key),
    }
}

/// Returns the attributes of a node.
pub(crate) fn attr(op: &Op<'_>, node: &Node, trust: Trust) -> Option<Attr> {
    let mut attr = facts(op, node, trust)?.attr;
    attr.ino = if node.is_dir() {
        resolve::dir_number::number_of(op, node)
    } else {
        shown_number(op, node, attr.ino)
    };
    node.tell_owner(attr.uid);
    Some(attr)
}

/// Returns the target of a symlink.
pub(crate) fn link(op: &Op<'_>, node: &Node, trust: Trust) -> Option<Vec<u8>> {
    facts(op, node, trust)?.link.map(Vec::from)
}

/// Returns whether a node is known to have no extended attribute and no ACL.
pub(crate) fn is_plain(op: &Op<'_>, node: &Node, trust: Trust) -> bool {
    facts(op, node, trust).is_some_and(|facts| facts.is_plain)
}

/// Records the target of a symlink.
pub(crate) fn learn_link(op: &Op<'_>, node: &Node, target: &[u8]) {
    add(op, node, |facts| facts.link = Some(target.into()));
}

/// Records that a node has no extended attribute and no ACL.
pub(crate) fn learn_plain(op: &Op<'_>, node: &Node) {
    add(op, node, |facts| facts.is_plain = true);
}

/// What is added was seen after the facts were. An event for a change in between makes both unknown.
fn add(op: &Op<'_>, node: &Node, add: impl FnOnce(&mut Facts)) {
    if !op.catalogue.is_on() {
        return;
    }
    if let Some((dir, name)) = place_of(op, node) {
        op.catalogue.add(&dir, &name, |facts| {
            if is_of(facts, node) {
                add(facts);
            }
        });
    }
}

/// Records what a lookup has found. `dirs` is the directory, and `shown` the index of the copy that is shown.
pub(crate) fn learn_entry(
    op: &Op<'_>,
    path: &[u8],
    dirs: &MergedDir<'_>,
    (name, shown): (&[u8], usize),
    copies: &Copies,
    node: &Node,
    attr: Attr,
) {
    // Names are cached where all changes are reported.
    let is_watched = dirs.names.is_some() && copies.error.is_none() && copies.unheard.is_none();
    if !op.catalogue.is_on() || !is_watched {
        return;
    }
    let copy = |(index, attr): (usize, &Attr)| {
        let (branch, dir) = (&*op.branches.as_slice()[index], dirs.get(index)?);
        copy_at(branch, dir, name, attr)
    };
    let first = copies.get(shown).map(|attr| (shown, attr));
    let others = copies.iter().filter(|(index, _)| *index != shown);
    if let Some(copies) = first.into_iter().chain(others).map(copy).collect()
        && let Some(facts) = make(op, node, copies, attr)
    {
        op.catalogue.learn(path, name, facts);
    }
}

/// Records the attributes of a known file that was found in a directory of a branch.
pub(crate) fn learn_attr(
    op: &Op<'_>,
    node: &Node,
    (branch, dir): (&Branch, BorrowedFd<'_>),
    name: &[u8],
    (seen, shown): (&Attr, Attr),
) {
    if !op.catalogue.is_on() || !resolve::acts_on_first(op) {
        return;
    }
    if let Some((path, newest)) = place_of(op, node)
        && *newest == *name
        && let Some(copy) = copy_at(branch, dir, name, seen)
        && let Some(facts) = make(op, node, SmallVec::from_elem(copy, 1), shown)
    {
        op.catalogue.learn(&path, name, facts);
    }
}

/// Records the attributes of a directory.
pub(crate) fn learn_dir_attr(
    op: &Op<'_>,
    node: &Node,
    path: &[u8],
    dirs: &MergedDir<'_>,
    copies: &Copies,
    attr: Attr,
) {
    let is_watched = dirs.names.is_some() && copies.error.is_none() && copies.unheard.is_none();
    if path.is_empty() || !op.catalogue.is_on() || !is_watched {
        return;
    }
    let copy = |(index, attr): (usize, &Attr)| {
        let branch = &*op.branches.as_slice()[index];
        let handle = file_handle::from_fd(dirs.get(index)?).ok()?;
        Some(Copy { branch: branch.id, key: attr.key(), handle: handle_hash(&handle) })
    };
    if let Some(copies) = copies.iter().map(copy).collect()
        && let Some(facts) = make(op, node, copies, attr)
    {
        let (dir, name) = split(path);
        op.catalogue.learn(dir, name, facts);
    }
}

pub(crate) fn copy_at(branch: &Branch, dir: BorrowedFd<'_>, name: &[u8], attr: &Attr) -> Option<Copy> {
    let handle = file_handle::at(dir, name).ok().filter(|_| attr.dev == branch.dev)?;
    Some(Copy { branch: branch.id, key: attr.key(), handle: handle_hash(&handle) })
}

/// Returns the facts about a node, as they were seen in this operation; `None` if they may change without being reported, or
/// with the path.
pub(crate) fn make(op: &Op<'_>, node: &Node, copies: SmallVec<[Copy; 1]>, attr: Attr) -> Option<Facts> {
    // Which of several copies by a rule is the newest does not depend on them alone.
    let is_one_of_many = !attr.is_dir() && resolve::generations::knows_copies(op);
    if is_one_of_many || resolve::needs_path(op, node) || !attr.is_dir() && changes_unseen(node) {
        return None;
    }
    let until = if attr.is_dir() {
        i64::MAX
    } else {
        let is_file = FileType::from_raw_mode(attr.mode) == FileType::RegularFile;
        let branch = || op.branches.by_id(copies.first()?.branch);
        let data_on =
            (is_file && attr.size + attr.blocks > 0).then(|| branch().map_or(0, |branch| branch.kind));
        op.catalogue.lasting(clock_gettime(ClockId::Realtime).tv_sec - attr.ctime.sec, data_on)?
    };
    let number = if attr.is_dir() { 0 } else { node.kept_number() };
    Some(Facts { since: op.since, until, attr, copies, number, link: None, is_plain: false })
}

/// Returns the part of a listing from a position on.
pub(crate) fn page(
    op: &Op<'_>,
    dir: &Node,
    position: u64,
    trust: Trust,
    room: impl FnMut(&[u8]) -> bool,
) -> Option<Page> {
    if !resolve::dirs::may_ask_catalogue(op, trust) || !op.branches.missing().is_empty() {
        return None;
    }
    op.catalogue.page(&op.nodes.dir_path(dir.id).ok()?, position, room)
}

/// Hands out the node of a row, if what is known of it may be relied on.
pub(crate) fn row_entry(op: &Op<'_>, dir: NodeId, row: &Row) -> Option<(Entry, Arc<Node>)> {
    hand_out(op, dir, &row.name, row.facts.as_deref()?)
}

/// Begins to record a listing that begins at the start.
pub(crate) fn begin_listing(op: &Op<'_>, path: &[u8], cursor: &Cursor) -> Option<Box<Learning>> {
    let is_whole = op.catalogue.is_on()
        && !cursor.incomplete
        && op.branches.timeout_error().is_none()
        && op.branches.missing().is_empty();
    if !is_whole || !cursor.follow.is_plain() {
        return None;
    }
    let handles = cursor.sources().map(|(branch, dir)| dir_handle(branch, dir)).collect::<Option<_>>()?;
    let listed = Listed { path: path.into(), handles, rows: Vec::new(), above: Vec::new(), since: op.since };
    Some(Box::new(Learning { listed, end: 0 }))
}

fn dir_handle(branch: &Branch, dir: BorrowedFd<'_>) -> Option<u64> {
    cacheable(branch, dir)?;
    file_handle::from_fd(dir).ok().map(|handle| handle_hash(&handle))
}

/// Records the entries that a listing has given. `nodes` has what was given of them, if anything was. One without a node has a
/// number, or programs would take it for removed.
pub(crate) fn learn_listed(
    op: &Op<'_>,
    cursor: &mut Cursor,
    position: u64,
    given: usize,
    nodes: &[Option<(Entry, Arc<Node>)>],
) {
    let Some(mut learning) = cursor.learning.take() else { return };
    let listed = &mut learning.listed;
    if learning.end != position
        || listed.rows.len() + given > MAX_ROWS
        || cursor.incomplete
        || cursor.pass > 0
    {
        return;
    }
    for at in 0..given {
        let Some((entry, source)) = cursor.found(at) else { return };
        let facts = nodes.get(at).and_then(Option::as_ref).and_then(|(found, node)| {
            let copies = copies_of(op, cursor, &entry, source, node)?;
            make(op, node, copies, found.attr).map(Box::new)
        });
        let DirEntry { ino, next, kind, name } = entry;
        let ino = nodes.get(at).and_then(Option::as_ref).map_or(ino, |(found, _)| found.attr.ino);
        listed.rows.push(Row { name: name.into(), next, kind, ino, facts });
        learning.end = next;
    }
    if !cursor.is_over(given) {
        cursor.learning = Some(learning);
        return;
    }
    let _ = complete(op, learning.listed);
}

/// Records a directory with all its names, and those above it. `None` if one of these cannot be looked at.
pub(crate) fn complete(op: &Op<'_>, mut listed: Listed) -> Option<()> {
    for path in op.catalogue.unknown_above(&listed.path) {
        let dirs = MergedDir::open(resolve::dirs::follow(op), &op.branches, &path);
        let there = (0..op.branches.len()).filter_map(|index| Some((index, dirs.get(index)?)));
        let handles: Option<Handles> =
            there.map(|(index, dir)| dir_handle(&op.branches.as_slice()[index], dir)).collect();
        let handles = handles.filter(|_| dirs.opened.error.is_none())?;
        listed.above.push((path, handles));
    }
    op.catalogue.learn_names(listed);
    Some(())
}

/// Returns the copies of what a listing has found; `None` if they are not all known.
fn copies_of(
    op: &Op<'_>,
    cursor: &Cursor,
    entry: &DirEntry<'_>,
    source: usize,
    node: &Node,
) -> Option<SmallVec<[Copy; 1]>> {
    let Some(key) = node.key() else {
        let mut copies = SmallVec::new();
        for (branch, dir) in cursor.sources() {
            match stat::at(dir, entry.name) {
                Ok(attr) => copies.push(copy_at(branch, dir, entry.name, &attr)?),
                Err(errno) if beneath::is_absent(errno) => {}
                Err(_) => return None,
            }
        }
        return Some(copies);
    };
    // If the policy follows the branch order, the copy is on the branch that listed it first.
    let (branch, dir) = cursor.sources().nth(source).filter(|_| resolve::acts_on_first(op))?;
    let handle = file_handle::at(dir.as_fd(), entry.name).ok().filter(|_| key.dev == branch.dev)?;
    Some(SmallVec::from_elem(Copy { branch: branch.id, key, handle: handle_hash(&handle) }, 1))
}
