//! Making and removing names: mkdir, mknod, symlink, unlink, rmdir.

use super::lookup::Entry;
use crate::branch::health::Deed;
use crate::branch::{Branch, Branches};
use crate::config::{FollowSymlinks, Func};
use crate::dir::merged::{Copies, Dirs};
use crate::dir::symlinks::Follow;
use crate::error::{Error, Result, is_full, is_illness};
use crate::export::Lasting;
use crate::fs::beneath::Dir;
use crate::fs::reserved::{is_reserved, may_be_made};
use crate::fs::stat::{self, Attr, S_ISGID, S_IXGRP, Time};
use crate::ids::{Caller, NodeId};
use crate::node::{Node, Orphan};
use crate::ops::aggregate;
use crate::path::split;
use crate::pool::Pool;
use crate::relocate;
use canopy_sys::creds;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::mem::MaybeUninit;
use std::sync::Arc;

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
        let belief = self.belief();
        let _held = self.tree.shared();
        let branches = self.branches.load();
        let (path, mut dirs) = self.dirs(&branches, parent, belief)?;
        self.make_in(caller, func, &branches, &path, &mut dirs, name, act)?;
        // What was made is all there is: no other branch held the name. A symlink is told as one, whatever it
        // leads to: the kernel insists.
        dirs.follow = Follow::NEVER;
        self.enter(&branches, parent, &path, &dirs, name)
    }

    /// Makes a name in a directory, on the branches that `func` chooses.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn make_in<'b>(
        &self,
        caller: &Caller,
        func: Func,
        branches: &'b Branches,
        path: &[u8],
        dirs: &mut Dirs<'b>,
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
                results.push(made.map_err(|errno| branches[index].notice(errno, Deed::Changing)));
                dirs.came(name, index);
            }
            if func == Func::Mkdir && chosen.len() > 1 {
                // Somebody may have found it when not all had it.
                self.memory.places_changed();
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
        dirs: &Dirs<'_>,
        path: &[u8],
        chosen: &[usize],
        full: &mut SmallVec<[usize; 4]>,
    ) -> bool {
        let moves = is_full(errno) && self.config().move_when_full.0.is_some();
        if !moves && !is_illness(errno) {
            return false;
        }
        full.extend_from_slice(chosen);
        self.placed(func, dirs, path, full).is_ok()
    }

    /// Where a new name goes. Errors when a branch holds it already, or the directory is on none.
    pub(crate) fn room_for(
        &self,
        func: Func,
        path: &[u8],
        dirs: &Dirs<'_>,
        name: &[u8],
        full: &[usize],
    ) -> Result<crate::policy::Choice> {
        must_be_new(dirs, name, &dirs.copies(name))?;
        self.placed(func, dirs, path, full)
    }

    /// Clones a directory onto a branch that lacks it, to make something in it.
    ///
    /// Errors: `EPERM` for an immutable directory, since nothing may be made in it. The clone itself would not
    /// refuse: it is made without that flag.
    pub(crate) fn bring_dir<'b>(
        &self,
        branches: &'b Branches,
        dirs: &mut Dirs<'b>,
        index: usize,
        path: &[u8],
    ) -> Result<(), Errno> {
        if dirs.lacks(index) {
            if dirs.by_link {
                // A clone of what a symlink leads to is not what it leads to.
                return Err(Errno::XDEV);
            }
            let _cloning = self.clone_alone(path, branches.as_slice()[index].id)?;
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
            let copies = Dirs::open(Follow::NEVER, branches, dir).own();
            let each = || copies.iter().map(|(index, attr)| (&*branches.as_slice()[index], attr));
            Lasting::of_dir(each().chain([(to, copy)])) == Lasting::of_dir(each())
        };
        let cloned = relocate::clone_dirs(from.root(), to.root(), path, &fits);
        self.path_came(to, path);
        cloned.map_err(|errno| to.notice(from.notice(errno, Deed::Looking), Deed::Changing))
    }

    /// A directory, and perhaps some above it, may have been made on a branch.
    pub(crate) fn path_came(&self, branch: &Branch, path: &[u8]) {
        let mut rest = path;
        while !rest.is_empty() {
            let (dir, name) = split(rest);
            self.came(dir, name, branch.id);
            rest = dir;
        }
        self.memory.places_changed();
    }

    /// Removes a name from every branch that the policy chooses; errors when it would come back.
    pub fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        let belief = self.belief();
        let _held = self.tree.shared();
        let branches = self.branches.load();
        let (_, dirs) = self.dirs(&branches, parent, belief)?;
        if is_reserved(name) {
            return Err(Error::Absent);
        }
        let copies = dirs.copies(name);
        let shown = self.shown(Func::Getattr, &branches, &copies)?;
        if copies.get(shown).is_some_and(Attr::is_dir) {
            return Err(Error::IsDirectory);
        }
        let chosen = self.acted(Func::Unlink, &branches, &copies)?;
        self.all_removable(&branches, std::iter::once(&copies))?;
        let victim = self.pin_victim(&branches, parent, name, &dirs, &copies);
        // From the back: should one fail, the copies that were shown before are shown still.
        for &index in chosen.iter().rev() {
            if copies.get(index).is_some_and(Attr::is_dir) {
                // Hidden behind the file until now; not a copy of it.
                continue;
            }
            dirs.unlink(index, name, AtFlags::empty())?;
        }
        self.removed(parent, name, victim);
        Ok(())
    }

    /// Removes a directory that is empty on all branches.
    pub fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        let belief = self.belief();
        let _held = self.tree.shared();
        let branches = self.branches.load();
        let (path, dirs) = self.dirs(&branches, parent, belief)?;
        if is_reserved(name) {
            return Err(Error::Absent);
        }
        let copies = dirs.copies(name);
        let shown = self.shown(Func::Getattr, &branches, &copies)?;
        if !copies.get(shown).is_some_and(Attr::is_dir) {
            return Err(Error::NotDirectory);
        }
        let chosen = self.acted(Func::Rmdir, &branches, &copies)?;
        self.all_removable(&branches, std::iter::once(&copies))?;
        self.all_empty(&dirs, &copies, name)?;
        let is_link = |index: usize| {
            dirs.get(index).is_some_and(|dir| stat::at(dir, name).is_ok_and(|attr| attr.is_symlink()))
        };
        // Before it goes: nobody who still holds it may find it neither by its name nor pinned.
        let victim =
            self.pin_victim(&branches, parent, name, &dirs, &copies).map(|victim| self.orphan(victim, false));
        let mut gone: SmallVec<[usize; 4]> = SmallVec::new();
        for &index in chosen.iter().rev() {
            if !copies.get(index).is_some_and(Attr::is_dir) {
                continue;
            }
            // Of a symlink that is followed, the link goes.
            let flags = if is_link(index) { AtFlags::empty() } else { AtFlags::REMOVEDIR };
            if let Err(errno) = dirs.unlink(index, name, flags)
                && errno != Errno::NOENT
            {
                // Filled behind our back, or busy: put back what is gone already.
                let full = crate::path::join(&path, name);
                for &back in &gone {
                    let list = branches.as_slice();
                    let _ = self.clone_path(&branches, &list[index], &list[back], &full);
                }
                if let Some(node) = victim {
                    self.settle(&node);
                }
                return Err(errno.into());
            }
            gone.push(index);
        }
        if let Some(node) = victim {
            let kept_open = node.memory.lock().take();
            drop(kept_open);
        }
        self.nodes.name_removed(parent, name);
        Ok(())
    }

    /// Errors when a branch holds entries in the directory: what the branch says to its removal, which something else may
    /// forbid besides. What a crash left in it is swept away: nobody could see it, nor remove it.
    pub(crate) fn all_empty(&self, dirs: &Dirs<'_>, copies: &Copies, name: &[u8]) -> Result<()> {
        let mut leftovers: SmallVec<[OwnedFd; 1]> = SmallVec::new();
        for (index, _) in copies.iter().filter(|(_, attr)| attr.is_dir()) {
            let dir = dirs.get(index).ok_or(Error::Absent)?;
            let inside = match stat::at(dir, name) {
                Ok(attr) if attr.is_symlink() => continue,
                found => found.and_then(|_| contents(dir, name)),
            };
            match inside.map_err(|errno| dirs.branches[index].notice(errno, Deed::Looking))? {
                Contents::Nothing => {}
                Contents::Leftovers(dir) => leftovers.push(dir),
                // If somebody has emptied it meanwhile, it goes.
                Contents::Entries => dirs.unlink(index, name, AtFlags::REMOVEDIR)?,
            }
        }
        // Only now: where there is a directory to be cloned from, a clone may be under construction.
        leftovers.iter().for_each(|dir| relocate::sweep(dir.as_fd()));
        Ok(())
    }

    /// The node that is about to lose a name, pinned: whoever still holds it can go on asking about it.
    pub(crate) fn pin_victim(
        &self,
        branches: &Branches,
        parent: NodeId,
        name: &[u8],
        dirs: &Dirs<'_>,
        copies: &Copies,
    ) -> Option<Victim> {
        let node = self.nodes.child(parent, name)?;
        let found = match node.key() {
            Some(key) => copies.iter().find(|(_, attr)| attr.key() == key),
            None => {
                let finds = |(index, attr): &(usize, &Attr)| {
                    Lasting::of(&branches.as_slice()[*index], attr.key()).is_some_and(|it| it.id == node.id)
                };
                // The copy by which the directory would be found again.
                copies.iter().find(finds).or_else(|| copies.iter().find(|(_, attr)| attr.is_dir()))
            }
        };
        let (index, attr) = found?;
        let fd = dirs.follow.pin(dirs.get(index)?, name).ok()?;
        let last = copies.count() == 1 && attr.nlink == 1;
        let orphan = Orphan { branch: branches.as_slice()[index].clone(), fd };
        Some(Victim { node, orphan, birth: attr.btime, last })
    }

    /// The name is gone from the branches.
    pub(crate) fn removed(&self, parent: NodeId, name: &[u8], victim: Option<Victim>) {
        let gone = victim.map(|victim| self.orphan(victim, true));
        self.nodes.name_removed(parent, name);
        if let Some(node) = gone {
            self.settle(&node);
        }
    }

    /// Leaves the pinned file with its node, before the table hears of it: somebody may ask in between. `removed`: the
    /// name has gone from the branches.
    pub(crate) fn orphan(&self, victim: Victim, removed: bool) -> Arc<Node> {
        let Victim { node, orphan, birth, last } = victim;
        let gone = last && removed || stat::of(orphan.fd.as_fd()).is_ok_and(|attr| attr.nlink == 0);
        if let (true, Some(key)) = (gone, node.key()) {
            self.nodes.file_gone(key);
        }
        let orphan = Arc::new(orphan);
        if gone || node.is_dir() {
            self.newborn.gone(birth, || orphan.clone());
        }
        *node.orphan.lock() = Some(orphan);
        self.memory.kept.close(&node);
        node
    }

    /// After the name went: a node that has other names needs no pin. A file without any link has none,
    /// whatever a lookup that was under way has put into the table.
    pub(crate) fn settle(&self, node: &Node) {
        if self.nodes.names(node.id).next().is_none() {
            return;
        }
        let mut orphan = node.orphan.lock();
        let has_links = |orphan: &Arc<Orphan>| stat::of(orphan.fd.as_fd()).is_ok_and(|attr| attr.nlink > 0);
        let unneeded = if orphan.as_ref().is_some_and(has_links) { orphan.take() } else { None };
        drop(orphan);
        drop(unneeded);
    }
}

/// A node that is about to lose a name.
pub(crate) struct Victim {
    node: Arc<Node>,
    orphan: Orphan,
    birth: Time,
    /// It was the only name of the only copy.
    last: bool,
}

enum Contents {
    Nothing,
    /// Nothing but what a crash left of cloned directories.
    Leftovers(OwnedFd),
    Entries,
}

fn contents(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Contents, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(fd.as_fd(), &mut buffer);
    let mut leftovers = false;
    while let Some(entry) = entries.next() {
        match entry?.file_name().to_bytes() {
            b"." | b".." => {}
            name if is_reserved(name) => leftovers = true,
            _ => return Ok(Contents::Entries),
        }
    }
    Ok(if leftovers { Contents::Leftovers(fd) } else { Contents::Nothing })
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
pub(crate) fn must_be_new(dirs: &Dirs<'_>, name: &[u8], copies: &Copies) -> Result<()> {
    may_be_made(name)?;
    dirs.first()?;
    copies.must_be_absent()
}
