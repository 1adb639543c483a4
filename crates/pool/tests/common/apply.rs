//! Applying the operations of the reference model to a pool as the kernel does.

use super::client::{Answer, CALLER, Client, OpenedFile};
use canopy_base::error::Error;
use canopy_base::ids::{HandleId, NodeId};
use canopy_branch::fs::stat::{Attr, Time};
use canopy_pool::ops;
use canopy_pool::{Entry, RenameKind, SetAttr, SetTime, WriteKind};
use canopy_testkit::Tree;
use canopy_testkit::model::{
    Access, Change, Create, On, Op, Outcome, RenameHow, Reserve, Shown, Subject, Whence, XattrHow,
    is_explicit, pattern,
};
use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;

fn answer<T>(result: canopy_base::error::Result<T>) -> Answer<T> {
    result.map_err(Error::errno)
}

impl Subject for Client {
    fn apply(&mut self, op: &Op) -> Outcome {
        self.choose_by(&format!("{op:?}"));
        self.try_apply(op).into()
    }

    fn capture(&mut self) -> Result<Tree, String> {
        self.tree()
    }

    fn finish(&mut self) -> Result<(), String> {
        self.end()
    }
}

impl Client {
    fn try_apply(&mut self, op: &Op) -> Answer<Outcome> {
        match *op {
            Op::Mkdir { path, mode } => {
                self.make(path, |pool, parent, name| {
                    ops::names::create::mkdir(pool, &CALLER, parent, name, mode)
                })?;
            }
            Op::Mknod { path, fifo, mode } => {
                let mode = mode | if fifo { 0o010_000 } else { 0o100_000 };
                self.make(path, |pool, parent, name| {
                    ops::names::create::mknod(pool, &CALLER, parent, name, mode, (0, 0))
                })?;
            }
            Op::Symlink { path, target } => {
                self.make(path, |pool, parent, name| {
                    ops::names::create::symlink(pool, &CALLER, parent, name, target.as_bytes())
                })?;
            }
            Op::Link { from, to } => {
                let from = self.walk(from)?;
                self.make(to, |pool, parent, name| {
                    ops::names::link::link(pool, &CALLER, from.node, parent, name)
                })?;
            }
            Op::LinkOpen { slot, to } => {
                let Some(file) = self.files[slot] else { return Ok(Outcome::Skipped) };
                let nameless = self.attr(file.node, Some(file.handle))?.nlink == 0;
                let linkable = self.linkable.contains(&file.node);
                self.make(to, |pool, parent, name| {
                    if nameless && !linkable {
                        match ops::names::lookup::lookup(pool, parent, name) {
                            Ok(entry) => {
                                ops::names::lookup::forget(pool, entry.node, 1);
                                Err(canopy_base::error::Error::Exists)
                            }
                            Err(error) => Err(error),
                        }
                    } else {
                        ops::names::link::link(pool, &CALLER, file.node, parent, name)
                    }
                })?;
                self.linkable.remove(&file.node);
            }
            Op::Unlink { path } => {
                let (parent, dir, name) = self.parent(path)?;
                self.lookup(parent, dir, name)?;
                answer(ops::names::remove::unlink(&self.pool, parent, name.as_bytes()))?;
                self.drop_name(path);
            }
            Op::Rmdir { path } => {
                let (parent, dir, name) = self.parent(path)?;
                self.lookup(parent, dir, name)?;
                answer(ops::names::remove::rmdir(&self.pool, parent, name.as_bytes()))?;
                self.drop_name(path);
            }
            Op::Rename { from, to, how } => self.rename(from, to, how)?,
            Op::Readlink { path } => {
                let entry = self.walk(path)?;
                if !entry.attr.is_symlink() {
                    return Err(Errno::INVAL);
                }
                return answer(ops::names::lookup::readlink(&self.pool, entry.node)).map(Outcome::Bytes);
            }
            Op::Change { on, change } => return self.change(on, change),
            Op::Xattr { on, how } => return self.xattr(on, how),
            Op::Stat { on } => {
                let Some((node, handle)) = self.find(on)? else { return Ok(Outcome::Skipped) };
                let attr = self.attr(node, handle)?;
                let again = self.attr(node, None)?;
                if attr != again {
                    return Ok(Outcome::Broken(format!("fstat {attr:?} differs from stat {again:?}")));
                }
                return Ok(Outcome::Stat(shown(&attr)));
            }
            Op::Same { on, path } => return self.same(on, path),
            Op::OpenDir { slot, path } => {
                self.dirs[slot] = None;
                let node = self.dir(path)?;
                answer(ops::readdir::opendir(&self.pool, node))?;
                self.dirs[slot] = Some(node);
            }
            Op::CloseDir { slot } => self.dirs[slot] = None,
            Op::SyncDir { slot } => match self.dirs[slot] {
                Some(dir) => answer(ops::readdir::fsyncdir(&self.pool, dir, false))?,
                None => return Ok(Outcome::Skipped),
            },
            Op::List { on: On::Path(path) } => {
                let node = self.dir(path)?;
                answer(ops::readdir::opendir(&self.pool, node))?;
                return self.list(node, Some(path));
            }
            Op::List { on: On::Dir(slot) } => {
                let Some(dir) = self.dirs[slot] else { return Ok(Outcome::Skipped) };
                return self.list(dir, None);
            }
            Op::Statfs { path } => {
                let node = self.walk(path)?.node;
                let figures = answer(ops::attrs::statfs::statfs(&self.pool, node))?;
                let sane =
                    figures.bavail <= figures.bfree && figures.bfree <= figures.blocks && figures.blocks > 0;
                return Ok(if sane {
                    Outcome::Number(figures.namemax)
                } else {
                    Outcome::Broken(format!("{figures:?}"))
                });
            }
            Op::Forget => self.forget(),
            _ => return self.data(op),
        }
        Ok(Outcome::Done)
    }

    /// Makes a name that must not exist.
    fn make(
        &mut self,
        path: &str,
        act: impl FnOnce(&canopy_pool::Pool, NodeId, &[u8]) -> canopy_base::error::Result<Entry>,
    ) -> Answer<()> {
        let (parent, dir, name) = self.parent(path)?;
        if self.probe(parent, dir, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        let entry = answer(act(&self.pool, parent, name.as_bytes()))?;
        self.count_lookup(entry);
        self.remember(path, entry.node);
        Ok(())
    }

    fn dir(&mut self, path: &str) -> Answer<NodeId> {
        let entry = self.walk(path)?;
        if entry.attr.is_dir() { Ok(entry.node) } else { Err(Errno::NOTDIR) }
    }

    /// Renames, after the checks of do_renameat2 and vfs_rename in their order.
    fn rename(&mut self, from: &str, to: &str, how: RenameHow) -> Answer<()> {
        let (old_parent, old_dir, old_name) = self.parent(from)?;
        let (new_parent, new_dir, new_name) = self.parent(to)?;
        let source = self.lookup(old_parent, old_dir, old_name)?;
        let below = |path: &str, top: &str| path.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'));
        let target = match how {
            // The kernel looks the target up before it answers by itself.
            _ if how == RenameHow::Replace || below(to, from) => {
                match self.lookup(new_parent, new_dir, new_name) {
                    Err(Errno::NOENT) => None,
                    other => Some(other?),
                }
            }
            _ => self.probe(new_parent, new_dir, new_name)?,
        };
        match (how, target) {
            (RenameHow::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameHow::Exchange, None) => {
                // The dentry may be negative although the target exists.
                return match self.lookup(new_parent, new_dir, new_name) {
                    Err(errno) => Err(errno),
                    Ok(_) => self.rename(from, to, how),
                };
            }
            _ => {}
        }
        if below(to, from) {
            return Err(Errno::INVAL);
        }
        if below(from, to) {
            return Err(if how == RenameHow::Exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        if target.is_some_and(|target| target.node == source.node) {
            return Ok(());
        }
        let kind = match how {
            RenameHow::Replace => RenameKind::Replace,
            RenameHow::NoReplace => RenameKind::NoReplace,
            RenameHow::Exchange => RenameKind::Exchange,
        };
        let (old, new) = ((old_parent, old_name.as_bytes()), (new_parent, new_name.as_bytes()));
        answer(ops::names::rename::rename(&self.pool, &CALLER, old.0, old.1, new.0, new.1, kind))?;
        self.moved(from, to, how == RenameHow::Exchange);
        Ok(())
    }

    /// Returns the node of an operation, and the handle of an open file.
    fn find(&mut self, on: On) -> Answer<Option<(NodeId, Option<HandleId>)>> {
        Ok(match on {
            On::Path(path) => Some((self.walk(path)?.node, None)),
            On::File(slot) => self.files[slot].map(|file| (file.node, Some(file.handle))),
            On::Dir(slot) => self.dirs[slot].map(|dir| (dir, None)),
        })
    }

    fn same(&mut self, on: On, path: &'static str) -> Answer<Outcome> {
        let Some((node, handle)) = self.find(on)? else { return Ok(Outcome::Skipped) };
        let open = self.attr(node, handle)?;
        let named = self.walk(path)?;
        let same = node == named.node;
        if same != (open.ino == named.attr.ino) {
            return Ok(Outcome::Broken(format!(
                "nodes {node} and {} and their numbers disagree",
                named.node
            )));
        }
        Ok(Outcome::Yes(same))
    }

    fn change(&mut self, on: On, change: Change) -> Answer<Outcome> {
        let Some((node, handle)) = self.find(on)? else { return Ok(Outcome::Skipped) };
        let attr = self.attr(node, handle)?;
        let mut set = SetAttr::default();
        // The kernel sends a handle only for ftruncate(2). Other clients may always send one.
        let mut with = handle.filter(|_| self.once_in(2));
        match change {
            Change::Mode(mode) => set.mode = Some(mode),
            Change::Owner { uid, gid } => (set.uid, set.gid) = (uid, gid),
            Change::Mtime(sec) => set.mtime = Some(SetTime::At(Time { sec, nsec: 0 })),
            Change::Size(size) => set.size = Some(size),
        }
        match (on, change) {
            (On::Path(_), Change::Mode(_) | Change::Size(_)) if attr.is_symlink() => {
                return Err(Errno::NOENT);
            }
            (On::Path(_), Change::Size(_)) if attr.is_dir() => return Err(Errno::ISDIR),
            (On::Path(_), Change::Size(_)) if !attr.is_regular() => return Err(Errno::NXIO),
            (On::Dir(_), Change::Size(_)) => return Err(Errno::INVAL),
            (On::File(slot), Change::Size(_)) => {
                if !self.files[slot].is_some_and(|file| file.writes) {
                    return Err(Errno::INVAL);
                }
                with = handle;
            }
            _ => {}
        }
        let after = answer(ops::attrs::setattr::setattr(&self.pool, &CALLER, node, with, &set))?;
        let again = self.attr(node, handle)?;
        if after == again {
            Ok(Outcome::Done)
        } else {
            Ok(Outcome::Broken(format!("setattr answers {after:?}, getattr {again:?}")))
        }
    }

    fn xattr(&mut self, on: On, how: XattrHow) -> Answer<Outcome> {
        let Some((node, _)) = self.find(on)? else { return Ok(Outcome::Skipped) };
        let pool = &self.pool;
        let set = |name: &str, value: &str, flags: XattrFlags| {
            answer(ops::attrs::xattr::setxattr(
                pool,
                &super::ROOT,
                node,
                name.as_bytes(),
                value.as_bytes(),
                flags.bits(),
                false,
            ))
        };
        let mut buffer = [0; 4096];
        match how {
            XattrHow::Get(name) => {
                let count = answer(ops::attrs::xattr::getxattr(pool, node, name.as_bytes(), &mut buffer))?;
                return Ok(Outcome::Bytes(buffer[..count].to_vec()));
            }
            XattrHow::List => {
                let count = answer(ops::attrs::xattr::listxattr(pool, &CALLER, node, &mut buffer))?;
                let names = buffer[..count].split(|&b| b == 0).filter(|name| name.starts_with(b"user."));
                let names: BTreeSet<_> = names.map(|name| (name.to_vec(), 0)).collect();
                return Ok(Outcome::Names(names.into_iter().collect()));
            }
            XattrHow::Set { name, value } => set(name, value, XattrFlags::empty())?,
            XattrHow::Create { name, value } => set(name, value, XattrFlags::CREATE)?,
            XattrHow::Replace { name, value } => set(name, value, XattrFlags::REPLACE)?,
            XattrHow::Remove(name) => {
                answer(ops::attrs::xattr::removexattr(pool, &super::ROOT, node, name.as_bytes()))?
            }
        }
        Ok(Outcome::Done)
    }

    fn open(&mut self, op: &Op) -> Answer<OpenedFile> {
        let Op::Open { path, access, create, truncate, append, mode, .. } = *op else {
            return Err(Errno::INVAL);
        };
        let (parent, dir, name) = self.parent(path)?;
        let mut flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
        flags |= match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::WRONLY,
            Access::Both => OFlags::RDWR,
        };
        flags.set(OFlags::TRUNC, truncate && access != Access::Read);
        flags.set(OFlags::APPEND, append);
        let found = match create {
            Create::No => Some(self.lookup(parent, dir, name)?),
            Create::Missing => match self.lookup(parent, dir, name) {
                Err(Errno::NOENT) => None,
                other => Some(other?),
            },
            Create::Exclusive => self.probe(parent, dir, name)?,
        };
        let (node, opened) = match found {
            Some(_) if create == Create::Exclusive => return Err(Errno::EXIST),
            Some(entry) if entry.attr.is_symlink() => return Err(Errno::LOOP),
            Some(entry) if entry.attr.is_dir() => return Err(Errno::ISDIR),
            Some(entry) if !entry.attr.is_regular() => return Err(Errno::NXIO),
            // Another client created the file after the kernel's lookup: an ordinary open follows.
            Some(entry) if create == Create::Missing && self.once_in(3) => {
                let flags = (flags | OFlags::CREATE).bits();
                let refused =
                    ops::data::create::create(&self.pool, &CALLER, parent, name.as_bytes(), mode, flags);
                assert_eq!(refused.err().map(|error| error.errno()), Some(Errno::EXIST));
                let flags = flags & !OFlags::CREATE.bits();
                (entry.node, answer(ops::data::open::open(&self.pool, &CALLER, entry.node, flags, false))?)
            }
            Some(entry) => (
                entry.node,
                answer(ops::data::open::open(&self.pool, &CALLER, entry.node, flags.bits(), false))?,
            ),
            None => {
                flags |= OFlags::CREATE;
                flags.set(OFlags::EXCL, create == Create::Exclusive);
                let made = ops::data::create::create(
                    &self.pool,
                    &CALLER,
                    parent,
                    name.as_bytes(),
                    mode,
                    flags.bits(),
                );
                let (entry, opened) = answer(made)?;
                self.count_lookup(entry);
                self.remember(path, entry.node);
                (entry.node, opened)
            }
        };
        let (reads, writes) = (access != Access::Write, access != Access::Read);
        Ok(OpenedFile { node, handle: opened.handle, reads, writes, appends: append })
    }

    /// Applies the operations on open files.
    fn data(&mut self, op: &Op) -> Answer<Outcome> {
        match *op {
            Op::Open { slot, .. } => {
                self.close(slot)?;
                self.files[slot] = Some(self.open(op)?);
            }
            Op::Tmpfile { slot, dir, exclusive, mode } => {
                self.close(slot)?;
                let dir = self.dir(dir)?;
                let mut flags = OFlags::TMPFILE | OFlags::RDWR;
                flags.set(OFlags::EXCL, exclusive);
                let (entry, opened) =
                    answer(ops::data::create::tmpfile(&self.pool, &CALLER, dir, mode, flags.bits()))?;
                let node = self.count_lookup(entry).node;
                if !exclusive {
                    self.linkable.insert(node);
                }
                let handle = opened.handle;
                self.files[slot] =
                    Some(OpenedFile { node, handle, reads: true, writes: true, appends: false });
            }
            Op::Close { slot } => self.close(slot)?,
            Op::Read { slot, offset, len } => {
                let Some(file) = self.files[slot] else { return Ok(Outcome::Skipped) };
                if !file.reads {
                    return Err(Errno::BADF);
                }
                // Not zeros, so that bytes which are not read show up as a difference.
                let mut buffer = vec![0xEE; len];
                let count = answer(ops::data::io::read(&self.pool, file.handle, offset, &mut buffer))?;
                buffer.truncate(count);
                return Ok(Outcome::Bytes(buffer));
            }
            Op::Write { slot, offset, len, seed } => {
                let Some(file) = self.files[slot] else { return Ok(Outcome::Skipped) };
                return self.write(file, offset, &pattern(seed, len));
            }
            Op::Allocate { slot, how, offset, len } => {
                let Some(file) = self.files[slot] else { return Ok(Outcome::Skipped) };
                if len == 0 {
                    return Err(Errno::INVAL);
                }
                if !file.writes {
                    return Err(Errno::BADF);
                }
                let mode = match how {
                    Reserve::Extend => 0,
                    Reserve::KeepSize => 1,
                    Reserve::PunchHole => 3,
                };
                answer(ops::data::io::fallocate(&self.pool, file.handle, mode, offset, len))?;
            }
            Op::Seek { slot, whence, offset } => {
                let Some(file) = self.files[slot] else { return Ok(Outcome::Skipped) };
                let whence = match whence {
                    Whence::Data => canopy_pool::Whence::Data,
                    Whence::Hole => canopy_pool::Whence::Hole,
                };
                return answer(ops::data::io::lseek(&self.pool, file.handle, offset, whence))
                    .map(Outcome::Number);
            }
            Op::Sync { slot } => {
                let Some(file) = self.files[slot] else { return Ok(Outcome::Skipped) };
                let data_only = self.once_in(2);
                answer(ops::data::io::fsync(&self.pool, file.handle, data_only))?;
            }
            Op::CopyRange { from, from_offset, to, to_offset, len } => {
                let (Some(from), Some(to)) = (self.files[from], self.files[to]) else {
                    return Ok(Outcome::Skipped);
                };
                if !from.reads || !to.writes || to.appends {
                    return Err(Errno::BADF);
                }
                return self.copy_range((from, from_offset), (to, to_offset), len as u64);
            }
            _ => return Ok(Outcome::Broken(format!("{op:?} is not implemented"))),
        }
        Ok(Outcome::Done)
    }

    /// Copies by reading and writing after EXDEV, as the kernel does between two branches.
    fn copy_range(&mut self, from: (OpenedFile, u64), to: (OpenedFile, u64), len: u64) -> Answer<Outcome> {
        let mut done = 0;
        while done < len {
            let (source, target) = ((from.0.handle, from.1 + done), (to.0.handle, to.1 + done));
            match answer(ops::data::io::copy_file_range(&self.pool, source, target, len - done)) {
                Ok(0) => break,
                Ok(copied) if from.0.node == to.0.node => return Ok(Outcome::Number(copied)),
                Ok(copied) => done += copied,
                Err(Errno::XDEV) => {
                    let mut data = vec![0; (len - done) as usize];
                    let read = answer(ops::data::io::read(&self.pool, source.0, source.1, &mut data))?;
                    if read == 0 {
                        break;
                    }
                    let kind = WriteKind::default();
                    done += answer(ops::data::io::write(&self.pool, target.0, target.1, &data[..read], kind))?
                        as u64;
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(Outcome::Number(done))
    }

    fn write(&mut self, file: OpenedFile, offset: u64, data: &[u8]) -> Answer<Outcome> {
        if !file.writes {
            return Err(Errno::BADF);
        }
        if data.is_empty() {
            return Ok(Outcome::Number(0));
        }
        let offset = if file.appends { self.attr(file.node, Some(file.handle))?.size } else { offset };
        let from_cache = self.once_in(3);
        let kind = WriteKind { from_cache, kill_suidgid: None };
        let count = answer(ops::data::io::write(&self.pool, file.handle, offset, data, kind))?;
        Ok(Outcome::Number(count as u64))
    }

    fn list(&mut self, node: NodeId, path: Option<&str>) -> Answer<Outcome> {
        let entries = self.entries(node, path)?;
        let (mut names, mut dots) = (BTreeSet::new(), 0);
        for (index, entry) in entries.iter().enumerate() {
            let shown = entry.name.escape_ascii();
            let rest = self.entries_from(node, entry.next, usize::MAX)?;
            if rest != entries[index + 1..] {
                return Ok(Outcome::Broken(format!("seeking behind {shown} gives other entries")));
            }
            let found = match ops::names::lookup::lookup(&self.pool, node, &entry.name) {
                Ok(found) => self.count_lookup(found).attr,
                Err(_) if entry.name == b".." && node == NodeId::ROOT => continue,
                Err(error) => return Ok(Outcome::Broken(format!("{shown} is listed: {error}"))),
            };
            if (entry.kind, entry.ino) != (found.dirent_type(), found.ino) {
                let listed = (entry.kind, entry.ino);
                return Ok(Outcome::Broken(format!(
                    "{shown} is listed as {listed:?} and found as {found:?}"
                )));
            }
            match entry.name.as_slice() {
                b"." | b".." => dots += 1,
                name if !names.insert((name.to_vec(), entry.kind)) => {
                    return Ok(Outcome::Broken(format!("{shown} is listed twice")));
                }
                _ => {}
            }
        }
        if dots > 2 {
            return Ok(Outcome::Broken("more than one . or ..".into()));
        }
        Ok(Outcome::Names(names.into_iter().collect()))
    }
}

pub(super) fn shown(attr: &Attr) -> Shown {
    let when = |dir: u64, other: u64| if attr.is_dir() { dir } else { other };
    Shown {
        mode: attr.mode,
        nlink: when(0, attr.nlink.into()),
        dir_nlink: when(attr.nlink.into(), 0),
        uid: attr.uid,
        gid: attr.gid,
        size: when(0, attr.size),
        mtime: Some(attr.mtime.sec).filter(|&seconds| is_explicit(seconds)),
    }
}
