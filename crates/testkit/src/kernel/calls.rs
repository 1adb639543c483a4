//! System calls by path, as the requests that a kernel makes of them.

use std::collections::BTreeMap;

use canopy_fuse::Opcode;
use canopy_fuse::abi::{
    Attr, AttrOut, CreateIn, DirentPlus, EntryOut, GetattrIn, GetxattrIn, GetxattrOut, IoctlIn, IoctlOut,
    LinkIn, MkdirIn, OpenIn, OpenOut, ReadIn, ReleaseIn, Rename2In, SetattrIn, SetxattrIn, WriteIn, WriteOut,
    record_align,
};
use canopy_fuse::flags::FattrFlags;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::Kernel;
use super::wire::take;

const ROOT: u64 = 1;
/// The kernel's buffer for a listing, and the most that is read or written at once, in bytes.
const LISTING: u32 = 32 << 10;
const CHUNK: usize = 64 << 10;

/// What stat(2) tells.
pub type Stat = Attr;

/// A name in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub ino: u64,
    pub kind: u32,
}

/// An open file. It has to be closed with [`Kernel::close`].
#[derive(Debug)]
#[must_use]
pub struct File {
    node: u64,
    handle: u64,
    flags: u32,
}

fn named(name: &[u8]) -> Vec<u8> {
    [name, b"\0"].concat()
}

impl Kernel {
    /// Follows a path from the root: `a/b`, or nothing for the root itself.
    fn walk(&self, path: &str) -> Result<u64, Errno> {
        path.split('/').filter(|name| !name.is_empty()).try_fold(ROOT, |dir, name| self.look_up(dir, name))
    }

    /// Returns the directory of a path, and the last name in it.
    fn parent<'p>(&self, path: &'p str) -> Result<(u64, &'p str), Errno> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.walk(dir)?, name))
    }

    fn look_up(&self, dir: u64, name: &str) -> Result<u64, Errno> {
        let known = self.beliefs().name(dir, name.as_bytes());
        if let Some(known) = known {
            return known.ok_or(Errno::NOENT);
        }
        let asked_at = self.beliefs().version();
        match self.ask(Opcode::Lookup, dir, &[&named(name.as_bytes())]) {
            Ok(answer) => self.entry(dir, name, &answer, asked_at).ok_or(Errno::NOENT),
            Err(errno) => {
                self.beliefs().forget_name(dir, name.as_bytes());
                Err(errno)
            }
        }
    }

    /// Learns the name and the attributes in an answer; returns the node, if the name exists.
    fn entry(&self, dir: u64, name: &str, answer: &[u8], asked_at: u64) -> Option<u64> {
        let (entry, _) = take::<EntryOut>(answer);
        let node = (entry.nodeid != 0).then_some(entry.nodeid);
        let mut beliefs = self.beliefs();
        beliefs.learn_name(dir, name.as_bytes(), node, (entry.entry_valid, entry.entry_valid_nsec));
        if let Some(node) = node {
            beliefs.learn_attr(node, entry.attr, (entry.attr_valid, entry.attr_valid_nsec), asked_at);
        }
        node
    }

    /// stat(2).
    ///
    /// # Errors
    /// What the server answers.
    pub fn stat(&self, path: &str) -> Result<Stat, Errno> {
        let node = self.walk(path)?;
        let known = self.beliefs().attr(node);
        if let Some(attr) = known {
            return Ok(attr);
        }
        let asked_at = self.beliefs().version();
        let answer = self.ask(Opcode::Getattr, node, &[GetattrIn::default().as_bytes()])?;
        Ok(self.attr(node, &answer, asked_at))
    }

    fn attr(&self, node: u64, answer: &[u8], asked_at: u64) -> Attr {
        let (out, _) = take::<AttrOut>(answer);
        self.beliefs().learn_attr(node, out.attr, (out.attr_valid, out.attr_valid_nsec), asked_at);
        out.attr
    }

    /// Returns the names of a directory, `.` and `..` left out, by READDIRPLUS.
    ///
    /// # Errors
    /// What the server answers.
    pub fn list(&self, path: &str) -> Result<BTreeMap<String, Entry>, Errno> {
        let dir = self.walk(path)?;
        let (answer, asked_at) =
            (self.ask(Opcode::Opendir, dir, &[OpenIn::default().as_bytes()])?, self.beliefs().version());
        let (opened, _) = take::<OpenOut>(&answer);
        let (mut names, mut offset) = (BTreeMap::new(), 0);
        loop {
            let read = ReadIn { fh: opened.fh, offset, size: LISTING, ..ReadIn::default() };
            let answer = self.ask(Opcode::Readdirplus, dir, &[read.as_bytes()])?;
            if answer.is_empty() {
                break;
            }
            let mut rest = &answer[..];
            while !rest.is_empty() {
                let (plus, after) = take::<DirentPlus>(rest);
                let name =
                    std::str::from_utf8(&after[..plus.dirent.namelen as usize]).expect("a name of the test");
                offset = plus.dirent.off;
                rest = &rest[record_align(size_of::<DirentPlus>() + name.len()).min(rest.len())..];
                if name == "." || name == ".." {
                    continue;
                }
                let entry = Entry { ino: plus.dirent.ino, kind: plus.dirent.typ };
                assert!(names.insert(name.to_owned(), entry).is_none(), "{name} twice in {path}");
                if plus.entry.nodeid != 0 {
                    self.entry(dir, name, plus.entry.as_bytes(), asked_at);
                }
            }
        }
        let release = ReleaseIn { fh: opened.fh, ..ReleaseIn::default() };
        self.ask(Opcode::Releasedir, dir, &[release.as_bytes()])?;
        Ok(names)
    }

    /// Carries out a change of names in a directory, whose attributes are stale afterwards (fs/fuse/dir.c
    /// fuse_dir_changed).
    fn change(&self, opcode: Opcode, dir: u64, body: &[&[u8]]) -> Result<(Vec<u8>, u64), Errno> {
        let asked_at = self.beliefs().version();
        let answer = self.ask(opcode, dir, body)?;
        self.beliefs().doubt(dir);
        Ok((answer, asked_at))
    }

    /// mkdir(2).
    ///
    /// # Errors
    /// What the server answers.
    pub fn mkdir(&self, path: &str) -> Result<(), Errno> {
        let (dir, name) = self.parent(path)?;
        let body = MkdirIn { mode: 0o40_755, umask: 0o022 };
        let (answer, at) = self.change(Opcode::Mkdir, dir, &[body.as_bytes(), &named(name.as_bytes())])?;
        self.entry(dir, name, &answer, at);
        Ok(())
    }

    /// symlink(2).
    ///
    /// # Errors
    /// What the server answers.
    pub fn symlink(&self, target: &str, path: &str) -> Result<(), Errno> {
        let (dir, name) = self.parent(path)?;
        let body = [named(name.as_bytes()), named(target.as_bytes())];
        let (answer, at) = self.change(Opcode::Symlink, dir, &[&body[0], &body[1]])?;
        self.entry(dir, name, &answer, at);
        Ok(())
    }

    /// readlink(2).
    ///
    /// # Errors
    /// What the server answers.
    pub fn readlink(&self, path: &str) -> Result<String, Errno> {
        let node = self.walk(path)?;
        let answer = self.ask(Opcode::Readlink, node, &[])?;
        Ok(String::from_utf8(answer).expect("a target of the test"))
    }

    /// link(2).
    ///
    /// # Errors
    /// What the server answers.
    pub fn link(&self, old: &str, path: &str) -> Result<(), Errno> {
        let (node, (dir, name)) = (self.walk(old)?, self.parent(path)?);
        let body = LinkIn { oldnodeid: node };
        let (answer, at) = self.change(Opcode::Link, dir, &[body.as_bytes(), &named(name.as_bytes())])?;
        self.entry(dir, name, &answer, at);
        Ok(())
    }

    /// unlink(2).
    ///
    /// # Errors
    /// What the server answers.
    pub fn unlink(&self, path: &str) -> Result<(), Errno> {
        self.remove(Opcode::Unlink, path)
    }

    /// rmdir(2).
    ///
    /// # Errors
    /// What the server answers.
    pub fn rmdir(&self, path: &str) -> Result<(), Errno> {
        self.remove(Opcode::Rmdir, path)
    }

    fn remove(&self, opcode: Opcode, path: &str) -> Result<(), Errno> {
        let (dir, name) = self.parent(path)?;
        // The kernel has looked it up before it asks.
        let node = self.look_up(dir, name)?;
        self.change(opcode, dir, &[&named(name.as_bytes())])?;
        let mut beliefs = self.beliefs();
        beliefs.forget_name(dir, name.as_bytes());
        beliefs.doubt(node);
        Ok(())
    }

    /// rename(2).
    ///
    /// # Errors
    /// What the server answers.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        let ((dir, name), (newdir, newname)) = (self.parent(from)?, self.parent(to)?);
        let node = self.look_up(dir, name)?;
        let over = self.look_up(newdir, newname).ok();
        let body = Rename2In { newdir, flags: 0, padding: 0 };
        let names = [named(name.as_bytes()), named(newname.as_bytes())];
        self.change(Opcode::Rename2, dir, &[body.as_bytes(), &names[0], &names[1]])?;
        let mut beliefs = self.beliefs();
        beliefs.move_name((dir, name.as_bytes()), (newdir, newname.as_bytes()));
        for node in [newdir, node].into_iter().chain(over) {
            beliefs.doubt(node);
        }
        Ok(())
    }

    /// chmod(2).
    ///
    /// # Errors
    /// What the server answers.
    pub fn chmod(&self, path: &str, mode: u32) -> Result<(), Errno> {
        self.setattr(path, SetattrIn { valid: FattrFlags::MODE.bits(), mode, ..SetattrIn::default() })
    }

    /// truncate(2).
    ///
    /// # Errors
    /// What the server answers.
    pub fn truncate(&self, path: &str, size: u64) -> Result<(), Errno> {
        self.setattr(path, SetattrIn { valid: FattrFlags::SIZE.bits(), size, ..SetattrIn::default() })
    }

    fn setattr(&self, path: &str, set: SetattrIn) -> Result<(), Errno> {
        let node = self.walk(path)?;
        let asked_at = self.beliefs().version();
        let answer = self.ask(Opcode::Setattr, node, &[set.as_bytes()])?;
        self.attr(node, &answer, asked_at);
        Ok(())
    }

    /// setxattr(2).
    ///
    /// # Errors
    /// What the server answers.
    pub fn set_xattr(&self, path: &str, name: &str, value: &[u8]) -> Result<(), Errno> {
        let node = self.walk(path)?;
        let size = u32::try_from(value.len()).expect("a short value");
        let body = SetxattrIn { size, ..SetxattrIn::default() };
        self.ask(Opcode::Setxattr, node, &[body.as_bytes(), &named(name.as_bytes()), value])?;
        self.beliefs().doubt(node);
        Ok(())
    }

    /// getxattr(2).
    ///
    /// # Errors
    /// What the server answers.
    pub fn xattr(&self, path: &str, name: &str) -> Result<Vec<u8>, Errno> {
        let node = self.walk(path)?;
        let ask = |size| {
            let body = GetxattrIn { size, padding: 0 };
            self.ask(Opcode::Getxattr, node, &[body.as_bytes(), &named(name.as_bytes())])
        };
        loop {
            let (out, _) = take::<GetxattrOut>(&ask(0)?);
            // What is empty needs no second request, which would ask for the length again.
            if out.size == 0 {
                return Ok(Vec::new());
            }
            // It may be longer by then: a report of what is counted.
            match ask(out.size) {
                Err(Errno::RANGE) => {}
                value => return value,
            }
        }
    }

    /// listxattr(2): names that each end with NUL.
    ///
    /// # Errors
    /// What the server answers.
    pub fn xattrs(&self, path: &str) -> Result<Vec<u8>, Errno> {
        let node = self.walk(path)?;
        let ask = |size| self.ask(Opcode::Listxattr, node, &[GetxattrIn { size, padding: 0 }.as_bytes()]);
        loop {
            let (out, _) = take::<GetxattrOut>(&ask(0)?);
            // What is empty needs no second request, which would ask for the length again.
            if out.size == 0 {
                return Ok(Vec::new());
            }
            // It may be longer by then: a report of what is counted.
            match ask(out.size) {
                Err(Errno::RANGE) => {}
                value => return value,
            }
        }
    }

    /// ioctl(2) of a directory, with an argument that the server only reads.
    ///
    /// # Errors
    /// What the server answers.
    pub fn ioctl(&self, path: &str, cmd: u32, argument: &[u8]) -> Result<i32, Errno> {
        let node = self.walk(path)?;
        let (opened, _) =
            take::<OpenOut>(&self.ask(Opcode::Opendir, node, &[OpenIn::default().as_bytes()])?);
        let in_size = u32::try_from(argument.len()).expect("a short argument");
        // FUSE_IOCTL_DIR
        let body = IoctlIn { fh: opened.fh, flags: 1 << 4, cmd, arg: 0, in_size, out_size: 0 };
        let answer = self.ask(Opcode::Ioctl, node, &[body.as_bytes(), argument]);
        let release = ReleaseIn { fh: opened.fh, ..ReleaseIn::default() };
        self.ask(Opcode::Releasedir, node, &[release.as_bytes()])?;
        let (out, _) = take::<IoctlOut>(&answer?);
        Ok(out.result)
    }

    /// open(2) with `O_CREAT`, of a file that may exist.
    ///
    /// # Errors
    /// What the server answers.
    pub fn create(&self, path: &str, flags: u32) -> Result<File, Errno> {
        let (dir, name) = self.parent(path)?;
        match self.look_up(dir, name) {
            Ok(_) => return self.open(path, flags),
            Err(Errno::NOENT) => {}
            Err(other) => return Err(other),
        }
        let body = CreateIn { flags, mode: 0o100_644, umask: 0o022, open_flags: 0 };
        let (answer, at) = self.change(Opcode::Create, dir, &[body.as_bytes(), &named(name.as_bytes())])?;
        let node = self.entry(dir, name, &answer, at).expect("a file that was created");
        let (_, rest) = take::<EntryOut>(&answer);
        let (opened, _) = take::<OpenOut>(rest);
        Ok(File { node, handle: opened.fh, flags })
    }

    /// open(2).
    ///
    /// # Errors
    /// What the server answers.
    pub fn open(&self, path: &str, flags: u32) -> Result<File, Errno> {
        let node = self.walk(path)?;
        let answer = self.ask(Opcode::Open, node, &[OpenIn { flags, open_flags: 0 }.as_bytes()])?;
        let (opened, _) = take::<OpenOut>(&answer);
        Ok(File { node, handle: opened.fh, flags })
    }

    /// close(2).
    pub fn close(&self, file: File) {
        let release = ReleaseIn { fh: file.handle, flags: file.flags, ..ReleaseIn::default() };
        self.ask(Opcode::Release, file.node, &[release.as_bytes()]).expect("RELEASE never fails");
    }

    /// pwrite(2) of up to 64 KiB; returns how many bytes were written.
    ///
    /// # Errors
    /// What the server answers.
    pub fn write_at(&self, file: &File, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let data = &data[..data.len().min(CHUNK)];
        let size = u32::try_from(data.len()).expect("a chunk");
        let write = WriteIn { fh: file.handle, offset, size, flags: file.flags, ..WriteIn::default() };
        let answer = self.ask(Opcode::Write, file.node, &[write.as_bytes(), data]);
        self.beliefs().doubt(file.node);
        let (out, _) = take::<WriteOut>(&answer?);
        Ok(out.size as usize)
    }

    /// pread(2) of up to 64 KiB.
    ///
    /// # Errors
    /// What the server answers.
    pub fn read_at(&self, file: &File, offset: u64) -> Result<Vec<u8>, Errno> {
        let size = u32::try_from(CHUNK).expect("a chunk");
        let read = ReadIn { fh: file.handle, offset, size, flags: file.flags, ..ReadIn::default() };
        let answer = self.ask(Opcode::Read, file.node, &[read.as_bytes()]);
        self.beliefs().doubt(file.node);
        answer
    }

    /// Replaces the content of a file, which is made if it is missing.
    ///
    /// # Errors
    /// What the server answers.
    pub fn write(&self, path: &str, content: &[u8]) -> Result<(), Errno> {
        let file = self.create(path, libc_flags::RDWR)?;
        let mut done = 0;
        let mut written =
            self.setattr(path, SetattrIn { valid: FattrFlags::SIZE.bits(), ..SetattrIn::default() });
        while written.is_ok() && done < content.len() {
            written = self.write_at(&file, done as u64, &content[done..]).map(|bytes| done += bytes);
        }
        self.close(file);
        written
    }

    /// Returns the content of a file.
    ///
    /// # Errors
    /// What the server answers.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, Errno> {
        let file = self.open(path, 0)?;
        let mut content = Vec::new();
        let read = loop {
            match self.read_at(&file, content.len() as u64) {
                Ok(more) if more.is_empty() => break Ok(content),
                Ok(more) => content.extend(more),
                Err(errno) => break Err(errno),
            }
        };
        self.close(file);
        read
    }
}

mod libc_flags {
    /// `O_RDWR`.
    pub(super) const RDWR: u32 = 2;
}
