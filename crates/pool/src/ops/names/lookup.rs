//! The operations lookup, forget, getattr, access and readlink.

use crate::config::Func;
use crate::dir::merged::{Copies, MergedDir, Trust};
use crate::dir::symlinks::Symlinks;
use crate::export::StableId;
use crate::node::{Node, Orphan};
use crate::ops::data;
use crate::ops::names;
use crate::ops::resolve;
use crate::ops::resolve::acl::At;
use crate::ops::resolve::places::open_as;
use crate::ops::resolve::{is_absent, on_branch};
use crate::paths::Uses;
use crate::pool::{Op, Pool, State};
use canopy_base::error::{Error, Result};
use canopy_base::ids::{HandleId, NodeId};
use canopy_base::path::join;
use canopy_branch::fs::beneath::ProcPath;
use canopy_branch::fs::reserved::is_reserved;
use canopy_branch::fs::stat::{self, Attr, FileKey, S_IFDIR};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Access, AtFlags, OFlags};
use std::sync::Arc;

/// A node to which the kernel holds one more reference, until it forgets it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub node: NodeId,
    /// The generation of the node, which does not change while the node is known.
    pub generation: u32,
    pub attr: Attr,
    /// The entry expires immediately, because the next lookup of the name leads to another file.
    pub brief: bool,
}

impl Entry {
    pub(crate) fn new(node: &Node, attr: Attr) -> Entry {
        Entry { node: node.id, generation: node.generation, attr, brief: false }
    }
}

/// How often a name is looked at again that is replaced between two looks.
const KEEP_TRIES: u32 = 16;

/// Looks up a name, and hands the kernel a reference to its node. NFS export looks up `.` and `..`.
///
/// Errors: `ENOENT` if no branch holds the name; `ESTALE` if the directory's node is unknown; the error of a branch
/// that could not answer.
pub fn lookup(pool: &Pool, parent: NodeId, name: &[u8]) -> Result<Entry> {
    match name {
        b"." => return lookup_again(pool, parent),
        b".." => return lookup_again(pool, pool.nodes.parent(parent)?),
        _ if is_reserved(name) => return Err(Error::Absent),
        _ => {}
    }
    let op = &mut Op::begin(pool);
    let trust = resolve::dirs::cache_trust(op);
    let _held = op.using(Uses::name(parent, name));
    let (dir, path) = op.nodes.dir(parent)?;
    let found = names::known::lookup(op, (parent, &path), name, trust).unwrap_or_else(|| {
        let dirs = resolve::dirs::dirs_of(op, dir, &path, trust);
        enter(op, parent, &path, &dirs, name)
    });
    names::missing::or_entry(op, (parent, &path), name, found)
}

fn lookup_again(pool: &Pool, id: NodeId) -> Result<Entry> {
    // The node may be gone already: the kernel may have just dropped its last reference.
    let Ok(node) = pool.nodes.hand_out_again(id) else { return names::export::find(pool, id) };
    let found = match getattr(pool, id, None) {
        // No process has the file open, or the kernel would not send this request.
        Ok(attr) if attr.nlink == 0 => Err(Error::Stale),
        other => other,
    };
    found.map(|attr| Entry::new(&node, attr)).inspect_err(|_| take_back(pool, id))
}

/// Drops `count` of the kernel's references to a node.
pub fn forget(pool: &State, node: NodeId, count: u64) {
    pool.nodes.forget(node, count, |gone| pool.dir_cache.idle_files.close(gone));
    pool.dir_cache.compact_order();
}

/// Takes back a reference to a node that the kernel does not get. It may know the node from the process before.
pub fn take_back(pool: &State, node: NodeId) {
    if !pool.nodes.keeps_left(node) {
        forget(pool, node, 1);
    }
}

/// Looks up a name in an open directory, and hands the kernel a reference to its node.
pub(crate) fn enter(
    op: &Op<'_>,
    parent: NodeId,
    path: &[u8],
    dirs: &MergedDir<'_>,
    name: &[u8],
) -> Result<Entry> {
    enter_as(op, parent, path, dirs, name, None)
}

/// As `enter`. `dir` is the stable id for a directory that has no node yet.
pub(crate) fn enter_as(
    op: &Op<'_>,
    parent: NodeId,
    path: &[u8],
    dirs: &MergedDir<'_>,
    name: &[u8],
    dir: Option<StableId>,
) -> Result<Entry> {
    let mut tries = 0;
    loop {
        let copies = resolve::choose::look(op, Func::Getattr, dirs, name);
        let index = match resolve::choose::shown(op, Func::Getattr, &copies) {
            Ok(index) => known_copy(op, parent, name, &copies, index).unwrap_or(index),
            // Leaves the table as it is: a name that is being created or moved concurrently must not lose its node to
            // an older answer. A name that was removed outside the pool does no harm there.
            Err(error) if is_absent(error) => return Err(Error::Absent),
            Err(error) => return Err(error),
        };
        let entry = entry(op, parent, path, dirs, name, &copies, index, dir)?;
        tries += 1;
        if !op.replaced.are_kept() || tries > KEEP_TRIES {
            return Ok(entry);
        }
        match keep(op, dirs, name, &copies, index) {
            // Whatever the thread does next looks the name up again, so only this operation acts on what is kept.
            Some(kept) => return Ok(Entry { brief: entry.brief || kept, ..entry }),
            None => take_back(op, entry.node),
        }
    }
}

/// Keeps a file that was found under a name for the operation that follows, if its thread tries again. Returns whether it is
/// kept, or `None` if the name leads to another file by now.
fn keep(op: &Op<'_>, dirs: &MergedDir<'_>, name: &[u8], copies: &Copies, index: usize) -> Option<bool> {
    let Some((attr, dir)) = copies.get(index).zip(dirs.get(index)) else { return Some(false) };
    if attr.is_dir() {
        return Some(false);
    }
    let (fd, _) = open_as(dir, name, attr.key(), OFlags::PATH)?;
    let thread = op.kernel.load().caller_thread();
    Some(op.replaced.keep(thread, attr.key(), Orphan { branch: op.branches[index].clone(), fd, kept: false }))
}

/// Returns which of several copies of a file the name must lead to, even if the policy would now choose another: one that is open
/// under this name; of a file with more names, one that has a node already, because all its names are one file to the kernel, which
/// counts its links.
fn known_copy(op: &Op<'_>, parent: NodeId, name: &[u8], copies: &Copies, chosen: usize) -> Option<usize> {
    if copies.count() < 2 {
        return None;
    }
    let copy_with = |is_it: &dyn Fn(FileKey) -> bool| {
        // A copy that is out of date is not shown, whoever has it open.
        copies
            .iter()
            .find(|(index, attr)| copies.is_current(*index) && is_it(attr.key()))
            .map(|(index, _)| index)
    };
    let opened = || {
        let node = op.nodes.child(parent, name)?;
        let key = node.key()?;
        node.opened()?;
        copy_with(&|copy| copy == key)
    };
    let named_elsewhere = || {
        let attr = copies.get(chosen).filter(|attr| !attr.is_dir() && attr.nlink > 1)?;
        let has_node = |copy| op.nodes.file(copy).is_some();
        if has_node(attr.key()) { None } else { copy_with(&has_node) }
    };
    opened().or_else(named_elsewhere)
}

/// Returns the entry for the copy at `index`, which the policy chose.
#[allow(clippy::too_many_arguments)]
fn entry(
    op: &Op<'_>,
    parent: NodeId,
    path: &[u8],
    dirs: &MergedDir<'_>,
    name: &[u8],
    copies: &Copies,
    index: usize,
    dir: Option<StableId>,
) -> Result<Entry> {
    let attr = *copies.get(index).ok_or(Error::Absent)?;
    let branch = &op.branches.as_slice()[index];
    let (node, attr) = if attr.is_dir() {
        let each = || copies.iter().map(|(index, attr)| (&*op.branches.as_slice()[index], attr));
        let ino = resolve::dir_number::dir_number(op, &join(path, name), (branch, &attr), each());
        let dir = dir.or_else(|| names::left::at(op, (parent, name), each()));
        let lasting = || dir.or_else(|| StableId::of_dir(each()));
        (op.nodes.give_out_dir(parent, name, ino, lasting)?, copies.merge_dir(attr))
    } else {
        let symlinkified = copies.follow.shows_as_symlink(&attr);
        let inherited = dirs
            .get(index)
            .and_then(|dir| resolve::generations::inherited_number(op, parent, dir, name, &attr));
        let node = op.nodes.hand_out_file(parent, name, branch, attr.key(), symlinkified)?;
        if let Some(number) = inherited.filter(|_| node.kept_number() == 0) {
            op.nodes.number_known(&node, number);
        }
        resolve::tidy_names(op, &node, attr.nlink);
        (node, attr)
    };
    forget_surplus(op);
    let at = At::Named(dirs.follow, dirs.get(index).ok_or(Error::Absent)?, name);
    let attr = if resolve::needs_path(op, &node) && !attr.is_dir() {
        resolve::show(op, &node, branch, &join(path, name), attr, at)
    } else {
        resolve::show(op, &node, branch, b"", attr, at)
    };
    resolve::generations::remember_number(op, &node, copies, attr.ino);
    names::known::learn_entry(op, path, dirs, (name, index), copies, &node, attr);
    Ok(Entry::new(&node, attr))
}

/// Asks the kernel to forget nodes if more are known than may be.
pub(crate) fn forget_surplus(op: &Op<'_>) {
    let surplus = op.nodes.surplus();
    if !surplus.is_empty() {
        op.kernel.load().forget_unused(&surplus);
    }
}

/// Returns the attributes of a node, or of an open file if a handle is given.
pub fn getattr(pool: &Pool, id: NodeId, handle: Option<HandleId>) -> Result<Attr> {
    let op = &mut Op::begin(pool);
    if let Some(handle) = handle.and_then(|h| op.files.get(h).ok()) {
        let _held = op.using(Uses::node(handle.node.id));
        let fd = handle.fd();
        let attr = handle.open.reads(|| stat::of(fd.as_fd()))?;
        let at = At::Opened(fd.as_fd());
        return Ok(resolve::show_file(op, &handle.node, &handle.open.location().branch, attr, at));
    }
    let node = op.nodes.get(id)?;
    // What is remembered of a directory's copies is valid only as far as changes have been processed.
    let exact = op.dir_cache.has_many_copies(&node).then(|| resolve::dirs::cache_trust(op)).flatten();
    let trust = exact.or_else(|| resolve::places::trust_to_read(op, &node));
    let known = trust.or_else(|| names::known::trust(op));
    let _held = op.using(Uses::node(id));
    if let Some(attr) = names::known::attr(op, &node, known) {
        return Ok(attr);
    }
    let found = if node.is_dir() {
        dir_attr(op, &node, trust, exact.is_some())
    } else {
        data::mapped::look_for_mapping(op, &node);
        let found = file_attr(op, &node);
        resolve::generations::or_elsewhere(op, &node, found)
    };
    names::missing::or_attr(op, &node, found)
}

/// Returns the attributes of a file that is not open, if its cached directory leads to it.
fn hinted_attr(op: &Op<'_>, node: &Arc<Node>) -> Option<Attr> {
    if node.opened().is_some() {
        return None;
    }
    resolve::via_cached_parent(op, node, |_, branch, dir, name, key| {
        let seen = stat::at(dir, name).ok().filter(|attr| attr.key() == key)?;
        let attr = resolve::show_file(op, node, branch, seen, At::Named(Symlinks::NEVER, dir, name));
        names::known::learn_attr(op, node, (branch, dir), name, (&seen, attr));
        Some(attr)
    })
}

pub(crate) fn file_attr(op: &Op<'_>, node: &Arc<Node>) -> Result<Attr> {
    if let Some(attr) = hinted_attr(op, node) {
        return Ok(attr);
    }
    let primary = resolve::places::primary(op, node)?;
    Ok(resolve::show_file(op, node, &primary.branch, primary.attr, At::Opened(primary.fd.as_fd())))
}

/// Returns the attributes of a directory. `remembered`: those of its copies may be remembered ones.
pub(crate) fn dir_attr(op: &Op<'_>, node: &Arc<Node>, trust: Trust, remembered: bool) -> Result<Attr> {
    if let (_, Some(path)) = op.nodes.locate(node.id)? {
        let path = path.as_slice();
        let dirs = resolve::dirs::dirs_of(op, node.clone(), path, trust);
        let copies = if remembered { dirs.own_remembered() } else { dirs.own() };
        match resolve::choose::shown(op, Func::Getattr, &copies) {
            Ok(index) => {
                let attr = copies.merge_dir(*copies.get(index).ok_or(Error::Absent)?);
                let at = At::Directory(dirs.get(index).ok_or(Error::Absent)?);
                let attr = resolve::show(op, node, &op.branches.as_slice()[index], path, attr, at);
                names::known::learn_dir_attr(op, node, path, &dirs, &copies, attr);
                return Ok(attr);
            }
            Err(_) if node.id == NodeId::ROOT => {
                return Ok(rootless(resolve::dir_number::number_of(op, node)));
            }
            Err(error) if !is_absent(error) => return Err(error),
            Err(_) => {}
        }
    }
    let orphan = node.orphan().ok_or(Error::Stale)?;
    let attr = orphan.stat()?;
    Ok(resolve::show(op, node, &orphan.branch, b"", attr, At::Opened(orphan.fd.as_fd())))
}

/// Answers access(2) where the kernel does not check permissions itself: checks the daemon's access to the copy
/// that `func.access` chooses. `mask` consists of `R_OK`, `W_OK` and `X_OK`.
///
/// Errors: `EACCES` for executing a file without any execute bit; `EROFS`; `EPERM` for writing an immutable file.
pub fn access(pool: &Pool, id: NodeId, mask: u32) -> Result<()> {
    let op = &mut Op::begin(pool);
    let mask = Access::from_bits(mask).ok_or(Error::Invalid)?;
    let node = op.nodes.get(id)?;
    let trust = resolve::places::trust_to_choose(op, Func::Access, &node);
    let _held = op.using(Uses::node(id));
    let may = |fd: BorrowedFd<'_>| {
        rustix::fs::accessat(rustix::fs::CWD, ProcPath::of(fd).as_bytes(), mask, AtFlags::EACCESS)
    };
    if node.is_dir() {
        return resolve::places::ask_dir(op, &node, trust, Func::Access, may);
    }
    let chosen = resolve::places::chosen(op, Func::Access, &node, trust, |attr| !attr.is_dir())?;
    Ok(chosen.branch.reads(|| may(chosen.fd.as_fd()))?)
}

/// Returns the target of a symlink.
pub fn readlink(pool: &Pool, id: NodeId) -> Result<Vec<u8>> {
    let op = &mut Op::begin(pool);
    let node = op.nodes.get(id)?;
    if let Some(key) = node.key() {
        op.last_opens.put(key, op.kernel.load().caller_thread());
    }
    let trust = resolve::places::trust_to_choose(op, Func::Readlink, &node);
    let known = trust.or_else(|| names::known::trust(op));
    let _held = op.using(Uses::node(id));
    if let Some(target) = names::known::link(op, &node, known).or_else(|| names::missing::link(op, &node)) {
        return Ok(target);
    }
    if !node.is_symlinkified() && resolve::acts_on_own_file(op, Func::Readlink) {
        let target = resolve::via_cached_parent(op, &node, |_, branch, dir, name, key| {
            let target = branch.read_link_at(dir, name)?;
            // Afterwards: until here, the name may have come to lead to another file.
            stat::at(dir, name).ok().filter(|attr| attr.key() == key).map(|_| target)
        });
        if let Some(target) = target {
            names::known::learn_link(op, &node, target.as_bytes());
            return Ok(target.into_bytes());
        }
    }
    let chosen = resolve::places::chosen(op, Func::Readlink, &node, trust, |attr| {
        node.is_symlinkified() && !attr.is_dir() || attr.is_symlink()
    })?;
    if node.is_symlinkified() {
        return Ok(on_branch(&chosen.branch, &resolve::a_path(op, &node).ok_or(Error::Stale)?));
    }
    Ok(chosen.branch.reads(|| chosen.branch.read_link(chosen.fd.as_fd()))?.into_bytes())
}

/// Returns attributes for the root if no branch has one, so that stat(2) and umount(8) still work on the mountpoint.
fn rootless(ino: u64) -> Attr {
    Attr { ino, mode: S_IFDIR | 0o755, nlink: 2, blksize: 512, ..Attr::default() }
}
