//! Creating names: mkdir, mknod and symlink, and cloning their parent directories to a branch.

use super::lookup::Entry;
use crate::config::{FollowSymlinks, Func};
use crate::dir::merged::{Copies, MergedDir};
use crate::dir::symlinks::Symlinks;
use crate::door::Caller;
use crate::export::StableId;
use crate::ops::aggregate;
use crate::ops::external_changes;
use crate::ops::freed;
use crate::ops::names;
use crate::ops::owed;
use crate::ops::resolve;
use crate::ops::trash;
use crate::paths::Uses;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result, is_full, is_illness};
use canopy_base::ids::NodeId;
use canopy_base::path::{join, split};
use canopy_branch::branch::Branch;
use canopy_branch::fs::beneath::Dir;
use canopy_branch::fs::reserved::check_not_reserved;
use canopy_branch::fs::stat::{self, Attr, S_ISGID, S_IXGRP};
use canopy_branch::journal::Change;
use canopy_branch::relocate::{self, Cloned};
use canopy_sys::creds;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use smallvec::SmallVec;

/// Creates a directory.
pub fn mkdir(pool: &Pool, caller: &Caller, parent: NodeId, name: &[u8], mode: u32) -> Result<Entry> {
    let mode = Mode::from_raw_mode(mode & 0o7777);
    freed::make(pool, || {
        let op = &mut Op::begin(pool);
        make(op, caller, Func::Mkdir, parent, name, |dir| rustix::fs::mkdirat(dir, name, mode))
    })
}

/// Creates a file, device, FIFO or socket. `mode` includes the type.
pub fn mknod(
    pool: &Pool,
    caller: &Caller,
    parent: NodeId,
    name: &[u8],
    mode: u32,
    (major, minor): (u32, u32),
) -> Result<Entry> {
    let kind = FileType::from_raw_mode(mode);
    // For a regular file, mknod(2) follows the same policy as open(2).
    let func = if kind == FileType::RegularFile { Func::Create } else { Func::Mknod };
    let device = rustix::fs::makedev(major, minor);
    let made = freed::make(pool, || {
        make(&mut Op::begin(pool), caller, func, parent, name, |dir| {
            rustix::fs::mknodat(dir, name, kind, mode_in(caller, dir, mode)?, device)
        })
    })?;
    let op = &mut Op::begin(pool);
    if kind == FileType::RegularFile && resolve::generations::knows_copies(op) {
        let _held = op.using(Uses::node(made.node).and(Uses::name(parent, name)));
        let file = resolve::places::primary(op, &op.nodes.get(made.node)?)?;
        let dir = op.nodes.dir_path(parent)?;
        let begin = || resolve::generations::begin_generation(op, file.fd.as_fd(), &dir, name);
        let begun = file.branch.changes(begin);
        resolve::generations::note_closed(op, &dir, name);
        begun?;
    }
    Ok(made)
}

/// Creates a symlink.
pub fn symlink(pool: &Pool, caller: &Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry> {
    let act = |dir: BorrowedFd<'_>| rustix::fs::symlinkat(target, dir, name);
    let following = pool.config().follow_symlinks != FollowSymlinks::Never;
    let entry = freed::make(pool, || make(&mut Op::begin(pool), caller, Func::Symlink, parent, name, act))?;
    Ok(Entry { brief: following, ..entry })
}

fn make(
    op: &mut Op<'_>,
    caller: &Caller,
    func: Func,
    parent: NodeId,
    name: &[u8],
    act: impl Fn(BorrowedFd<'_>) -> Result<(), Errno>,
) -> Result<Entry> {
    let _changes = op.state().figures.changes();
    let trust = resolve::dirs::cache_trust(op);
    let _held = op.using(Uses::name(parent, name));
    let (path, mut dirs) = resolve::dirs::dirs(op, parent, trust)?;
    make_on_branches(op, caller, func, &path, &mut dirs, name, act)?;
    // No other branch held the name, so the new entry is its only copy. A new symlink is described as a symlink,
    // even if the pool follows it: the kernel accepts no other type in the reply.
    dirs.follow = Symlinks::NEVER;
    names::lookup::enter(op, parent, &path, &dirs, name)
}

/// Creates a name in a directory, on the branches that the policy of `func` chooses.
pub(crate) fn make_on_branches<'b>(
    op: &'b Op<'_>,
    caller: &Caller,
    func: Func,
    path: &[u8],
    dirs: &mut MergedDir<'b>,
    name: &[u8],
    act: impl Fn(BorrowedFd<'_>) -> Result<(), Errno>,
) -> Result<()> {
    let mut full: SmallVec<[usize; 4]> = SmallVec::new();
    loop {
        let chosen = room_for(op, func, path, dirs, name, &full)?;
        let mut results: SmallVec<[aggregate::Outcome; 2]> = SmallVec::new();
        for &index in &chosen {
            results.push(op.branches[index].changes(|| {
                bring_dir(op, dirs, index, path)?;
                let _as_caller = creds::assume(caller.uid, caller.gid, caller.umask)?;
                act(dirs.get(index).ok_or(Errno::NOENT)?)
            }));
            dirs.name_created(name, index);
        }
        if func == Func::Mkdir && chosen.len() > 1 {
            // A lookup may have cached the directory before all branches had it.
            op.dir_cache.places_changed();
        }
        match aggregate::any_success(&results) {
            Err(errno) if tries_elsewhere(op, errno, func, dirs, (path, name), &chosen, &mut full) => {}
            made => {
                made?;
                owed::note(op, chosen, || match func {
                    Func::Mkdir => Change::MakeDir(join(path, name)),
                    _ => Change::Clear(join(path, name)),
                });
                return Ok(());
            }
        }
    }
}

/// Returns true if creation failed because a branch is full or unhealthy, and the policy can choose another branch.
/// Adds the branches chosen so far to `full`.
pub(crate) fn tries_elsewhere(
    op: &Op<'_>,
    errno: Errno,
    func: Func,
    dirs: &MergedDir<'_>,
    new: (&[u8], &[u8]),
    chosen: &[usize],
    full: &mut SmallVec<[usize; 4]>,
) -> bool {
    let config = &op.config;
    let gives_way = |&index: &usize| trash::gives_way(op, &dirs.branches[index], errno, 0);
    if chosen.iter().any(gives_way) {
        return true;
    }
    // Tiers pass on what they have no room for, whatever becomes of files that exist.
    let moves = is_full(errno) && (config.move_when_full.0.is_some() || !config.placement.is_empty());
    if !moves && !is_illness(errno) {
        return false;
    }
    full.extend_from_slice(chosen);
    resolve::choose::choose_for_create(op, func, dirs, new, full).is_ok()
}

/// Returns the branches on which to create a name.
///
/// Errors: those of [`must_be_new`], or that of the policy.
pub(crate) fn room_for(
    op: &Op<'_>,
    func: Func,
    path: &[u8],
    dirs: &MergedDir<'_>,
    name: &[u8],
    full: &[usize],
) -> Result<canopy_policy::Choice> {
    must_be_new(dirs, name, &dirs.copies(name))?;
    resolve::choose::choose_for_create(op, func, dirs, (path, name), full)
}

/// Clones a directory to a branch that lacks it, so that something can be created in it.
///
/// Errors: `EPERM` for an immutable directory, since nothing may be created in it. The clone would not refuse,
/// because it lacks that flag. `EXDEV` for a directory behind a followed symlink.
pub(crate) fn bring_dir<'b>(
    op: &'b Op<'_>,
    dirs: &mut MergedDir<'b>,
    index: usize,
    path: &[u8],
) -> Result<(), Errno> {
    if dirs.lacks(index) {
        if dirs.by_link {
            // A clone would be another directory than the one that the symlink leads to.
            return Err(Errno::XDEV);
        }
        let _cloning = resolve::locks::lock_for_clone(op, path, op.branches.as_slice()[index].id)?;
        let copies = dirs.own();
        if copies.any() && copies.iter().all(|(_, attr)| attr.nlink == 0) {
            // It has been removed. What may have its path now is another directory.
            return Err(Errno::NOENT);
        }
        if copies.iter().any(|(_, attr)| attr.is_immutable()) {
            return Err(Errno::PERM);
        }
        let shown = resolve::choose::shown(op, Func::Getattr, &copies).map_err(Error::errno)?;
        let list = op.branches.as_slice();
        let clone = |from: usize| clone_path(op, &list[from], &list[index], path, Some(&copies));
        let mut cloned = clone(shown);
        // All copies have the same attributes. Of those that cannot be read, another disk may know.
        for (other, _) in copies.iter().filter(|(other, _)| *other != shown) {
            if cloned.as_ref().is_err_and(|errno| is_illness(*errno)) {
                cloned = clone(other);
            }
        }
        dirs.put(index, cloned?);
    }
    Ok(())
}

/// Calls [`clone_dirs`](relocate::clone_dirs), and updates caches that say that the branch lacks the directories.
/// `copies` are those of the directory, if they are known.
pub(crate) fn clone_path<'b>(
    op: &Op<'_>,
    from: &Branch,
    to: &'b Branch,
    path: &[u8],
    copies: Option<&Copies>,
) -> Result<Dir<'b>, Errno> {
    // A directory's stable id comes from its oldest copy. A clone must not change the id, even if it has the same
    // birth time.
    let fits = |dir: &[u8], copy: &Attr| {
        let opened;
        let copies = match copies.filter(|_| dir == path) {
            Some(copies) => copies,
            None => {
                opened = MergedDir::open(Symlinks::NEVER, &op.branches, dir).own();
                &opened
            }
        };
        let each = || copies.iter().map(|(index, attr)| (&*op.branches.as_slice()[index], attr));
        StableId::of_dir(each().chain([(to, copy)])) == StableId::of_dir(each())
    };
    // Until the caches know of it.
    let _cloning = to.cloning();
    let clone = || relocate::clone_dirs(from.root(), to.root(), path, &fits);
    match to.changes(|| from.reads(clone)) {
        Ok(Cloned { dir, made }) if !made.is_empty() => {
            path_extended(op, to, path, made);
            Ok(dir)
        }
        other => {
            path_created(op, to, path);
            other.map(|cloned| cloned.dir)
        }
    }
}

/// Updates the caches after a directory, and perhaps some of its ancestors, may have been created on a branch.
pub(crate) fn path_created(op: &Op<'_>, branch: &Branch, path: &[u8]) {
    let mut rest = path;
    while !rest.is_empty() {
        let (dir, name) = split(rest);
        resolve::dirs::name_created(op, dir, name, branch.id);
        rest = dir;
    }
    op.dir_cache.places_changed();
}

/// Updates the caches after this thread has created the last directories of a path on a branch, from the top. Other
/// directories keep what is cached of them.
fn path_extended(op: &Op<'_>, branch: &Branch, path: &[u8], made: Vec<OwnedFd>) {
    let Some(index) = op.branches.index_of(branch.id) else { return path_created(op, branch, path) };
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let ends: Vec<usize> = slashes.chain([path.len()]).collect();
    for (&end, made) in ends[ends.len() - made.len()..].iter().zip(made) {
        let (dir, name) = split(&path[..end]);
        resolve::dirs::name_created(op, dir, name, branch.id);
        if let Some(node) = external_changes::known(op).dir(&path[..end]).and_then(|id| op.nodes.get(id).ok())
        {
            op.dir_cache.extend(&node, &op.branches, index, made);
        }
    }
}

/// Returns the mode of a file that is created in a directory: without set-group-ID if the file would get a group that
/// the caller is not in. Before Linux 6.0 the filesystem decides this (fs/inode.c, inode_init_owner), by the daemon's
/// credentials.
pub(crate) fn mode_in(caller: &Caller, dir: BorrowedFd<'_>, mode: u32) -> Result<Mode, Errno> {
    const RUNS_AS_GROUP: u32 = S_ISGID | S_IXGRP;
    let mut mode = mode & 0o7777;
    if mode & RUNS_AS_GROUP == RUNS_AS_GROUP {
        let dir = stat::of(dir)?;
        if dir.mode & S_ISGID != 0 && !caller.gives_group(&dir) {
            mode &= !S_ISGID;
        }
    }
    Ok(Mode::from_raw_mode(mode))
}

/// Checks that a name can be created in a directory.
///
/// Errors: `EEXIST` if a branch holds it already; `ENOENT` if no branch holds the directory; that of a reserved name.
pub(crate) fn must_be_new(dirs: &MergedDir<'_>, name: &[u8], copies: &Copies) -> Result<()> {
    check_not_reserved(name)?;
    dirs.first()?;
    copies.must_be_absent()
}
