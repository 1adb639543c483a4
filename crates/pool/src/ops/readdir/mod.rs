//! Directory listings: the names of all branches, each once.
//!
//! A listing reads names on demand, one buffer at a time, branch by branch. There is no state per open directory, and
//! a directory need not be opened to be listed: a position alone says where to resume
//! (`dir::listing::position`). The state that makes resuming fast and exact is kept per directory
//! for some seconds (`dir::listing::cursor`, `dir::listing::parked`).

mod fill;
pub mod relearn;
mod remembered;

use crate::coherence::catalogue::{Page, Row};
use crate::coherence::changes::{Item, Ticket};
use crate::config::{Func, ReaddirMode};
use crate::dir::listing::cursor::{Cursor, DirEntry, NamesRead};
use crate::dir::listing::position::Position;
use crate::dir::listing::source::{DT_DIR, OpenedSource, open_dir, side_by_side};
use crate::dir::merged::Trust;
use crate::node::Node;
use crate::node::dir_state::PerBranch;
use crate::ops::names;
use crate::ops::names::lookup::Entry;
use crate::ops::resolve;
use crate::ops::resolve::acl::At;
use crate::ops::resolve::dirs::KnownCopies;
use crate::paths::Uses;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_base::path::join;
use canopy_branch::branch::Branch;
use canopy_branch::fs::beneath;
use canopy_branch::fs::stat::Attr;
use canopy_policy::{self as policy, Category};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

/// Checks that a node can be listed.
///
/// Errors: `ENOTDIR` if it is not a directory.
pub fn opendir(pool: &Pool, id: NodeId) -> Result<()> {
    if pool.nodes.get(id)?.is_dir() { Ok(()) } else { Err(Error::NotDirectory) }
}

/// Passes the entries of a directory to `take`, starting at a position, until `take` returns false because it has
/// no more room. The next call gets the refused entry again. Position 0 reads the directory anew. Returns how
/// far the names can be relied on.
pub fn readdir(
    pool: &Pool,
    id: NodeId,
    position: u64,
    mut take: impl FnMut(DirEntry<'_>) -> bool,
) -> Result<NamesRead> {
    let op = &mut Op::begin(pool);
    // First: what the pool itself changes is told here before the catalogue gets its event.
    let begun = op.changes.ticket();
    let trust = resolve::dirs::cache_trust(op);
    let node = op.nodes.get(id)?;
    let parked = op.cursors.take(id, position);
    let _held = op.using(Uses::node(id));
    if let Some(page) = names::known::page(op, &node, position, trust, |_| true) {
        page.rows.iter().all(|row| take(listed(row)));
        return Ok(read_since(op, &node, begun));
    }
    let Some(mut cursor) = cursor(op, &node, position, parked, trust)? else {
        return Ok(NamesRead::Current);
    };
    let mut given = 0;
    while cursor.entry(op, &node, given).is_some() {
        cursor.number(op, &node, given);
        if !cursor.given(given).is_some_and(&mut take) {
            break;
        }
        given += 1;
    }
    remembered::check_end(&cursor, given)?;
    names::known::learn_listed(op, &mut cursor, position, given, &[]);
    Ok(park(op, &node, cursor, given))
}

/// Lists as `readdir` does, and hands the kernel a reference to each entry's node.
///
/// An entry comes without a node if it is `.` or `..`, if it was removed since it was listed, if the kernel
/// already has valid attributes for it, or if far too many nodes are known. `room` is called with each name in order, until it returns false. `take`
/// then gets the accepted entries, and returns how long the kernel may cache the attributes.
pub fn readdirplus(
    pool: &Pool,
    id: NodeId,
    position: u64,
    mut room: impl FnMut(&[u8]) -> bool,
    mut take: impl FnMut(DirEntry<'_>, Option<Entry>) -> Duration,
) -> Result<NamesRead> {
    let op = &mut Op::begin(pool);
    // First: what the pool itself changes is told here before the catalogue gets its event.
    let begun = op.changes.ticket();
    let trust = resolve::dirs::cache_trust(op);
    let dir = op.nodes.get(id)?;
    let parked = op.cursors.take(id, position);
    let known = parked.as_ref().map_or_else(|| dir.has_relied_on_entries(), |cursor| cursor.meets_known);
    // Attributes that the kernel holds count only if the pool has been notified of all changes up to now.
    let known = known && trust.is_some();
    let _held = op.using(Uses::node(id));
    if let Some(page) = names::known::page(op, &dir, position, trust, &mut room) {
        give_known(op, &dir, &page, take);
        return Ok(read_since(op, &dir, begun));
    }
    let Some(mut cursor) = cursor(op, &dir, position, parked, trust)? else {
        return Ok(NamesRead::Current);
    };
    let mut given = 0;
    while cursor.entry(op, &dir, given).is_some_and(|entry| room(entry.name)) {
        given += 1;
    }
    remembered::check_end(&cursor, given)?;
    let names = (0..given).filter_map(|at| Some(cursor.given(at)?.name));
    let mut known = if known { op.nodes.are_relied_on(id, names) } else { Vec::new() };
    if let Some(one) = known.iter_mut().find(|known| **known) {
        // The kernel learns from the use of an entry with attributes whether to ask for those of the next names,
        // so it gets at least one.
        *one = false;
    }
    if op.nodes.is_overfull() {
        known = vec![true; given];
    }
    let nodes = nodes_of(op, &dir, &cursor, given, &known, trust);
    names::lookup::forget_surplus(op);
    (0..given).filter(|at| nodes[*at].is_none()).for_each(|at| cursor.number(op, &dir, at));
    names::known::learn_listed(op, &mut cursor, position, given, &nodes);
    let mut longest = Duration::ZERO;
    for (at, node) in nodes.into_iter().enumerate() {
        let Some(entry) = cursor.given(at) else { break };
        let Some((found, node)) = node else {
            take(entry, None);
            continue;
        };
        // Comes before the attributes are sent: a change in between is recorded later than this, and wins.
        node.offer();
        // If something is mounted on the name, its inode number differs from the listed one.
        let time = take(DirEntry { ino: found.attr.ino, ..entry }, Some(found));
        node.rely(time);
        longest = longest.max(time);
    }
    dir.rely_on_entries(longest);
    Ok(park(op, &dir, cursor, given))
}

/// Returns a row of the catalogue as an entry.
fn listed(row: &Row) -> DirEntry<'_> {
    DirEntry { ino: row.ino, next: row.next, kind: row.kind, name: &row.name }
}

/// Gives what is known of a directory, as `readdirplus` does.
fn give_known(
    op: &Op<'_>,
    dir: &Node,
    page: &Page,
    mut take: impl FnMut(DirEntry<'_>, Option<Entry>) -> Duration,
) {
    let overfull = op.nodes.is_overfull();
    let mut longest = Duration::ZERO;
    for row in &page.rows {
        let Some((found, node)) = (!overfull).then(|| names::known::row_entry(op, dir.id, row)).flatten()
        else {
            take(listed(row), None);
            continue;
        };
        node.offer();
        let time = take(DirEntry { ino: found.attr.ino, ..listed(row) }, Some(found));
        node.rely(time);
        longest = longest.max(time);
    }
    dir.rely_on_entries(longest);
    names::lookup::forget_surplus(op);
}

/// Returns how far the names that were read since then can be relied on.
fn read_since(op: &Op<'_>, dir: &Node, begun: Ticket) -> NamesRead {
    let unchanged = |item| op.changes.unchanged(begun, item);
    if unchanged(Item::node(dir.id)) && unchanged(Item::LISTINGS) {
        NamesRead::Current
    } else {
        NamesRead::Doubtful
    }
}

/// Returns the parked cursor, or else a new one at the position. Returns `None` if there are no more entries.
fn cursor(
    op: &Op<'_>,
    node: &Arc<Node>,
    position: u64,
    parked: Option<Box<Cursor>>,
    trust: Trust,
) -> Result<Option<Box<Cursor>>> {
    let at = Position::from_u64(position);
    remembered::check_branches(op, at, parked.as_deref())?;
    if parked.is_some() || at == Position::End {
        return Ok(parked);
    }
    match op.nodes.dir_path(node.id).and_then(|path| Cursor::begin(op, node, &path, at, trust)) {
        Ok(cursor) => Ok(Some(Box::new(cursor))),
        // A removed directory has no entries, not even its own.
        Err(Error::Absent) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Keeps a cursor for the next request, unless the `given` entries were the last ones. Returns how far its
/// names can be relied on.
fn park(op: &Op<'_>, node: &Node, mut cursor: Box<Cursor>, given: usize) -> NamesRead {
    let unchanged = |item| op.changes.unchanged(cursor.begun, item);
    let current = unchanged(Item::node(node.id)) && unchanged(Item::LISTINGS) && !cursor.incomplete;
    if !cursor.is_over(given) {
        cursor.suspend();
        op.cursors.park(node.id, cursor);
    }
    // Reading has changed their access times.
    node.copies_changed();
    if current { NamesRead::Current } else { NamesRead::Doubtful }
}

/// Returns the nodes of the first `given` entries of a cursor, except `known` ones. No names in the directory are
/// changed through the pool meanwhile: the kernel holds the directory's lock during a listing.
fn nodes_of(
    op: &Op<'_>,
    dir: &Arc<Node>,
    cursor: &Cursor,
    given: usize,
    known: &[bool],
    trust: Trust,
) -> Vec<Option<(Entry, Arc<Node>)>> {
    let mut entries: Vec<Option<(Entry, Arc<Node>)>> = vec![None; given];
    let Ok(path) = op.nodes.dir_path(dir.id) else { return entries };
    let follow = resolve::dirs::follow(op);
    let items: Vec<(DirEntry<'_>, usize)> = (0..given).filter_map(|at| cursor.found(at)).collect();
    let own = |entry: &DirEntry<'_>| matches!(entry.name, b"." | b"..");
    let passed = |at: usize| known.get(at).is_some_and(|&known| known) || own(&items[at].0);
    // If the policy follows the branch order, a file's copy is on the branch that listed it first.
    let in_order = policy::first_only(op.config.policies.get(Func::Getattr), Category::Search)
        && !resolve::generations::knows_copies(op);
    let still = |branch: &Arc<Branch>| Some(op.branches.as_slice()[op.branches.index_of(branch.id)?].clone());
    let sources: PerBranch<_> = cursor.sources().map(|(branch, dir)| (still(branch), dir)).collect();
    let look = |(at, &(entry, source)): (usize, &(DirEntry<'_>, usize))| {
        let (_, dir) = sources.get(source).filter(|(branch, _)| in_order && branch.is_some())?;
        let looks = entry.kind != DT_DIR && !passed(at);
        looks.then(|| follow.at(dir, entry.name).ok())?.filter(|attr| !attr.is_dir())
    };
    let looked: Vec<Option<Attr>> = items.iter().enumerate().map(look).collect();
    let files = items.iter().zip(&looked).map(|((entry, source), attr)| {
        let (attr, (branch, _)) = (attr.as_ref()?, &sources[*source]);
        Some((entry.name, &**branch.as_ref()?, attr.key(), follow.shows_as_symlink(attr)))
    });
    op.nodes.hand_out_files(dir.id, files, |at, node| {
        let (entry, source) = items[at];
        if let (Some(attr), Some((Some(branch), within))) = (looked[at], sources.get(source)) {
            resolve::tidy_names(op, &node, attr.nlink);
            let place = At::Named(follow, *within, entry.name);
            let attr = if resolve::needs_path(op, &node) {
                resolve::show(op, &node, branch, &join(&path, entry.name), attr, place)
            } else {
                resolve::show(op, &node, branch, b"", attr, place)
            };
            entries[at] = Some((Entry::new(&node, attr), node));
        }
    });
    // Looks up the rest: directories, which are merged, and files if the policy needs more than the order.
    let mut dirs = None;
    for (at, (entry, _)) in items.iter().enumerate() {
        if entries[at].is_none() && !passed(at) {
            let dirs = dirs.get_or_insert_with(|| resolve::dirs::dirs_of(op, Arc::clone(dir), &path, trust));
            let found = names::lookup::enter(op, dir.id, &path, dirs, entry.name).ok();
            entries[at] = found.and_then(|found| Some((found, op.nodes.get(found.node).ok()?)));
        }
    }
    entries
}

/// Opens a directory on every branch, and with `func.readdir=cor` also reads it when a listing begins. A branch that
/// is known not to have it is not asked.
pub(crate) fn open_on_branches(
    op: &Op<'_>,
    path: &[u8],
    known: Option<&KnownCopies>,
    from_start: bool,
) -> Vec<Result<OpenedSource, Errno>> {
    let follow = resolve::dirs::follow(op);
    let open = |branch: &Branch| match known.zip(op.branches.index_of(branch.id)) {
        Some((known, index)) => {
            let (dir, path) = known.at(&op.branches, index).ok_or(Errno::NOENT)?;
            OpenedSource::open(follow, branch, dir, path)
        }
        None => OpenedSource::open(follow, branch, branch.root(), path),
    };
    match op.config.readdir {
        ReaddirMode::Cor { threads, .. } if from_start => {
            side_by_side(&op.branches, threads, |branch| open(branch).map(|opened| opened.read(branch)))
        }
        // Opens concurrently, so that sleeping disks spin up together. The listing reads them in order.
        ReaddirMode::Cosr { threads, .. } | ReaddirMode::Cor { threads, .. } => {
            side_by_side(&op.branches, threads, open)
        }
        ReaddirMode::Seq => op.branches.iter().map(|branch| open(branch)).collect(),
    }
}

/// Calls fsync(2), or fdatasync(2) with `data_only`, for a directory on every branch that holds it.
pub fn fsyncdir(pool: &Pool, id: NodeId, data_only: bool) -> Result<()> {
    let op = &mut Op::begin(pool);
    let _held = op.using(Uses::node(id));
    let Ok(path) = op.nodes.dir_path(id) else { return Ok(()) };
    let mut result = Ok(());
    for branch in op.branches.iter() {
        let sync = || match open_dir(resolve::dirs::follow(op), branch.root(), &path) {
            Ok(dir) if data_only => rustix::fs::fdatasync(dir),
            Ok(dir) => rustix::fs::fsync(dir),
            Err(errno) if beneath::is_absent(errno) => Ok(()),
            Err(errno) => Err(errno),
        };
        result = result.and(branch.changes(sync).map_err(Error::Branch));
    }
    result
}
