//! The floor: a server that answers from memory, and so costs what the way there and back costs.
//!
//! It does what a pool must do to be used and nothing else. Each of its files has a backing file of its own in memory,
//! registered for passthrough when it is first opened, as every server's that passes files through; so the kernel
//! works on as many files as with a pool. A directory called `full.N.TAG` holds N files from its beginning, so that names
//! can be asked for that the kernel has never seen, without anybody making them.
//!
//! What moving data costs depends on how a file lies in memory. So the directory `data` holds the files of one that exists,
//! each passed through: what that costs is the kernel's alone. The directory `copied` holds them too, read and written
//! through the server, which copies once, as whoever has the data must.
//!
//! This server only measures. The example `memfs` of `canopy-fuse` is a small complete filesystem that keeps its data, for
//! the tests of that crate; `FaultyFs` of `canopy-testkit` serves real files with injected faults.

use crate::error::Error;
use canopy_fuse::abi::{Attr, AttrOut, EntryOut, Kstatfs};
use canopy_fuse::backing::{Backing, BackingId};
use canopy_fuse::flags::{InitFlags, OpenFlags};
use canopy_fuse::mount::{MountSpec, mount};
use canopy_fuse::transport::uring;
use canopy_fuse::{Handler, KernelLimits, Op, Replied, Reply, Request, Session, SessionOptions};
use parking_lot::RwLock;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENOSYS: i32 = 38;
const ENODATA: i32 = 61;

const DIR: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const ROOT: u64 = 1;
/// Nothing here changes behind the kernel's back.
const FOREVER: Duration = Duration::from_secs(3600);
/// As many workers as a pool has at least.
const WORKERS: usize = 4;
/// What every file is said to hold, in bytes.
const SIZE: u64 = 4096;
/// Node numbers of files that a directory holds from its beginning: its own number above these bits, the file's
/// place below.
const PLACE_BITS: u32 = 32;

/// What the directories are called whose files exist. The first is there where the kernel allows passthrough.
pub(crate) const PASSTHROUGH_DIR: &str = "data";
pub(crate) const COPIED_DIR: &str = "copied";

/// `canopy bench-floor MOUNTPOINT`: serves until it is unmounted. Over io_uring where that is to be had, as pools do.
pub fn serve(mountpoint: &Path, io_uring: bool, existing: Option<&Path>) -> Result<(), Error> {
    let failed = |why: String| Error::Serve { mountpoint: mountpoint.to_owned(), why };
    let mut spec = MountSpec::new(mountpoint, "floor", "canopy-floor");
    spec.default_permissions = true;
    let mut options = options();
    if io_uring {
        // Where it cannot be turned on, the session falls back to the device, as that of a pool does.
        let _ = uring::turn_on();
        options.flags |= InitFlags::OVER_IO_URING;
    }
    let (device, mounted) = mount(&spec).map_err(|error| failed(error.to_string()))?;
    let session =
        Session::negotiate(device, &options, KernelLimits::NONE).map_err(|e| failed(e.to_string()))?;
    let registers = session.backing();
    let mut floor =
        Floor { own: RwLock::default(), tree: RwLock::new(Tree::new()), existing: None, registers };
    if let Some(dir) = existing {
        let tree = floor.tree.get_mut();
        let mut make =
            |name: &str| tree.make(ROOT, name.as_bytes(), DIR).map_err(|errno| failed(errno.to_string()));
        let copied = make(COPIED_DIR)?;
        // Where nothing can be passed through, nobody may believe that it is.
        let through = backing(&floor.registers, &[]).map(|_| make(PASSTHROUGH_DIR)).transpose()?;
        floor.existing = Some(Existing { dir: dir.to_owned(), through, copied });
    }
    let running = session.serve(Arc::new(floor), WORKERS).map_err(|error| failed(error.to_string()))?;
    running.join().map_err(|error| failed(error.to_string()))?;
    mounted.release();
    Ok(())
}

fn options() -> SessionOptions {
    let flags = InitFlags::ASYNC_DIO
        | InitFlags::ASYNC_READ
        | InitFlags::BIG_WRITES
        | InitFlags::DO_READDIRPLUS
        | InitFlags::READDIRPLUS_AUTO
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::MAX_PAGES
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::PASSTHROUGH;
    SessionOptions { flags, ..SessionOptions::default() }
}

/// A file in memory. None where passthrough is not to be had: data then comes through the page cache.
fn backing(registers: &Backing, data: &[u8]) -> Option<BackingId> {
    let file = rustix::fs::memfd_create("floor", MemfdFlags::CLOEXEC).ok()?;
    if !data.is_empty() {
        rustix::io::pwrite(&file, data, 0).ok()?;
    }
    registers.open(file.as_fd()).ok()
}

struct Floor {
    registers: Backing,
    /// What files have that lie in memory, once they have been opened.
    own: RwLock<HashMap<u64, BackingId>>,
    tree: RwLock<Tree>,
    existing: Option<Existing>,
}

/// A directory of files that exist, and its two nodes.
struct Existing {
    dir: PathBuf,
    through: Option<u64>,
    copied: u64,
}

/// One of them.
struct Found {
    size: u64,
    data: Data,
}

enum Data {
    Through(BackingId),
    Copied(OwnedFd),
}

impl Existing {
    /// None where there is no such file, or no passthrough.
    fn file(&self, registers: &Backing, parent: u64, name: &[u8]) -> Option<Found> {
        if parent != self.copied && Some(parent) != self.through {
            return None;
        }
        let path = self.dir.join(OsStr::from_bytes(name));
        let file = File::options().read(true).write(true).open(path).ok()?;
        let size = file.metadata().ok().filter(Metadata::is_file)?.len();
        let data = match parent == self.copied {
            true => Data::Copied(file.into()),
            false => Data::Through(registers.open(file.as_fd()).ok()?),
        };
        Some(Found { size, data })
    }
}

struct Tree {
    nodes: HashMap<u64, Node>,
    last: u64,
}

#[derive(Default)]
struct Node {
    mode: u32,
    names: HashMap<Box<[u8]>, u64>,
    /// How many files it holds besides: `f0` and so on.
    full: u64,
    /// It exists.
    found: Option<Found>,
}

impl Tree {
    fn new() -> Tree {
        let root = Node { mode: DIR, ..Node::default() };
        Tree { nodes: HashMap::from([(ROOT, root)]), last: ROOT }
    }

    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let dir = self.nodes.get(&parent)?;
        let from_the_beginning = || {
            let place: u64 = std::str::from_utf8(name.strip_prefix(b"f")?).ok()?.parse().ok()?;
            (place < dir.full).then_some((parent << PLACE_BITS) + place)
        };
        dir.names.get(name).copied().or_else(from_the_beginning)
    }

    fn make(&mut self, parent: u64, name: &[u8], mode: u32) -> Result<u64, i32> {
        if self.lookup(parent, name).is_some() {
            return Err(EEXIST);
        }
        self.last += 1;
        self.nodes.get_mut(&parent).ok_or(ENOENT)?.names.insert(name.into(), self.last);
        let full = name.strip_prefix(b"full.").and_then(|rest| rest.split(|&byte| byte == b'.').next());
        let full = full.and_then(|number| std::str::from_utf8(number).ok()?.parse().ok()).unwrap_or(0);
        self.nodes.insert(self.last, Node { mode, full, ..Node::default() });
        Ok(self.last)
    }

    /// Nothing is asked of a file after its name is gone, but to be closed.
    fn remove(&mut self, parent: u64, name: &[u8]) -> Result<u64, i32> {
        let id = self.nodes.get_mut(&parent).and_then(|dir| dir.names.remove(name)).ok_or(ENOENT)?;
        self.nodes.remove(&id);
        Ok(id)
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) -> Result<(), i32> {
        let id = self.nodes.get_mut(&from.0).and_then(|dir| dir.names.remove(from.1)).ok_or(ENOENT)?;
        let replaced = self.nodes.get_mut(&to.0).ok_or(ENOENT)?.names.insert(to.1.into(), id);
        replaced.map(|gone| self.nodes.remove(&gone));
        Ok(())
    }

    /// Of a file that exists.
    fn data(&self, id: u64) -> Option<&Data> {
        Some(&self.nodes.get(&id)?.found.as_ref()?.data)
    }

    fn attr(&self, id: u64) -> Option<Attr> {
        let mode = if id >> PLACE_BITS == 0 { self.nodes.get(&id)?.mode } else { FILE };
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let nlink = if mode == DIR { 2 } else { 1 };
        let found = self.nodes.get(&id).and_then(|node| node.found.as_ref());
        let size = found.map_or(SIZE, |found| found.size);
        Some(Attr { ino: id, mode, nlink, uid, gid, size, blksize: 4096, ..Attr::default() })
    }

    fn entry(&self, id: u64) -> Option<EntryOut> {
        Some(EntryOut::new(id, 0, self.attr(id)?, FOREVER, FOREVER))
    }

    /// What a listing gives from an offset on, each with the offset of what follows it.
    fn listed(&self, parent: u64, from: u64, mut give: impl FnMut(u64, u64, &[u8]) -> bool) {
        let Some(dir) = self.nodes.get(&parent) else { return };
        for place in from..dir.full {
            let mut name = [0; 24];
            let mut rest = &mut name[..];
            let _ = write!(rest, "f{place}");
            let length = 24 - rest.len();
            if !give((parent << PLACE_BITS) + place, place + 1, &name[..length]) {
                return;
            }
        }
        let made = (dir.full..).zip(&dir.names).skip(from.saturating_sub(dir.full) as usize);
        for (offset, (name, &id)) in made {
            if !give(id, offset + 1, name) {
                return;
            }
        }
    }
}

impl Floor {
    /// How a file's data travels. `made`: it has none yet.
    fn opened(&self, id: u64, made: bool) -> (OpenFlags, Option<u32>) {
        match self.tree.read().data(id) {
            Some(Data::Copied(_)) => return (OpenFlags::DIRECT_IO | OpenFlags::NOFLUSH, None),
            Some(Data::Through(backing)) => return (OpenFlags::NOFLUSH, Some(backing.raw())),
            None => {}
        }
        let known = self.own.read().get(&id).map(BackingId::raw);
        let own = known.or_else(|| match self.own.write().entry(id) {
            // One node has one backing file: the kernel takes no other while it is open.
            Entry::Occupied(own) => Some(own.get().raw()),
            Entry::Vacant(own) => {
                let data: &[u8] = if made { &[] } else { &[7; SIZE as usize] };
                Some(own.insert(backing(&self.registers, data)?).raw())
            }
        });
        (if own.is_some() { OpenFlags::NOFLUSH } else { OpenFlags::KEEP_CACHE | OpenFlags::NOFLUSH }, own)
    }

    /// A file that exists becomes known once it is asked for.
    fn find(&self, parent: u64, name: &[u8]) -> Option<EntryOut> {
        let found = self.existing.as_ref()?.file(&self.registers, parent, name)?;
        let mut tree = self.tree.write();
        let id = tree.make(parent, name, FILE).ok()?;
        tree.nodes.get_mut(&id)?.found = Some(found);
        tree.entry(id)
    }

    /// Where nothing is passed through, files in memory are read and written here too: all of one byte, and never kept.
    fn read(&self, id: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, i32> {
        if let Some(Data::Copied(file)) = self.tree.read().data(id) {
            return rustix::io::pread(file, buffer, offset).map_err(Errno::raw_os_error);
        }
        let length = (SIZE.saturating_sub(offset) as usize).min(buffer.len());
        buffer[..length].fill(7);
        Ok(length)
    }

    fn write(&self, id: u64, offset: u64, data: &[u8]) -> Result<usize, i32> {
        match self.tree.read().data(id) {
            Some(Data::Copied(file)) => rustix::io::pwrite(file, data, offset).map_err(Errno::raw_os_error),
            _ => Ok(data.len()),
        }
    }
}

impl Handler for Floor {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        let this = request.header.node.0;
        let known = |reply: Reply<'_>, entry: Option<EntryOut>| match entry {
            Some(entry) => reply.entry(&entry),
            None => reply.entry(&EntryOut::negative(FOREVER)),
        };
        let done = |reply: Reply<'_>, result: Result<(), i32>| match result {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        };
        match request.op {
            Op::Lookup { name } => {
                let tree = self.tree.read();
                let found = tree.lookup(this, name.as_bytes()).and_then(|id| tree.entry(id));
                drop(tree);
                known(reply, found.or_else(|| self.find(this, name.as_bytes())))
            }
            Op::Getattr { .. } | Op::Setattr(_) => match self.tree.read().attr(this) {
                Some(attr) => reply.attr(&AttrOut::new(attr, FOREVER)),
                None => reply.error(ENOENT),
            },
            Op::Mkdir { name, .. } => {
                let mut tree = self.tree.write();
                match tree.make(this, name.as_bytes(), DIR) {
                    Ok(id) => known(reply, tree.entry(id)),
                    Err(errno) => reply.error(errno),
                }
            }
            Op::Create(create) => {
                let made = self.tree.write().make(this, create.name.as_bytes(), FILE);
                match made.and_then(|id| self.tree.read().entry(id).ok_or(ENOENT)) {
                    Ok(entry) => {
                        let (flags, backing) = self.opened(entry.nodeid, true);
                        reply.created(&entry, entry.nodeid, flags, backing)
                    }
                    Err(errno) => reply.error(errno),
                }
            }
            Op::Open { .. } => {
                let (flags, backing) = self.opened(this, false);
                reply.opened(this, flags, backing)
            }
            Op::Opendir { .. } => reply.opened(this, OpenFlags::CACHE_DIR | OpenFlags::KEEP_CACHE, None),
            Op::Read(io) => reply.data(io.size as usize, |buffer| self.read(this, io.offset, buffer)),
            Op::Write(io) => match self.write(this, io.offset, io.data) {
                Ok(written) => reply.written(written as u32),
                Err(errno) => reply.error(errno),
            },
            Op::Unlink { name } | Op::Rmdir { name } => {
                let removed = self.tree.write().remove(this, name.as_bytes());
                let _own = removed.as_ref().ok().and_then(|id| self.own.write().remove(id));
                done(reply, removed.map(drop))
            }
            Op::Rename { name, newdir, newname, flags: 0 } => {
                let to = (newdir.0, newname.as_bytes());
                done(reply, self.tree.write().rename((this, name.as_bytes()), to))
            }
            Op::Readdir(io) => {
                let tree = self.tree.read();
                let mut dir = reply.dir(io.size as usize);
                tree.listed(this, io.offset, |id, next, name| {
                    let kind = if id >> PLACE_BITS == 0 { 0 } else { FILE >> 12 };
                    !dir.push(id, next, kind, name)
                });
                dir.finish()
            }
            Op::Readdirplus(io) => {
                let tree = self.tree.read();
                let mut dir = reply.plus(io.size as usize);
                tree.listed(this, io.offset, |id, next, name| match tree.entry(id) {
                    Some(entry) => !dir.push(&entry, id, next, entry.attr.mode >> 12, name),
                    None => false,
                });
                dir.finish()
            }
            Op::Release { .. } | Op::Releasedir { .. } | Op::Flush { .. } | Op::Fsync { .. } => reply.ok(),
            Op::Statfs => {
                reply.statfs(&Kstatfs { bsize: 4096, frsize: 4096, namelen: 255, ..Kstatfs::default() })
            }
            // What the kernel need not ask again; of requests without an answer none is sent.
            // It has extended attributes, as a pool has, but this one is not set. ENOSYS would end all such questions.
            Op::Getxattr { .. } => reply.error(ENODATA),
            _ => reply.error(ENOSYS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_directory_holds_what_its_name_says() {
        let mut tree = Tree::new();
        let full = tree.make(ROOT, b"full.3.x-1", DIR).unwrap();
        assert!(tree.lookup(full, b"f2").is_some_and(|id| tree.attr(id).unwrap().mode == FILE));
        assert!(tree.lookup(full, b"f3").is_none() && tree.lookup(full, b"m0").is_none());
        tree.make(full, b"n", FILE).unwrap();
        assert_eq!(tree.make(full, b"f0", FILE), Err(EEXIST));
        let list = |from| {
            let mut names = Vec::new();
            tree.listed(full, from, |_, next, name| {
                names.push((String::from_utf8(name.to_vec()).unwrap(), next));
                true
            });
            names
        };
        let all = [("f0".into(), 1), ("f1".into(), 2), ("f2".into(), 3), ("n".into(), 4)];
        assert_eq!(list(0), all);
        assert_eq!(list(2), all[2..]);
        assert_eq!(list(4), []);
    }

    #[test]
    fn names_move_and_go() {
        let mut tree = Tree::new();
        let id = tree.make(ROOT, b"a", FILE).unwrap();
        tree.make(ROOT, b"b", FILE).unwrap();
        tree.rename((ROOT, b"a"), (ROOT, b"b")).unwrap();
        assert_eq!((tree.lookup(ROOT, b"a"), tree.lookup(ROOT, b"b")), (None, Some(id)));
        tree.remove(ROOT, b"b").unwrap();
        assert!(tree.attr(id).is_none() && tree.remove(ROOT, b"b") == Err(ENOENT));
    }
}
