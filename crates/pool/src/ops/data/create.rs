//! Creating and opening a file in one request: create and tmpfile.

use super::open::Opened;
use crate::config::Func;
use crate::dir::merged::MergedDir;
use crate::door::Caller;
use crate::node::Node;
use crate::node::open_file::{FileLocation, FileUse, OpenFile};
use crate::node::passthrough::Sharing;
use crate::ops::names::create::mode_in;
use crate::ops::names::lookup::Entry;
use crate::ops::resolve::acl::At;
use crate::paths::Uses;
use crate::pool::Pool;
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_base::path::join;
use canopy_branch::branch::health::OpKind;
use canopy_branch::branch::{Branch, Branches};
use canopy_branch::fs::stat::{self, Attr};
use canopy_policy::Choice;
use canopy_sys::creds;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::Arc;

impl Pool {
    /// Creates a file and opens it. Without `O_EXCL`, opens the file if it exists.
    pub fn create(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        flags: u32,
        kill_suidgid: bool,
    ) -> Result<(Entry, Opened)> {
        let _changes = self.figures.changes();
        let trust = self.cache_trust();
        let _held = self.using(Uses::name(parent, name));
        let branches = self.branches.load();
        let (path, mut dirs) = self.dirs(&branches, parent, trust)?;
        let chosen = match self.room_for(Func::Create, &path, &dirs, name, &[]) {
            Err(Error::Exists) if flags & OFlags::EXCL.bits() == 0 => {
                let entry = self.enter(&branches, parent, &path, &dirs, name)?;
                let node = self.nodes.get(entry.node)?;
                let stays = node.location_lock().try_read();
                let opened = match entry.attr.is_regular() {
                    // ESTALE makes the kernel send an ordinary open, which may wait or detach the node.
                    true if stays.is_none() || self.must_detach(&node, flags) => Err(Error::Stale),
                    true => self
                        .break_created(caller, &node, entry.attr.nlink, flags)
                        .and_then(|()| self.open_node(caller, &branches, &node, flags, kill_suidgid)),
                    false if node.is_dir() => Err(Error::IsDirectory),
                    // Makes the kernel look the name up again and act on its type.
                    false => Err(Error::Stale),
                };
                return match opened {
                    Ok(opened) => Ok((Entry { attr: self.file_attr(&branches, &node)?, ..entry }, opened)),
                    Err(error) => {
                        self.forget(entry.node, 1);
                        Err(error)
                    }
                };
            }
            other => other?,
        };
        let flags = self.branch_flags(flags) - OFlags::TRUNC;
        let create = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (index, fd) = self.open_new(caller, &branches, &mut dirs, (&path, name), &chosen, |dir| {
            rustix::fs::openat(dir, name, create, mode_in(caller, dir, mode)?)
        })?;
        self.dir_cache.admit(fd.as_fd()).inspect_err(|_| {
            // The file is new, and the kernel does not know it yet.
            let _ = dirs.unlink(index, name, AtFlags::empty());
        })?;
        self.begin_generation(fd.as_fd(), &path, name).inspect_err(|_| {
            let _ = dirs.unlink(index, name, AtFlags::empty());
        })?;
        dirs.name_created(name, index);
        let attr = stat::of(fd.as_fd())?;
        let branch = &branches.as_slice()[index];
        let node = self.nodes.hand_out_file(parent, name, branch, attr.key(), false)?;
        self.forget_surplus();
        let path = || join(&path, name);
        self.finish_create(caller, branch, node, fd, flags, attr, path)
    }

    /// Creates a file without a name in a directory (`O_TMPFILE`); link(2) may give it one.
    pub fn tmpfile(&self, caller: &Caller, parent: NodeId, mode: u32, flags: u32) -> Result<(Entry, Opened)> {
        let _changes = self.figures.changes();
        let trust = self.cache_trust();
        let _held = self.using(Uses::node(parent));
        let branches = self.branches.load();
        let (path, mut dirs) = self.dirs(&branches, parent, trust)?;
        dirs.first()?;
        let chosen = self.choose_for_create(Func::Create, &dirs, (&path, b""), &[])?;
        let exclusive = OFlags::from_bits_retain(flags as _) & OFlags::EXCL;
        let flags = self.branch_flags(flags) - OFlags::TRUNC;
        let create = flags | exclusive | OFlags::TMPFILE | OFlags::CLOEXEC;
        let (index, fd) = self.open_new(caller, &branches, &mut dirs, (&path, b""), &chosen, |dir| {
            rustix::fs::openat(dir, c".", create, mode_in(caller, dir, mode)?)
        })?;
        self.dir_cache.admit(fd.as_fd())?;
        let attr = stat::of(fd.as_fd())?;
        let branch = &branches.as_slice()[index];
        let node = self.nodes.hand_out_nameless(branch, attr.key());
        self.finish_create(caller, branch, node, fd, flags, attr, Default::default)
    }

    /// Creates a file on the first chosen branch or, if that is full or fails, on the next one the policy picks.
    fn open_new<'b>(
        &self,
        caller: &Caller,
        branches: &'b Branches,
        dirs: &mut MergedDir<'b>,
        (path, name): (&[u8], &[u8]),
        chosen: &Choice,
        make: impl Fn(BorrowedFd<'_>) -> Result<OwnedFd, Errno>,
    ) -> Result<(usize, OwnedFd)> {
        let mut index = *chosen.first().ok_or(Error::Absent)?;
        let mut full = SmallVec::new();
        loop {
            let made = self.bring_dir(branches, dirs, index, path).and_then(|()| {
                let _as_caller = creds::assume(caller.uid, caller.gid, caller.umask)?;
                make(dirs.get(index).ok_or(Errno::NOENT)?)
            });
            let made = made.map_err(|errno| branches[index].record_error(errno, OpKind::Change));
            match made {
                Ok(fd) => return Ok((index, fd)),
                Err(errno)
                    if self.tries_elsewhere(errno, Func::Create, dirs, (path, name), &[index], &mut full) =>
                {
                    let next = self.choose_for_create(Func::Create, dirs, (path, name), &full)?;
                    index = *next.first().ok_or(Error::Absent)?;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn finish_create(
        &self,
        caller: &Caller,
        branch: &Arc<Branch>,
        node: Arc<Node>,
        fd: OwnedFd,
        flags: OFlags,
        attr: Attr,
        path: impl FnOnce() -> canopy_base::path::PoolPath,
    ) -> Result<(Entry, Opened)> {
        let fd = Arc::new(fd);
        let (open, sharing, room) = {
            let mut slot = node.open().lock();
            let (backing, room) = self.register(branch, &fd, flags, &attr);
            let sharing = Sharing::First { backing: backing.as_ref().map(|file| file.id()) };
            let place = FileLocation::new(branch.clone(), fd.clone(), None);
            let open = FileUse::new(Arc::new(OpenFile::new(
                &node,
                place,
                backing,
                self.dir_cache.idle_files.begin(),
            )));
            *slot = Arc::downgrade(&open);
            (open, sharing, room)
        };
        let shown = match self.config().inode.uses_path(false) {
            true => self.show(&node, branch, &path(), attr, At::Opened(fd.as_fd())),
            false => self.show(&node, branch, b"", attr, At::Opened(fd.as_fd())),
        };
        let entry = Entry::new(&node, shown);
        let opened = self.opened(caller, &node, (fd, branch.traffic), flags, open, sharing, room, false)?;
        Ok((entry, opened))
    }
}
