//! Making names: mkdir, mknod, symlink, and the directories above them on a branch.

use super::lookup::Entry;
use crate::branch::health::OpKind;
use crate::branch::{Branch, Branches};
use crate::config::{FollowSymlinks, Func};
use crate::dir::merged::{Copies, MergedDir};
use crate::dir::symlinks::Symlinks;
use crate::error::{Error, Result, is_full, is_illness};
use crate::export::StableId;
use crate::fs::beneath::Dir;
use crate::fs::reserved::check_not_reserved;
use crate::fs::stat::{self, Attr, S_ISGID, S_IXGRP};
use crate::ids::{Caller, NodeId};
use crate::ops::aggregate;
use crate::path::split;
use crate::pool::Pool;
use crate::relocate;
use canopy_sys::creds;
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use smallvec::SmallVec;

impl Pool {
    pub fn mkdir(&self, caller: &Caller, parent: NodeId, name: &[u8], mode: u32) -> Result<Entry> {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        self.make(caller, Func::Mkdir, parent, name, |dir| rustix::fs::mkdirat(dir, name, mode))
    }

    /// `mode` holds the type; `device` is major and minor.
    pub fn mknod(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        (major, minor): (u32, u32),
    ) -> Result<Entry> {
        let kind = FileType::from_raw_mode(mode);
        // A regular file is a regular file, however it is made.
        let func = if kind == FileType::RegularFile { Func::Create } else { Func::Mknod };
        let device = rustix::fs::makedev(major, minor);
        self.make(caller, func, parent, name, |dir| {
            rustix::fs::mknodat(dir, name, kind, mode_in(caller, dir, mode)?, device)
        })
    }

    pub fn symlink(&self, caller: &Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry> {
        let act = |dir: BorrowedFd<'_>| rustix::fs::symlinkat(target, dir, name);
        let following = self.config().follow_symlinks != FollowSymlinks::Never;
        let entry = self.make(caller, Func::Symlink, parent, name, act)?;
        Ok(Entry { brief: following, ..entry })
    }

    fn make(
        &self,
        caller: &Caller,
        func: Func,
        parent: NodeId,
        name: &[u8],
        act: impl Fn(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<Entry> {
        let trust = self.cache_trust();
        let _held = self.tree.shared();
        let branches = self.branches.load();
        let (path, mut dirs) = self.dirs(&branches, parent, trust)?;
        self.make_on_branches(caller, func, &branches, &path, &mut dirs, name, act)?;
        // What was made is all there is: no other branch held the name. A symlink is told as one, whatever it
        // leads to: the kernel insists.
        dirs.follow = Symlinks::NEVER;
        self.enter(&branches, parent, &path, &dirs, name)
    }

    /// Makes a name in a directory, on the branches that `func` chooses.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn make_on_branches<'b>(
        &self,
        caller: &Caller,
        func: Func,
        branches: &'b Branches,
        path: &[u8],
        dirs: &mut MergedDir<'b>,
        name: &[u8],
        act: impl Fn(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<()> {
        let mut full: SmallVec<[usize; 4]> = SmallVec::new();
        loop {
            let chosen = self.room_for(func, path, dirs, name, &full)?;
            let mut results: SmallVec<[aggregate::Outcome; 2]> = SmallVec::new();
            for &index in &chosen {
                let made = self.bring_dir(branches, dirs, index, path).and_then(|()| {
                    let _as_caller = creds::assume(caller.uid, caller.gid, caller.umask)?;
                    act(dirs.get(index).ok_or(Errno::NOENT)?)
                });
                results.push(made.map_err(|errno| branches[index].record_error(errno, OpKind::Change)));
                dirs.name_created(name, index);
            }
            if func == Func::Mkdir && chosen.len() > 1 {
                // Somebody may have found it when not all had it.
                self.dir_cache.places_changed();
            }
            match aggregate::any_success(&results) {
                Err(errno) if self.tries_elsewhere(errno, func, dirs, path, &chosen, &mut full) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Something new has met a branch that is full, or fails: is there another one that the policy would give? Then
    /// `full` holds those that it has given already.
    pub(crate) fn tries_elsewhere(
        &self,
        errno: Errno,
        func: Func,
        dirs: &MergedDir<'_>,
        path: &[u8],
        chosen: &[usize],
        full: &mut SmallVec<[usize; 4]>,
    ) -> bool {
        let moves = is_full(errno) && self.config().move_when_full.0.is_some();
        if !moves && !is_illness(errno) {
            return false;
        }
        full.extend_from_slice(chosen);
        self.choose_for_create(func, dirs, path, full).is_ok()
    }

    /// Where a new name goes. Errors when a branch holds it already, or the directory is on none.
    pub(crate) fn room_for(
        &self,
        func: Func,
        path: &[u8],
        dirs: &MergedDir<'_>,
        name: &[u8],
        full: &[usize],
    ) -> Result<crate::policy::Choice> {
        must_be_new(dirs, name, &dirs.copies(name))?;
        self.choose_for_create(func, dirs, path, full)
    }

    /// Clones a directory onto a branch that lacks it, to make something in it.
    ///
    /// Errors: `EPERM` for an immutable directory, since nothing may be made in it. The clone itself would not
    /// refuse: it is made without that flag.
    pub(crate) fn bring_dir<'b>(
        &self,
        branches: &'b Branches,
        dirs: &mut MergedDir<'b>,
        index: usize,
        path: &[u8],
    ) -> Result<(), Errno> {
        if dirs.lacks(index) {
            if dirs.by_link {
                // A clone of what a symlink leads to is not what it leads to.
                return Err(Errno::XDEV);
            }
            let _cloning = self.lock_for_clone(path, branches.as_slice()[index].id)?;
            let copies = dirs.own();
            if copies.iter().any(|(_, attr)| attr.is_immutable()) {
                return Err(Errno::PERM);
            }
            let from = self.shown(Func::Getattr, branches, &copies).map_err(Error::errno)?;
            let list = branches.as_slice();
            dirs.put(index, self.clone_path(branches, &list[from], &list[index], path)?);
        }
        Ok(())
    }

    /// [`clone_dirs`](relocate::clone_dirs), told to whoever remembers that the branch lacks them.
    pub(crate) fn clone_path<'b>(
        &self,
        branches: &Branches,
        from: &Branch,
        to: &'b Branch,
        path: &[u8],
    ) -> Result<Dir<'b>, Errno> {
        // A directory is found again by its oldest copy, also if this one is no younger.
        let fits = |dir: &[u8], copy: &Attr| {
            let copies = MergedDir::open(Symlinks::NEVER, branches, dir).own();
            let each = || copies.iter().map(|(index, attr)| (&*branches.as_slice()[index], attr));
            StableId::of_dir(each().chain([(to, copy)])) == StableId::of_dir(each())
        };
        let cloned = relocate::clone_dirs(from.root(), to.root(), path, &fits);
        self.path_created(to, path);
        cloned.map_err(|errno| to.record_error(from.record_error(errno, OpKind::Read), OpKind::Change))
    }

    /// A directory, and perhaps some above it, may have been made on a branch.
    pub(crate) fn path_created(&self, branch: &Branch, path: &[u8]) {
        let mut rest = path;
        while !rest.is_empty() {
            let (dir, name) = split(rest);
            self.name_created(dir, name, branch.id);
            rest = dir;
        }
        self.dir_cache.places_changed();
    }
}

/// The mode of a file that is made in a directory: without set-group-ID where that would be for a group its maker is
/// not in. Before Linux 6.0 the kernel leaves it to the filesystem (fs/inode.c inode_init_owner), which judges the daemon.
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

/// Errors for a name that cannot be made in this directory: a branch holds it already, or it is the pool's own.
pub(crate) fn must_be_new(dirs: &MergedDir<'_>, name: &[u8], copies: &Copies) -> Result<()> {
    check_not_reserved(name)?;
    dirs.first()?;
    copies.must_be_absent()
}
