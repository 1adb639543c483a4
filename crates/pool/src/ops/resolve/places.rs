//! The places of a node: its copies, on each branch that has one.
//!
//! What the pool knows comes first: the descriptor of an open file, the directory that is kept open, and the index of
//! which branches may hold which of its names. A copy is pinned in that directory, and a file is recognized by its key.
//! Without such knowledge, every branch is asked, once.

use super::{Place, PlaceFd, find_file};
use crate::config::Func;
use crate::dir::merged::{Copies, Trust};
use crate::dir::symlinks::Symlinks;
use crate::export;
use crate::node::Node;
use crate::node::copy_attrs::CopyAttrs;
use crate::node::dir_state::BranchDirs;
use crate::ops::aggregate::{self, Outcome};
use crate::ops::resolve;
use crate::ops::resolve::acl::At;
use crate::ops::trash;
use crate::pool::Op;
use canopy_base::error::{Error, Result, is_full};
use canopy_base::path::PoolPath;
use canopy_branch::branch::{Branch, Branches};
use canopy_branch::fs::beneath;
use canopy_branch::fs::stat::{self, Attr, FileKey};
use canopy_policy::{self as policy, Category};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::Arc;

/// The places that an operation acts on.
pub(crate) type Chosen<'p> = SmallVec<[&'p Place; 2]>;

/// What an operation will do with a file. If the file is not open and has no other copy, it is opened accordingly.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Anything for which it suffices that the file is pinned.
    Attributes,
    /// Change an extended attribute that only regular files have. The kernel takes the descriptor of a file that is open
    /// for reading, but wants a path for one that is only pinned, which takes some 10 us longer.
    ExtendedAttribute,
    /// Truncate it.
    Truncation,
}

impl Purpose {
    fn flags(self, branch: &Branch) -> OFlags {
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        match self {
            Purpose::Truncation => OFlags::WRONLY | flags,
            // A server is asked to open a file, but not to pin it.
            Purpose::ExtendedAttribute if !branch.is_remote() => OFlags::RDONLY | flags,
            Purpose::ExtendedAttribute | Purpose::Attributes => OFlags::PATH,
        }
    }
}

/// The copies of a node.
pub(crate) struct Places {
    /// In branch order. A file without a name has one place without an index.
    list: SmallVec<[Place; 1]>,
    /// The position of the node's own file. `None` for a directory.
    own: Option<usize>,
    copies: Copies,
    /// Of a directory: the remembered attributes of its copies.
    attrs: Option<Arc<CopyAttrs>>,
}

impl Places {
    /// Returns the branches of all places.
    pub(crate) fn indices(&self) -> impl Iterator<Item = Option<usize>> {
        self.list.iter().map(|place| place.index)
    }

    /// Returns false if the node stands for a copy that is out of date.
    pub(super) fn is_own_current(&self) -> bool {
        self.own().and_then(|own| own.index).is_none_or(|index| self.copies.is_current(index))
    }

    /// Returns the error of a copy that cannot tell whether it is the newest: then nobody can.
    pub(super) fn undecided(&self) -> Option<Error> {
        self.copies.current.as_ref().filter(|current| current.is_empty()).map(|_| self.copies.missing())
    }

    /// Makes the only place of a file or directory.
    fn sole(place: Place, is_dir: bool, branches: &Branches) -> Places {
        let found = place.index.map(|index| (index, place.attr)).into_iter().collect();
        let copies = Copies {
            found,
            current: None,
            branches: branches.len(),
            follow: Symlinks::NEVER,
            error: None,
            unheard: branches.timeout_error(),
        };
        Places { list: SmallVec::from_iter([place]), own: (!is_dir).then_some(0), copies, attrs: None }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Place> {
        self.list.iter()
    }

    /// Returns the node's own file; `None` for a directory.
    pub(crate) fn own(&self) -> Option<&Place> {
        self.own.and_then(|at| self.list.get(at))
    }

    fn at(&self, index: usize) -> Option<&Place> {
        let at = self.list.binary_search_by_key(&Some(index), |place| place.index).ok()?;
        self.list.get(at)
    }

    /// Returns the attributes of a file that has lost its last name on the branch.
    pub(crate) fn removed(&self) -> Option<&Attr> {
        let is_kept = |own: &Place| matches!(&own.fd, PlaceFd::Orphan(orphan) if orphan.kept);
        let is_gone = |own: &&Place| self.is_nameless() && (own.attr.nlink == 0 || is_kept(own));
        self.own().filter(is_gone).map(|own| &own.attr)
    }

    /// Returns true for a file or directory that no name leads to.
    pub(crate) fn is_nameless(&self) -> bool {
        self.copies.found.is_empty()
    }
}

/// Returns the cache version that a change of a node may trust. Must be called before the operation takes a lock.
pub(crate) fn trust_to_change(op: &mut Op<'_>, node: &Node) -> Trust {
    match op.branches.len() {
        // No other branch can have a copy. A file is recognized by its key.
        1 if !node.is_dir() => None,
        1 => trust_to_read(op, node),
        _ => resolve::dirs::cache_trust(op),
    }
}

/// Returns the cache version that a query about a node may trust: a directory's branches may be cached for as long
/// as the kernel caches its name, and a file is recognized by its key. Must be called before the operation takes a
/// lock.
pub(crate) fn trust_to_read(op: &mut Op<'_>, node: &Node) -> Trust {
    if node.is_dir() {
        op.dir_cache.valid_version(node).or_else(|| resolve::dirs::cache_trust(op))
    } else {
        resolve::dirs::cache_wanted_dir(op);
        None
    }
}

/// Returns the copy that a file's node stands for. Uses the open file; else a name that still leads to it; else the
/// descriptor that was pinned when the last name was removed; else, if no name is known, its inode number.
///
/// Errors: `ESTALE` if it is not found, on which the kernel looks up the name again.
pub(crate) fn primary(op: &Op<'_>, node: &Arc<Node>) -> Result<Place> {
    if let Some(open) = open_place(node)? {
        return Ok(open);
    }
    let key = node.key().ok_or(Error::IsDirectory)?;
    if let Some(known) = known_place(op, node, Purpose::Attributes) {
        return Ok(known);
    }
    let by_name = |parent: Arc<Node>, dir: &[u8], name: &[u8]| {
        op.dir_cache.searched(parent.id, node.id);
        find_file(resolve::dirs::follow(op), &op.branches, dir, name, key)
    };
    by_names(op, node, key, by_name, |place| place)
}

/// Returns the node's file, opened in a directory that is kept open.
fn known_place(op: &Op<'_>, node: &Node, purpose: Purpose) -> Option<Place> {
    resolve::via_cached_parent(op, node, |index, branch, dir, name, key| {
        let (fd, attr) = open_as(dir, name, key, purpose.flags(branch))?;
        Some(Place { index: Some(index), branch: branch.clone(), fd: PlaceFd::Pinned(fd), attr })
    })
}

/// Calls `find` with the known names of a file, newest first, until it finds the file. Without success, `nameless`
/// receives what stands in for a file without a name.
fn by_names<T>(
    op: &Op<'_>,
    node: &Arc<Node>,
    key: FileKey,
    mut find: impl FnMut(Arc<Node>, &[u8], &[u8]) -> Result<Option<T>, Errno>,
    nameless: impl FnOnce(Place) -> T,
) -> Result<T> {
    // A rename moves the file before it updates the table. A request in between retries.
    let mut failed = None;
    for attempt in 0..4 {
        for (parent, dir, name) in op.nodes.names_in(node.id) {
            match find(parent, &dir, &name) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(errno) => failed = Some(errno),
            }
        }
        trash::recognize(op, node);
        if let Some(orphan) = orphan_place(node)? {
            return Ok(nameless(orphan));
        }
        if attempt > 0 {
            std::thread::yield_now();
        }
    }
    // The file of a node whose names were detached has another node, with pages of its own. Asked after its names.
    if op.nodes.names(node.id).next().is_none()
        && !node.is_superseded()
        && let Some((branch, fd, attr)) = export::reopen(&op.branches, key)
    {
        return Ok(nameless(Place { index: None, branch, fd: PlaceFd::Pinned(fd), attr }));
    }
    if let Some(errno) = failed {
        return Err(Error::Branch(errno));
    }
    let thread = op.kernel.load().caller_thread();
    let kept = op.replaced.find(thread, key).filter(|_| !node.is_superseded());
    let kept = kept.map(|kept| Ok((kept.stat()?, kept)));
    let Some((attr, kept)) = kept.transpose().map_err(Error::Branch)? else {
        op.replaced.met(thread);
        return Err(Error::Stale);
    };
    let (branch, fd) = (kept.branch.clone(), PlaceFd::Orphan(kept));
    Ok(nameless(Place { index: None, branch, fd, attr }))
}

/// Returns the copies of a node. The caller holds no lock on a directory's clones.
///
/// Errors: as for `primary`.
pub(crate) fn places(op: &Op<'_>, node: &Arc<Node>, trust: Trust, purpose: Purpose) -> Result<Places> {
    if node.is_dir() {
        let path = op.nodes.locate(node.id)?.1;
        return dir_places(op, node, path, trust);
    }
    let sole = |place| Places::sole(place, false, &op.branches);
    let mut open = open_place(node)?;
    if op.branches.len() == 1 {
        // There can be no other copy.
        let own = match open {
            Some(open) => {
                let index = op.branches.index_of(open.branch.id).filter(|_| op.nodes.has_name(node.id));
                Place { index, ..open }
            }
            None => match purpose {
                Purpose::Attributes => None,
                _ => known_place(op, node, purpose),
            }
            .map_or_else(|| primary(op, node), Ok)?,
        };
        return Ok(sole(own));
    }
    let key = open.as_ref().map(|open| open.attr.key()).or(node.key()).ok_or(Error::IsDirectory)?;
    let is_open = open.is_some();
    let only_place = |open: &mut Option<Place>, dirs: &BranchDirs, index: usize, name: &[u8]| {
        let branch = &op.branches.as_slice()[index];
        if let Some(open) = open.take_if(|open| open.branch.id == branch.id) {
            return Some(Place { index: Some(index), ..open });
        }
        let dir = dirs.get(&op.branches, index).filter(|_| open.is_none())?;
        let (fd, attr) = branch.tries(|| open_as(dir, name, key, purpose.flags(branch)))?;
        Some(Place { index: Some(index), branch: branch.clone(), fd: PlaceFd::Pinned(fd), attr })
    };
    // Most files have one copy, in a directory that was used a moment ago.
    if trust.is_some()
        && let Some((parent, name)) = op.nodes.newest_name(node.id)
        && let Some(cached) = op.dir_cache.get(&parent, &op.branches)
        && let Some(index) = cached.opened.only_holder(Some(&cached.names), &name)
        && let Some(place) = only_place(&mut open, &cached.opened, index, &name)
    {
        return Ok(sole(place));
    }
    let mut by_name = |parent: Arc<Node>, dir: &[u8], name: &[u8]| -> Result<Option<Places>, Errno> {
        let dirs = resolve::dirs::dirs_of(op, parent, dir, trust);
        if let Some(place) =
            dirs.only_holder(name).and_then(|index| only_place(&mut open, &dirs.opened, index, name))
        {
            return Ok(Some(sole(place)));
        }
        let (copies, pinned) = resolve::generations::pinned_copies(op, &dirs, name);
        let Some(own) = copies.found.iter().position(|(_, attr)| attr.key() == key) else {
            return copies.error.or(copies.unheard).map_or(Ok(None), Err);
        };
        let place = |((index, attr), fd): (&(usize, Attr), _)| Place {
            index: Some(*index),
            branch: op.branches.as_slice()[*index].clone(),
            fd: PlaceFd::Pinned(fd),
            attr: *attr,
        };
        let mut list: SmallVec<[Place; 1]> = copies.found.iter().zip(pinned).map(place).collect();
        if let Some(open) = open.take() {
            list[own].fd = open.fd;
        }
        Ok(Some(Places { list, own: Some(own), copies, attrs: None }))
    };
    if is_open {
        // No name need lead to an open file.
        for (parent, dir, name) in op.nodes.names_in(node.id) {
            if let Ok(Some(found)) = by_name(parent, &dir, &name) {
                return Ok(found);
            }
        }
        return open_place(node)?.map(sole).ok_or(Error::Stale);
    }
    by_names(op, node, key, by_name, sole)
}

fn dir_places(op: &Op<'_>, node: &Arc<Node>, path: Option<PoolPath>, trust: Trust) -> Result<Places> {
    let Some(path) = path else {
        let orphan = orphan_place(node)?.ok_or(Error::Stale)?;
        return Ok(Places::sole(orphan, true, &op.branches));
    };
    let dirs = resolve::dirs::dirs_of(op, node.clone(), &path, trust);
    let copies = dirs.own_remembered();
    let place = |(index, attr): (usize, &Attr)| {
        let branch = op.branches.as_slice()[index].clone();
        let fd = match dirs.opened_dir(index) {
            Some(fd) => PlaceFd::Shared(fd.clone()),
            None => PlaceFd::Root(branch.clone()),
        };
        Place { index: Some(index), branch, fd, attr: *attr }
    };
    Ok(Places { list: copies.iter().map(place).collect(), own: None, copies, attrs: Some(dirs.attrs()) })
}

/// Returns the places that an action function changes.
///
/// `by_handle`: the open file is among them whatever its branch's mode, as that mode binds only the policies.
pub(crate) fn chosen_places<'p>(
    op: &Op<'_>,
    func: Func,
    places: &'p Places,
    by_handle: bool,
) -> Result<Chosen<'p>> {
    if places.is_nameless() && !places.list.is_empty() {
        return Ok(places.list.iter().collect());
    }
    let chosen = resolve::choose::choose_for_action(op, func, &places.copies);
    let Some(own) = places.own() else {
        return Ok(chosen?.into_iter().filter_map(|index| places.at(index)).collect());
    };
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(_) if by_handle => SmallVec::new(),
        Err(error) => return Err(error),
    };
    // Neither a hard link of the file nor a file of another type is a copy.
    let is_copy = |place: &&Place| {
        place.index == own.index
            || place.attr.dirent_type() == own.attr.dirent_type() && place.attr.key() != own.attr.key()
    };
    let mut list: Chosen<'p> =
        chosen.into_iter().filter_map(|index| places.at(index)).filter(is_copy).collect();
    if by_handle && !list.iter().any(|place| place.index == own.index) {
        list.push(own);
    }
    // Only copies that the shown file hides could be changed.
    if list.is_empty() { Err(Error::ReadOnlyCopy) } else { Ok(list) }
}

/// What takes a change of one place back.
pub(crate) type Undo<'p> = Box<dyn FnOnce() + 'p>;

/// For changes that are not taken back here.
pub(crate) fn no_undo<'p>(_: &'p Place) -> Option<Undo<'p>> {
    None
}

/// Runs a change on the chosen places. If the results differ, the result of the shown copy counts. What a directory cannot have
/// on one disk, because that is full, it has on none: where it is on several, `undo` is asked before each of them changes what would
/// take that back, if the change fails as a whole.
pub(crate) fn change_each<'p>(
    op: &Op<'_>,
    places: &'p Places,
    chosen: &[&'p Place],
    mut change: impl FnMut(&Place) -> Result<(), Errno>,
    undo: impl Fn(&'p Place) -> Option<Undo<'p>>,
) -> Result<()> {
    let mut results: SmallVec<[(Option<usize>, Outcome); 2]> = SmallVec::new();
    let copies = resolve::generations::begin_change(op, places, chosen)?;
    if let Some((round, order)) = &copies.round {
        return round.run(order, change);
    }
    let is_dir = places.own().is_none();
    let mut undos: SmallVec<[Undo<'p>; 2]> = SmallVec::new();
    for &place in chosen {
        let undo = if is_dir && chosen.len() > 1 { undo(place) } else { None };
        let result = place.branch.changes(|| change(place));
        undos.extend(undo.filter(|_| result.is_ok()));
        results.push((place.index, result));
    }
    let shown = || {
        if places.is_nameless() {
            Ok(None)
        } else {
            resolve::choose::shown(op, Func::Getattr, &places.copies).map(Some).map_err(Error::errno)
        }
    };
    let full = results.iter().find_map(|(_, result)| result.err().filter(|&errno| is_full(errno)));
    let outcome = match full.filter(|_| is_dir) {
        Some(errno) => Err(errno),
        None => aggregate::by_search(&results, shown),
    };
    if outcome.is_err() {
        undos.into_iter().for_each(|undo| undo());
    }
    Ok(outcome?)
}

/// Runs a change on every copy of a node that `func`'s policy chooses.
pub(crate) fn on_copies(
    op: &Op<'_>,
    node: &Arc<Node>,
    trust: Trust,
    (func, purpose): (Func, Purpose),
    change: impl FnMut(&Place) -> Result<(), Errno>,
    undo: impl for<'p> Fn(&'p Place) -> Option<Undo<'p>>,
) -> Result<()> {
    let _not_cloning = resolve::locks::keep_from_cloning(op, node)?;
    let places = places(op, node, trust, purpose)?;
    let chosen = chosen_places(op, func, &places, false)?;
    let result = change_each(op, &places, &chosen, change, undo);
    node.copies_changed();
    result
}

/// Runs a query on the copy of a directory that a search function chooses.
pub(crate) fn ask_dir<T>(
    op: &Op<'_>,
    node: &Arc<Node>,
    trust: Trust,
    func: Func,
    ask: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>,
) -> Result<T> {
    let (_, Some(path)) = op.nodes.locate(node.id)? else {
        let orphan = orphan_place(node)?.ok_or(Error::Stale)?;
        return Ok(orphan.branch.reads(|| ask(orphan.fd.as_fd()))?);
    };
    let dirs = resolve::dirs::dirs_of(op, node.clone(), &path, trust);
    let index = if policy::first_only(op.config.policies.get(func), Category::Search) {
        dirs.first()?
    } else {
        resolve::choose::shown(op, func, &dirs.own())?
    };
    let dir = dirs.get(index).ok_or(Error::Absent)?;
    Ok(op.branches[index].reads(|| ask(dir))?)
}

/// Returns the node's attributes as they are now.
pub(crate) fn attr_at(op: &Op<'_>, node: &Arc<Node>, places: &Places) -> Result<Attr> {
    if let Some(own) = places.own() {
        return file_attr_at(op, node, own);
    }
    if places.is_nameless() {
        let place = places.list.first().ok_or_else(|| places.copies.missing())?;
        let at = At::Opened(place.fd.as_fd());
        return Ok(resolve::show(op, node, &place.branch, b"", place.stat()?, at));
    }
    let mut copies = places.copies.only(|_| false);
    let ask = |index| places.at(index).map_or(Err(Errno::STALE), Place::stat);
    places.attrs.clone().unwrap_or_default().each(
        op.branches.len(),
        |index| places.at(index).is_some(),
        ask,
        |index, answer| match answer {
            Ok(attr) => copies.found.push((index, attr)),
            Err(errno) => copies.error = Some(errno),
        },
    );
    let shown = resolve::choose::shown(op, Func::Getattr, &copies)?;
    let (attr, place) = copies.get(shown).zip(places.at(shown)).ok_or(Error::Absent)?;
    let at = At::Directory(place.fd.as_fd());
    Ok(resolve::show(op, node, &place.branch, b"", copies.merge_dir(*attr), at))
}

/// Returns the attributes that a file has now.
pub(crate) fn file_attr_at(op: &Op<'_>, node: &Node, file: &Place) -> Result<Attr> {
    let attr = file.stat()?;
    Ok(resolve::show_file(op, node, &file.branch, attr, At::Opened(file.fd.as_fd())))
}

/// Returns the copy of a file that a search function acts on: the node's own file, unless the function's policy
/// chooses another copy of the name that `fits`.
pub(crate) fn chosen(
    op: &Op<'_>,
    func: Func,
    node: &Arc<Node>,
    trust: Trust,
    fits: impl Fn(&Attr) -> bool,
) -> Result<Place> {
    // Of the copies that a rule has made, one is the file that the node stands for.
    if resolve::generations::knows_copies(op) || resolve::acts_on_own_file(op, func) {
        return primary(op, node);
    }
    let mut places = places(op, node, trust, Purpose::Attributes)?;
    let own = places.own.ok_or(Error::IsDirectory)?;
    let key = places.list[own].attr.key();
    let at = resolve::choose::shown(op, func, &places.copies).ok().and_then(|index| {
        places
            .list
            .iter()
            .position(|place| place.index == Some(index) && fits(&place.attr) && place.attr.key() != key)
    });
    Ok(places.list.swap_remove(at.unwrap_or(own)))
}

/// Returns the cache version that `chosen` may trust for this function. Must be called before the operation
/// takes a lock.
pub(crate) fn trust_to_choose(op: &mut Op<'_>, func: Func, node: &Node) -> Trust {
    if node.is_dir() || resolve::acts_on_own_file(op, func) {
        trust_to_read(op, node)
    } else {
        resolve::dirs::cache_trust(op)
    }
}

/// Returns the place of an open file.
fn open_place(node: &Node) -> Result<Option<Place>> {
    let Some(open) = node.opened() else { return Ok(None) };
    let location = open.location();
    let attr = location.branch.reads(|| stat::of(location.fd.as_fd()))?;
    let (branch, fd) = (location.branch.clone(), PlaceFd::Shared(location.fd.clone()));
    Ok(Some(Place { index: None, branch, fd, attr }))
}

/// Returns the place of a file or directory that was pinned when it lost its last name.
pub(super) fn orphan_place(node: &Node) -> Result<Option<Place>> {
    let Some(orphan) = node.orphan() else { return Ok(None) };
    let attr = orphan.stat()?;
    Ok(Some(Place { index: None, branch: orphan.branch.clone(), fd: PlaceFd::Orphan(orphan), attr }))
}

/// Opens a name in a directory, if it leads to the file with this key. Opening another file must neither block nor
/// change it.
pub(crate) fn open_as(
    dir: BorrowedFd<'_>,
    name: &[u8],
    key: FileKey,
    flags: OFlags,
) -> Option<(OwnedFd, Attr)> {
    let fd = match flags {
        OFlags::PATH => beneath::pin(dir, name),
        _ => rustix::fs::openat(dir, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()),
    };
    let fd = fd.ok()?;
    let attr = stat::of(fd.as_fd()).ok().filter(|attr| attr.key() == key)?;
    Some((fd, attr))
}
