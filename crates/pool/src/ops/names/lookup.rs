//! The operations lookup, forget, getattr, access and readlink.

use crate::config::Func;
use crate::dir::merged::{Copies, MergedDir, Trust};
use crate::dir::symlinks::Symlinks;
use crate::export::StableId;
use crate::node::{Node, Orphan};
use crate::ops::resolve::acl::At;
use crate::ops::resolve::places::open_as;
use crate::ops::resolve::{is_absent, on_branch};
use crate::paths::Uses;
use crate::pool::Pool;
use canopy_base::error::{Error, Result};
use canopy_base::ids::{HandleId, NodeId};
use canopy_base::path::join;
use canopy_branch::branch::Branches;
use canopy_branch::branch::health::OpKind;
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

impl Pool {
    /// Looks up a name, and hands the kernel a reference to its node. NFS export looks up `.` and `..`.
    ///
    /// Errors: `ENOENT` if no branch holds the name; `ESTALE` if the directory's node is unknown; the error of a branch
    /// that could not answer.
    pub fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry> {
        match name {
            b"." => return self.lookup_again(parent),
            b".." => return self.lookup_again(self.nodes.parent(parent)?),
            _ if is_reserved(name) => return Err(Error::Absent),
            _ => {}
        }
        let trust = self.cache_trust();
        let _held = self.using(Uses::name(parent, name));
        let branches = self.branches.load();
        let (path, dirs) = self.dirs(&branches, parent, trust)?;
        self.enter(&branches, parent, &path, &dirs, name)
    }

    fn lookup_again(&self, id: NodeId) -> Result<Entry> {
        // The node may be gone already: the kernel may have just dropped its last reference.
        let Ok(node) = self.nodes.hand_out_again(id) else { return self.find(id) };
        let found = match self.getattr(id, None) {
            // No process has the file open, or the kernel would not send this request.
            Ok(attr) if attr.nlink == 0 => Err(Error::Stale),
            other => other,
        };
        found.map(|attr| Entry::new(&node, attr)).inspect_err(|_| self.forget(id, 1))
    }

    /// Drops `count` of the kernel's references to a node.
    pub fn forget(&self, node: NodeId, count: u64) {
        self.nodes.forget(node, count, |gone| self.dir_cache.idle_files.close(gone));
        self.dir_cache.compact_order();
    }

    /// Looks up a name in an open directory, and hands the kernel a reference to its node.
    pub(crate) fn enter(
        &self,
        branches: &Branches,
        parent: NodeId,
        path: &[u8],
        dirs: &MergedDir<'_>,
        name: &[u8],
    ) -> Result<Entry> {
        self.enter_as(branches, parent, path, dirs, name, None)
    }

    /// As `enter`. `dir` is the stable id for a directory that has no node yet.
    pub(crate) fn enter_as(
        &self,
        branches: &Branches,
        parent: NodeId,
        path: &[u8],
        dirs: &MergedDir<'_>,
        name: &[u8],
        dir: Option<StableId>,
    ) -> Result<Entry> {
        let mut tries = 0;
        loop {
            let copies = self.look(Func::Getattr, dirs, name);
            let index = match self.shown(Func::Getattr, branches, &copies) {
                Ok(index) => self.open_copy(parent, name, &copies).unwrap_or(index),
                // Leaves the table as it is: a name that is being created or moved concurrently must not lose its node to
                // an older answer. A name that was removed outside the pool does no harm there.
                Err(error) if is_absent(error) => return Err(Error::Absent),
                Err(error) => return Err(error),
            };
            let entry = self.entry(branches, parent, path, dirs, name, &copies, index, dir)?;
            tries += 1;
            if !self.replaced.are_kept()
                || tries > KEEP_TRIES
                || self.keep(branches, dirs, name, &copies, index)
            {
                return Ok(entry);
            }
            self.forget(entry.node, 1);
        }
    }

    /// Keeps a file that was found under a name for the operation that follows. Returns false if the name leads to another
    /// file by now.
    fn keep(
        &self,
        branches: &Branches,
        dirs: &MergedDir<'_>,
        name: &[u8],
        copies: &Copies,
        index: usize,
    ) -> bool {
        let Some((attr, dir)) = copies.get(index).zip(dirs.get(index)) else { return true };
        if attr.is_dir() {
            return true;
        }
        let found = open_as(dir, name, attr.key(), OFlags::PATH);
        let thread = self.kernel.load().caller_thread();
        found
            .map(|(fd, _)| {
                self.replaced.keep(thread, attr.key(), Orphan { branch: branches[index].clone(), fd });
            })
            .is_some()
    }

    /// Returns which of several copies of a file is open under this name. While one is open, the name must lead to it,
    /// even if the policy would now choose another.
    fn open_copy(&self, parent: NodeId, name: &[u8], copies: &Copies) -> Option<usize> {
        if copies.count() < 2 {
            return None;
        }
        let node = self.nodes.child(parent, name)?;
        let key = node.key()?;
        node.opened()?;
        // A copy that is out of date is not shown, whoever has it open.
        let is_it = |(index, attr): &(usize, &Attr)| attr.key() == key && copies.is_current(*index);
        copies.iter().find(is_it).map(|(index, _)| index)
    }

    /// Returns the entry for the copy at `index`, which the policy chose.
    #[allow(clippy::too_many_arguments)]
    fn entry(
        &self,
        branches: &Branches,
        parent: NodeId,
        path: &[u8],
        dirs: &MergedDir<'_>,
        name: &[u8],
        copies: &Copies,
        index: usize,
        dir: Option<StableId>,
    ) -> Result<Entry> {
        let attr = *copies.get(index).ok_or(Error::Absent)?;
        let branch = &branches.as_slice()[index];
        let (node, attr) = if attr.is_dir() {
            let each = || copies.iter().map(|(index, attr)| (&*branches.as_slice()[index], attr));
            let ino = self.dir_number(&join(path, name), (branch, &attr), each());
            let lasting = || dir.or_else(|| StableId::of_dir(each()));
            (self.nodes.give_out_dir(parent, name, ino, lasting)?, copies.merge_dir(attr))
        } else {
            let symlinkified = copies.follow.shows_as_symlink(&attr);
            let inherited = dirs.get(index).and_then(|dir| self.inherited_number(parent, dir, name, &attr));
            let node = self.nodes.hand_out_file(parent, name, branch, attr.key(), symlinkified)?;
            if let Some(number) = inherited.filter(|_| node.kept_number() == 0) {
                self.nodes.number_known(&node, number);
            }
            self.tidy_names(branches, &node, attr.nlink);
            (node, attr)
        };
        self.forget_surplus();
        let at = At::Named(dirs.follow, dirs.get(index).ok_or(Error::Absent)?, name);
        let attr = match self.needs_path(&node) && !attr.is_dir() {
            true => self.show(&node, branch, &join(path, name), attr, at),
            false => self.show(&node, branch, b"", attr, at),
        };
        self.remember_number(&node, copies, attr.ino);
        Ok(Entry::new(&node, attr))
    }

    /// Asks the kernel to forget nodes if more are known than may be.
    pub(crate) fn forget_surplus(&self) {
        let surplus = self.nodes.surplus();
        if !surplus.is_empty() {
            self.kernel.load().forget_unused(&surplus);
        }
    }

    /// Returns the attributes of a node, or of an open file if a handle is given.
    pub fn getattr(&self, id: NodeId, handle: Option<HandleId>) -> Result<Attr> {
        if let Some(handle) = handle.and_then(|h| self.files.get(h).ok()) {
            let _held = self.using(Uses::node(handle.node.id));
            let fd = handle.fd();
            let attr = stat::of(fd.as_fd()).map_err(|errno| handle.record_error(errno, OpKind::Read))?;
            let at = At::Opened(fd.as_fd());
            return Ok(self.show_file(&handle.node, &handle.open.location().branch, attr, at));
        }
        let node = self.nodes.get(id)?;
        // What is remembered of a directory's copies is valid only as far as changes have been processed.
        let exact = self.dir_cache.has_many_copies(&node).then(|| self.cache_trust()).flatten();
        let trust = exact.or_else(|| self.trust_to_read(&node));
        let _held = self.using(Uses::node(id));
        let branches = self.branches.load();
        match node.is_dir() {
            true => self.dir_attr(&branches, &node, trust, exact.is_some()),
            false => {
                self.look_for_mapping(&branches, &node);
                let found = self.file_attr(&branches, &node);
                self.or_elsewhere(&branches, &node, found)
            }
        }
    }

    /// Returns the attributes of a file, as `getattr` does. Returns `None` if the file would have to be searched for on
    /// more than `most` branches.
    pub fn attr_at_hand(&self, id: NodeId, most: usize) -> Option<Result<Attr>> {
        let node = match self.nodes.get(id) {
            Ok(node) => node,
            Err(error) => return Some(Err(error)),
        };
        let _held = self.using(Uses::node(id));
        let branches = self.branches.load();
        let searches = |key: FileKey| match branches.iter().filter(|branch| branch.dev == key.dev).count() {
            0 => branches.len(),
            count => count,
        };
        if let Some(attr) = self.hinted_attr(&branches, &node) {
            return Some(Ok(attr));
        }
        (node.opened().is_some() || node.key().is_some_and(|key| searches(key) <= most)).then(|| {
            let found = self.file_attr(&branches, &node);
            self.or_elsewhere(&branches, &node, found)
        })
    }

    /// Returns the attributes of a file that is not open, if its cached directory leads to it.
    fn hinted_attr(&self, branches: &Branches, node: &Arc<Node>) -> Option<Attr> {
        if node.opened().is_some() {
            return None;
        }
        self.via_cached_parent(branches, node, |_, branch, dir, name, key| {
            let attr = stat::at(dir, name).ok().filter(|attr| attr.key() == key)?;
            Some(self.show_file(node, branch, attr, At::Named(Symlinks::NEVER, dir, name)))
        })
    }

    pub(crate) fn file_attr(&self, branches: &Branches, node: &Arc<Node>) -> Result<Attr> {
        if let Some(attr) = self.hinted_attr(branches, node) {
            return Ok(attr);
        }
        let primary = self.primary(branches, node)?;
        Ok(self.show_file(node, &primary.branch, primary.attr, At::Opened(primary.fd.as_fd())))
    }

    /// Returns the attributes of a directory. `remembered`: those of its copies may be remembered ones.
    pub(crate) fn dir_attr(
        &self,
        branches: &Branches,
        node: &Arc<Node>,
        trust: Trust,
        remembered: bool,
    ) -> Result<Attr> {
        if let (_, Some(path)) = self.nodes.locate(node.id)? {
            let path = path.as_slice();
            let dirs = self.dirs_of(branches, node.clone(), path, trust);
            let copies = if remembered { dirs.own_remembered() } else { dirs.own() };
            match self.shown(Func::Getattr, branches, &copies) {
                Ok(index) => {
                    let attr = copies.merge_dir(*copies.get(index).ok_or(Error::Absent)?);
                    let at = At::Directory(dirs.get(index).ok_or(Error::Absent)?);
                    return Ok(self.show(node, &branches.as_slice()[index], path, attr, at));
                }
                Err(_) if node.id == NodeId::ROOT => return Ok(rootless(self.number_of(node))),
                Err(error) if !is_absent(error) => return Err(error),
                Err(_) => {}
            }
        }
        let orphan = node.orphan().ok_or(Error::Stale)?;
        let attr = stat::of(orphan.fd.as_fd())?;
        Ok(self.show(node, &orphan.branch, b"", attr, At::Opened(orphan.fd.as_fd())))
    }

    /// Answers access(2) where the kernel does not check permissions itself: checks the daemon's access to the copy
    /// that `func.access` chooses. `mask` consists of `R_OK`, `W_OK` and `X_OK`.
    ///
    /// Errors: `EACCES` for executing a file without any execute bit; `EROFS`; `EPERM` for writing an immutable file.
    pub fn access(&self, id: NodeId, mask: u32) -> Result<()> {
        let mask = Access::from_bits(mask).ok_or(Error::Invalid)?;
        let node = self.nodes.get(id)?;
        let trust = self.trust_to_choose(Func::Access, &node);
        let _held = self.using(Uses::node(id));
        let branches = self.branches.load();
        let may = |fd: BorrowedFd<'_>| {
            rustix::fs::accessat(rustix::fs::CWD, ProcPath::of(fd).as_bytes(), mask, AtFlags::EACCESS)
        };
        if node.is_dir() {
            return self.ask_dir(&branches, &node, trust, Func::Access, may);
        }
        let chosen = self.chosen(Func::Access, &branches, &node, trust, |attr| !attr.is_dir())?;
        Ok(may(chosen.fd.as_fd()).map_err(|errno| chosen.branch.record_error(errno, OpKind::Read))?)
    }

    /// Returns the target of a symlink.
    pub fn readlink(&self, id: NodeId) -> Result<Vec<u8>> {
        let node = self.nodes.get(id)?;
        if let Some(key) = node.key() {
            self.last_opens.put(key, self.kernel.load().caller_thread());
        }
        let trust = self.trust_to_choose(Func::Readlink, &node);
        let _held = self.using(Uses::node(id));
        let branches = self.branches.load();
        if !node.is_symlinkified() && self.acts_on_own_file(Func::Readlink, &branches) {
            let target = self.via_cached_parent(&branches, &node, |_, branch, dir, name, key| {
                let target = branch.read_link_at(dir, name)?;
                // Afterwards: until here, the name may have come to lead to another file.
                stat::at(dir, name).ok().filter(|attr| attr.key() == key).map(|_| target)
            });
            if let Some(target) = target {
                return Ok(target.into_bytes());
            }
        }
        let chosen = self.chosen(Func::Readlink, &branches, &node, trust, |attr| {
            node.is_symlinkified() && !attr.is_dir() || attr.is_symlink()
        })?;
        if node.is_symlinkified() {
            return Ok(on_branch(&chosen.branch, &self.a_path(&node).ok_or(Error::Stale)?));
        }
        let target = chosen.branch.read_link(chosen.fd.as_fd());
        Ok(target.map_err(|errno| chosen.branch.record_error(errno, OpKind::Read))?.into_bytes())
    }
}

/// Returns attributes for the root if no branch has one, so that stat(2) and umount(8) still work on the mountpoint.
fn rootless(ino: u64) -> Attr {
    Attr { ino, mode: S_IFDIR | 0o755, nlink: 2, blksize: 512, ..Attr::default() }
}
