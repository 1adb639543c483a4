//! Applying operations by system calls below a directory, which is a plain one or a mounted pool.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, SeekFrom, Stat,
    Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chmodat, chownat, copy_file_range, fallocate, fchmod,
    fchown, fgetxattr, flistxattr, fremovexattr, fsetxattr, fstat, fstatvfs, fsync, ftruncate, futimens,
    lgetxattr, linkat, llistxattr, lremovexattr, lsetxattr, mkdirat, mknodat, openat, openat2, readlinkat,
    renameat_with, seek, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, pread, pwrite};

use super::{
    Access, Change, Create, DIR_SLOTS, FILE_SLOTS, On, Op, Outcome, RenameHow, Reserve, Shown, Subject,
    Whence, XattrHow, is_explicit, listing, pattern,
};
use crate::{Fields, Tree};

/// A directory, and the files and directories that are open below it.
#[derive(Debug)]
pub struct Plain {
    path: PathBuf,
    root: OwnedFd,
    files: [Option<OwnedFd>; FILE_SLOTS],
    dirs: [Option<OwnedFd>; DIR_SLOTS],
}

impl Plain {
    /// Opens `root`. Sets the umask of the process to zero.
    ///
    /// # Panics
    /// If `root` cannot be opened.
    pub fn new(root: impl AsRef<Path>) -> Self {
        rustix::process::umask(Mode::empty());
        let path = root.as_ref().to_owned();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&path, flags, Mode::empty()).expect("the root of the model");
        Self { path, root, files: [const { None }; FILE_SLOTS], dirs: [const { None }; DIR_SLOTS] }
    }

    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { "." } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    /// Opens the parent directory of a path, without following symlinks. Returns it with the last component.
    fn parent<'p>(&self, path: &'p str) -> Result<(OwnedFd, &'p str), Errno> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.open(dir, OFlags::PATH | OFlags::DIRECTORY)?, if name.is_empty() { "." } else { name }))
    }

    fn stat(&self, on: On) -> Result<Option<Stat>, Errno> {
        Ok(match on {
            On::Path(path) => {
                let (dir, name) = self.parent(path)?;
                Some(statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?)
            }
            _ => self.fd(on).map(fstat).transpose()?,
        })
    }

    /// Whether a slot holds the file with this device and inode number.
    pub fn is_open_as(&self, slot: usize, dev: u64, ino: u64) -> bool {
        self.files[slot]
            .as_ref()
            .is_some_and(|file| fstat(file).is_ok_and(|it| (it.st_dev, it.st_ino) == (dev, ino)))
    }

    fn fd(&self, on: On) -> Option<BorrowedFd<'_>> {
        match on {
            On::Path(_) => None,
            On::File(slot) => self.files[slot].as_ref().map(|fd| fd.as_fd()),
            On::Dir(slot) => self.dirs[slot].as_ref().map(|fd| fd.as_fd()),
        }
    }

    fn open_file(&self, op: &Op) -> Result<OwnedFd, Errno> {
        let Op::Open { path, access, create, truncate, append, mode, .. } = *op else {
            return Err(Errno::INVAL);
        };
        let (dir, name) = self.parent(path)?;
        if create != Create::Exclusive
            && let Ok(stat) = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)
        {
            // The kernel opens pipes without the filesystem, and opendir(3) opens directories.
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Fifo => return Err(Errno::NXIO),
                FileType::Directory => return Err(Errno::ISDIR),
                _ => {}
            }
        }
        let mut flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        flags |= match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::WRONLY,
            Access::Both => OFlags::RDWR,
        };
        flags |= match create {
            Create::No => OFlags::empty(),
            Create::Missing => OFlags::CREATE,
            Create::Exclusive => OFlags::CREATE | OFlags::EXCL,
        };
        flags.set(OFlags::TRUNC, truncate && access != Access::Read);
        flags.set(OFlags::APPEND, append);
        openat(&dir, name, flags, Mode::from_raw_mode(mode))
    }

    fn try_apply(&mut self, op: &Op) -> Result<Outcome, Errno> {
        match *op {
            Op::Mkdir { path, mode } => {
                let (dir, name) = self.parent(path)?;
                mkdirat(&dir, name, Mode::from_raw_mode(mode))?;
            }
            Op::Mknod { path, fifo, mode } => {
                let (dir, name) = self.parent(path)?;
                let kind = if fifo { FileType::Fifo } else { FileType::RegularFile };
                mknodat(&dir, name, kind, Mode::from_raw_mode(mode), 0)?;
            }
            Op::Symlink { path, target } => {
                let (dir, name) = self.parent(path)?;
                symlinkat(target, &dir, name)?;
            }
            Op::Unlink { path } => {
                let (dir, name) = self.parent(path)?;
                unlinkat(&dir, name, AtFlags::empty())?;
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.parent(path)?;
                unlinkat(&dir, name, AtFlags::REMOVEDIR)?;
            }
            Op::Rename { from, to, how } => {
                let ((old_dir, old), (new_dir, new)) = (self.parent(from)?, self.parent(to)?);
                let flags = match how {
                    RenameHow::Replace => RenameFlags::empty(),
                    RenameHow::NoReplace => RenameFlags::NOREPLACE,
                    RenameHow::Exchange => RenameFlags::EXCHANGE,
                };
                renameat_with(&old_dir, old, &new_dir, new, flags)?;
            }
            Op::Link { from, to } => {
                let (old_dir, old) = self.parent(from)?;
                statat(&old_dir, old, AtFlags::SYMLINK_NOFOLLOW)?;
                let (new_dir, new) = self.parent(to)?;
                linkat(&old_dir, old, &new_dir, new, AtFlags::empty())?;
            }
            Op::LinkOpen { slot, to } => {
                let Some(fd) = &self.files[slot] else { return Ok(Outcome::Skipped) };
                let (dir, name) = self.parent(to)?;
                let file = format!("/proc/self/fd/{}", fd.as_raw_fd());
                linkat(CWD, file, &dir, name, AtFlags::SYMLINK_FOLLOW)?;
            }
            Op::Readlink { path } => {
                let (dir, name) = self.parent(path)?;
                return Ok(Outcome::Bytes(readlinkat(&dir, name, Vec::new())?.into_bytes()));
            }
            Op::Change { on, change } => return self.change(on, change),
            Op::Xattr { on, how } => return self.xattr(on, how),
            Op::Stat { on } => {
                return Ok(self.stat(on)?.map_or(Outcome::Skipped, |stat| Outcome::Stat(shown(&stat))));
            }
            Op::Same { on, path } => {
                let Some(open) = self.stat(on)? else { return Ok(Outcome::Skipped) };
                let Some(named) = self.stat(On::Path(path))? else { return Ok(Outcome::Skipped) };
                return Ok(Outcome::Yes((open.st_dev, open.st_ino) == (named.st_dev, named.st_ino)));
            }
            Op::OpenDir { slot, path } => {
                self.dirs[slot] = None;
                self.dirs[slot] =
                    Some(self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)?);
            }
            Op::CloseDir { slot } => self.dirs[slot] = None,
            Op::SyncDir { slot } => match &self.dirs[slot] {
                Some(dir) => fsync(dir)?,
                None => return Ok(Outcome::Skipped),
            },
            Op::List { on } => {
                let opened;
                let dir = match on {
                    On::Path(path) => {
                        opened = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
                        opened.as_fd()
                    }
                    _ => match self.fd(on) {
                        Some(dir) => dir,
                        None => return Ok(Outcome::Skipped),
                    },
                };
                return listing::list(dir);
            }
            Op::Statfs { path } => {
                let vfs = fstatvfs(self.open(path, OFlags::PATH | OFlags::NOFOLLOW)?)?;
                let sane = vfs.f_bavail <= vfs.f_bfree && vfs.f_bfree <= vfs.f_blocks && vfs.f_blocks > 0;
                return Ok(if sane {
                    Outcome::Number(vfs.f_namemax)
                } else {
                    Outcome::Broken("statfs contradicts itself".into())
                });
            }
            Op::Forget => {}
            _ => return self.data(op),
        }
        Ok(Outcome::Done)
    }

    /// Applies the operations on open files.
    fn data(&mut self, op: &Op) -> Result<Outcome, Errno> {
        let file = |slot: usize| self.files[slot].as_ref();
        match *op {
            Op::Open { slot, .. } => {
                self.files[slot] = None;
                self.files[slot] = Some(self.open_file(op)?);
            }
            Op::Tmpfile { slot, dir, exclusive, mode } => {
                self.files[slot] = None;
                let dir = self.open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
                let mut flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                flags.set(OFlags::EXCL, exclusive);
                self.files[slot] = Some(openat(&dir, ".", flags, Mode::from_raw_mode(mode))?);
            }
            Op::Close { slot } => self.files[slot] = None,
            Op::Read { slot, offset, len } => {
                let Some(fd) = file(slot) else { return Ok(Outcome::Skipped) };
                let mut buffer = vec![0; len];
                let count = pread(fd, &mut buffer, offset)?;
                buffer.truncate(count);
                return Ok(Outcome::Bytes(buffer));
            }
            Op::Write { slot, offset, len, seed } => {
                let Some(fd) = file(slot) else { return Ok(Outcome::Skipped) };
                return Ok(Outcome::Number(pwrite(fd, &pattern(seed, len), offset)? as u64));
            }
            Op::Allocate { slot, how, offset, len } => {
                let Some(fd) = file(slot) else { return Ok(Outcome::Skipped) };
                let mode = match how {
                    Reserve::Extend => FallocateFlags::empty(),
                    Reserve::KeepSize => FallocateFlags::KEEP_SIZE,
                    Reserve::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                };
                fallocate(fd, mode, offset, len)?;
            }
            Op::Seek { slot, whence, offset } => {
                let Some(fd) = file(slot) else { return Ok(Outcome::Skipped) };
                let from = match whence {
                    Whence::Data => SeekFrom::Data(offset),
                    Whence::Hole => SeekFrom::Hole(offset),
                };
                return Ok(Outcome::Number(seek(fd, from)?));
            }
            Op::Sync { slot } => match file(slot) {
                Some(fd) => fsync(fd)?,
                None => return Ok(Outcome::Skipped),
            },
            Op::CopyRange { from, mut from_offset, to, mut to_offset, len } => {
                let (Some(from), Some(to)) = (file(from), file(to)) else { return Ok(Outcome::Skipped) };
                let count = copy_file_range(from, Some(&mut from_offset), to, Some(&mut to_offset), len)?;
                return Ok(Outcome::Number(count as u64));
            }
            _ => return Ok(Outcome::Broken(format!("{op:?} is not implemented"))),
        }
        Ok(Outcome::Done)
    }

    fn change(&self, on: On, change: Change) -> Result<Outcome, Errno> {
        let owner = |uid: Option<u32>, gid: Option<u32>| (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = |seconds| Timestamps {
            last_access: omit,
            last_modification: Timespec { tv_sec: seconds, tv_nsec: 0 },
        };
        if let On::Path(path) = on {
            let (dir, name) = self.parent(path)?;
            match change {
                Change::Mode(mode) => chmodat(&dir, name, Mode::from_raw_mode(mode), AtFlags::empty())?,
                Change::Owner { uid, gid } => {
                    let (uid, gid) = owner(uid, gid);
                    chownat(&dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
                }
                Change::Mtime(seconds) => {
                    utimensat(&dir, name, &times(seconds), AtFlags::SYMLINK_NOFOLLOW)?;
                }
                Change::Size(size) => {
                    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                    ftruncate(openat(&dir, name, flags, Mode::empty())?, size)?;
                }
            }
            return Ok(Outcome::Done);
        }
        let Some(fd) = self.fd(on) else { return Ok(Outcome::Skipped) };
        match change {
            Change::Mode(mode) => fchmod(fd, Mode::from_raw_mode(mode))?,
            Change::Owner { uid, gid } => {
                let (uid, gid) = owner(uid, gid);
                fchown(fd, uid, gid)?;
            }
            Change::Mtime(seconds) => futimens(fd, &times(seconds))?,
            Change::Size(size) => ftruncate(fd, size)?,
        }
        Ok(Outcome::Done)
    }

    fn xattr(&self, on: On, how: XattrHow) -> Result<Outcome, Errno> {
        // lgetxattr(2) does not follow the last component of this path. There is no getxattrat(2) before Linux 6.13.
        let dir;
        let (path, fd) = match (on, self.fd(on)) {
            (On::Path(path), _) => {
                let name;
                (dir, name) = self.parent(path)?;
                (format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()), None)
            }
            (_, None) => return Ok(Outcome::Skipped),
            (_, fd) => (String::new(), fd),
        };
        let set = |name: &str, value: &str, flags| match fd {
            Some(fd) => fsetxattr(fd, name, value.as_bytes(), flags),
            None => lsetxattr(&path, name, value.as_bytes(), flags),
        };
        let mut buffer = vec![0; 4096];
        let count = match how {
            XattrHow::Get(name) => match fd {
                Some(fd) => fgetxattr(fd, name, buffer.as_mut_slice())?,
                None => lgetxattr(&path, name, buffer.as_mut_slice())?,
            },
            XattrHow::List => {
                let count = match fd {
                    Some(fd) => flistxattr(fd, buffer.as_mut_slice())?,
                    None => llistxattr(&path, buffer.as_mut_slice())?,
                };
                return Ok(Outcome::Names(sorted_names(&buffer[..count])));
            }
            XattrHow::Set { name, value } => {
                return set(name, value, XattrFlags::empty()).map(|()| Outcome::Done);
            }
            XattrHow::Create { name, value } => {
                return set(name, value, XattrFlags::CREATE).map(|()| Outcome::Done);
            }
            XattrHow::Replace { name, value } => {
                return set(name, value, XattrFlags::REPLACE).map(|()| Outcome::Done);
            }
            XattrHow::Remove(name) => {
                match fd {
                    Some(fd) => fremovexattr(fd, name)?,
                    None => lremovexattr(&path, name)?,
                }
                return Ok(Outcome::Done);
            }
        };
        buffer.truncate(count);
        Ok(Outcome::Bytes(buffer))
    }
}

fn sorted_names(list: &[u8]) -> Vec<(Vec<u8>, u8)> {
    let user = |name: &&[u8]| name.starts_with(b"user.");
    let mut names: Vec<_> = list.split(|&b| b == 0).filter(user).map(|name| (name.to_vec(), 0)).collect();
    names.sort();
    names
}

fn shown(stat: &Stat) -> Shown {
    let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let when = |dir: u64, other: u64| if is_dir { dir } else { other };
    Shown {
        mode: stat.st_mode,
        nlink: when(0, stat.st_nlink),
        dir_nlink: when(stat.st_nlink, 0),
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: when(0, stat.st_size.unsigned_abs()),
        mtime: Some(stat.st_mtime).filter(|&seconds| is_explicit(seconds)),
    }
}

impl Subject for Plain {
    fn apply(&mut self, op: &Op) -> Outcome {
        self.try_apply(op).into()
    }

    fn capture(&mut self) -> Result<Tree, String> {
        let fields = Fields { root: true, ..Fields::default() };
        Tree::try_capture(&self.path, fields).map_err(|error| error.to_string())
    }

    fn finish(&mut self) -> Result<(), String> {
        self.files = [const { None }; FILE_SLOTS];
        self.dirs = [const { None }; DIR_SLOTS];
        Ok(())
    }
}
