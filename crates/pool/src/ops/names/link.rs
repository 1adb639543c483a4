//! Hard links.

use super::lookup::Entry;
use crate::config::Func;
use crate::dir::merged::MergedDir;
use crate::door::Caller;
use crate::node::Node;
use crate::ops::aggregate;
use crate::ops::data;
use crate::ops::names;
use crate::ops::owed;
use crate::ops::read_cache;
use crate::ops::reserve;
use crate::ops::reserve::DIRECTORY_GROWS;
use crate::ops::resolve;
use crate::ops::resolve::Place;
use crate::ops::resolve::places::{Places, Purpose};
use crate::ops::trash;
use crate::paths::Uses;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_base::path::join;
use canopy_branch::fs::pinned;
use canopy_branch::fs::reserved::check_not_reserved;
use canopy_branch::fs::stat::Attr;
use canopy_branch::journal::Change;
use canopy_branch::relocate::lease;
use rustix::fd::AsFd;
use rustix::io::Errno;
use smallvec::SmallVec;

/// How often a link is tried anew with the file that has taken the place of the one before.
const SUCCESSORS: usize = 8;

/// The directory of each, and the name there; newest first.
type Names = Vec<(NodeId, Box<[u8]>)>;

enum Linked {
    Made(Entry),
    /// The file has lost its names on the branch since the kernel has looked it up. These were its names.
    Replaced {
        names: Names,
        attr: Attr,
    },
}

/// Links a file under a new name, on each branch whose copy the policy chooses. A file without a name (`O_TMPFILE`)
/// gets its first one.
///
/// No file system links a file that has no name left. If the old name leads to another file by now, on the branch, that is
/// linked, as if the link had come after the replacement; but only one with the same rights, because the kernel has checked
/// those of the file before (`fs.protected_hardlinks`).
///
/// Errors: `EXDEV` if the create policy preserves paths and the branch lacks the directory, unless `link-exdev`
/// names a substitute.
pub fn link(pool: &Pool, caller: &Caller, id: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Entry> {
    link_from(pool, caller, id, (new_parent, new_name), Done::Nothing)
}

/// As `link`, for a request that another process may have carried out, or may have been killed at: copies that have the name keep it, and
/// the others get it.
pub fn link_again(
    pool: &Pool,
    caller: &Caller,
    id: NodeId,
    new_parent: NodeId,
    new_name: &[u8],
) -> Result<Entry> {
    link_from(pool, caller, id, (new_parent, new_name), Done::Perhaps)
}

/// What of a link has been done before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Done {
    Nothing,
    Perhaps,
}

fn link_from(pool: &Pool, caller: &Caller, id: NodeId, new: (NodeId, &[u8]), done: Done) -> Result<Entry> {
    let op = &mut Op::begin(pool);
    let mut linked = link_node(op, caller, id, new, done)?;
    for _ in 0..SUCCESSORS {
        let (known, before) = match linked {
            Linked::Made(entry) => return Ok(entry),
            Linked::Replaced { names, attr } => (names, attr),
        };
        let mut there = known.iter().map(|(parent, name)| names::lookup::lookup(pool, *parent, name));
        let found = there.find(|found| !matches!(found, Err(Error::Absent))).unwrap_or(Err(Error::Absent))?;
        let rights = |attr: &Attr| (attr.uid, attr.gid, attr.mode);
        let again = if rights(&found.attr) == rights(&before) {
            link_node(op, caller, found.node, new, done)
        } else {
            Err(Error::Stale)
        };
        names::lookup::take_back(op, found.node);
        linked = again?;
    }
    match linked {
        Linked::Made(entry) => Ok(entry),
        Linked::Replaced { .. } => Err(Error::Stale),
    }
}

fn link_node(
    op: &mut Op<'_>,
    caller: &Caller,
    id: NodeId,
    (new_parent, new_name): (NodeId, &[u8]),
    done: Done,
) -> Result<Linked> {
    check_not_reserved(new_name)?;
    let _changes = op.state().figures.changes();
    let trust = resolve::dirs::cache_trust(op);
    let node = op.nodes.get(id)?;
    // All copies get the name.
    let _equal = data::mirrors::settle(op, &node);
    let _held = op.using(Uses::node(id).and(Uses::name(new_parent, new_name)));
    if node.is_dir() {
        return Err(Error::NotPermitted);
    }
    let (path, mut dirs) = resolve::dirs::dirs(op, new_parent, trust)?;
    dirs.first()?;
    let there = dirs.copies(new_name);
    if done == Done::Nothing {
        there.must_be_absent()?;
    }
    let places = resolve::places::places(op, &node, trust, Purpose::Attributes)?;
    if let Some(attr) = places.removed() {
        let names: Names = op.nodes.names_in(node.id).map(|(parent, _, name)| (parent.id, name)).collect();
        if !names.is_empty() {
            return Ok(Linked::Replaced { names, attr: *attr });
        }
        // Its last name is in the trash, which shares no file with the pool.
        if attr.nlink > 0 {
            return Err(Error::Absent);
        }
    }
    if !there.any() && is_sent_back(op, caller, &node, &places) {
        return Err(Error::Stale);
    }
    let targets = resolve::places::chosen_places(op, Func::Link, &places, false)?;
    let held = |target: &Place| there.get(op.branches.index_of(target.branch.id)?).map(Attr::key);
    let has_name = targets.iter().any(|target| held(target) == Some(target.attr.key()));
    if !has_name {
        // What has the name is no copy of the file.
        there.must_be_absent()?;
    }
    let missing = targets.iter().copied().filter(|target| held(target).is_none());
    let results = link_each(op, missing, (&path, &mut dirs), new_name)?;
    match aggregate::link(&results) {
        _ if has_name => {}
        Err(Errno::XDEV) => {
            return names::exdev::link_by_symlink(op, caller, &node, &path, &mut dirs, new_name)
                .map(Linked::Made);
        }
        other => other?,
    }
    resolve::generations::note_closed(op, &path, new_name);
    note(op, &node, &targets, (&path, new_name));
    dirs.follow = dirs.follow.as_node(&node);
    let entry = names::lookup::enter(op, new_parent, &path, &dirs, new_name)?;
    if entry.node != node.id {
        // The kernel counts the links of the node that it is told. The names of a file with copies may lead to different ones.
        op.kernel.load().invalidate_attr(node.id);
    }
    Ok(Linked::Made(entry))
}

/// Returns whether the kernel has to look the file up again first: it is open, and none of the names by which it is known leads to it
/// any more. Only a name leads to its other copies. Who comes by a descriptor (`/proc/self/fd`) is sent back once, in vain.
fn is_sent_back(op: &Op<'_>, caller: &Caller, node: &Node, places: &Places) -> bool {
    let has_name = places.own().is_some_and(|own| own.attr.nlink > 0);
    if !(places.is_nameless() && has_name && resolve::generations::knows_copies(op)) {
        return false;
    }
    let goes = !op.pending_detach.take(caller.pid, node.id) && data::cow::looks_up_again(caller);
    if goes {
        op.pending_detach.put(caller.pid, node.id);
    }
    goes
}

/// Links copies of a file under a new name, each on its branch.
fn link_each<'b, 'p>(
    op: &'b Op<'_>,
    targets: impl Iterator<Item = &'p Place>,
    (path, dirs): (&[u8], &mut MergedDir<'b>),
    new_name: &[u8],
) -> Result<SmallVec<[aggregate::Outcome; 2]>> {
    let mut results: SmallVec<[aggregate::Outcome; 2]> = SmallVec::new();
    for target in targets {
        let index = match target.index {
            Some(index) => index,
            None => op.branches.index_of(target.branch.id).ok_or(Error::Stale)?,
        };
        if dirs.lacks(index) && preserves_paths(op) {
            results.push(Err(Errno::XDEV));
            continue;
        }
        results.push(op.branches[index].changes(|| {
            names::create::bring_dir(op, dirs, index, path)?;
            let dir = dirs.get(index).ok_or(Errno::NOENT)?;
            let nears = op.branches[index].nears_reserve(DIRECTORY_GROWS);
            let fd = target.fd.as_fd();
            let link = || Ok(pinned::link(fd, dir, new_name)?);
            // Symlinks, pipes and the like get no copies, and may have no attributes of users.
            if target.attr.is_regular() {
                resolve::generations::begin_generation(op, target.fd.as_fd(), path, new_name)?;
            }
            trash::making_way(op, &op.branches[index], || {
                read_cache::following(
                    op,
                    &op.branches[index],
                    Some(&target.attr),
                    || lease::readable(fd),
                    || reserve::take_space(op, nears, || None, link).map_err(Error::errno),
                )
            })
        }));
        dirs.name_created(new_name, index);
    }
    Ok(results)
}

fn note(op: &Op<'_>, node: &Node, targets: &[&Place], (path, new_name): (&[u8], &[u8])) {
    let on = targets.iter().filter_map(|target| op.branches.index_of(target.branch.id));
    owed::note(op, on, || match resolve::a_path(op, node) {
        Some(known) => Change::Link(known, join(path, new_name)),
        None => Change::Clear(join(path, new_name)),
    });
}

/// Returns true if rename and link must not create directories on branches that lack them.
pub(crate) fn preserves_paths(op: &Op<'_>) -> bool {
    op.config.policies.get(Func::Create).is_path_preserving() && !op.config.ignore_path_preservation
}
