//! The floor: a FUSE server that answers from memory, so that a request costs little more than its round trip.
//!
//! It does the minimum that a pool must do. Each file has its own backing file in memory, registered for passthrough
//! at the first open, as in every server with passthrough. So the kernel handles as many files as with a pool. A
//! directory named `full.N.TAG` contains N files from the start, so that the benchmark can look up names that the
//! kernel has never seen without creating them.
//!
//! The cost of moving data depends on where a file lies in memory. So both sides use the same files: the directory
//! `data` passes the files of a real directory through, which only costs kernel time. The directory `copied` has the
//! same files, but the server reads and writes them, with one copy. That is the minimum without passthrough.
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
const SYMLINK: u32 = 0o120_777;
const ROOT: u64 = 1;
/// How long the kernel may cache names and attributes. Only the kernel changes them.
const CACHE_TTL: Duration = Duration::from_secs(3600);
/// The least number of workers that a pool has.
const WORKERS: usize = 4;
/// The reported size of every file in memory.
const SIZE: u64 = 4096;
/// The number of a file in a `full` directory consists of the directory's node number above these bits and the
/// file's index below.
const INDEX_BITS: u32 = 32;

/// The directories that show the files of a real directory. The first exists if the kernel allows passthrough.
pub(crate) const PASSTHROUGH_DIR: &str = "data";
pub(crate) const COPIED_DIR: &str = "copied";

/// Runs `canopy bench-floor MOUNTPOINT` until it is unmounted. Uses io_uring if it is available, as pools do.
pub fn serve(mountpoint: &Path, io_uring: bool, existing: Option<&Path>) -> Result<(), Error> {
    let failed = |why: String| Error::Serve { mountpoint: mountpoint.to_owned(), why };
    let mut spec = MountSpec::new(mountpoint, "floor", "canopy-floor");
    spec.default_permissions = true;
    let mut options = options();
    if io_uring {
        // If this fails, the session falls back to /dev/fuse, as in a pool.
        let _ = uring::turn_on();
        options.flags |= InitFlags::OVER_IO_URING;
    }
    let (device, mounted) = mount(&spec).map_err(|error| failed(error.to_string()))?;
    let session =
        Session::negotiate(device, &options, KernelLimits::NONE).map_err(|e| failed(e.to_string()))?;
    let registers = session.backing();
    let mut floor =
        Floor { backing: RwLock::default(), nodes: RwLock::new(Nodes::new()), real: None, registers };
    if let Some(dir) = existing {
        let nodes = floor.nodes.get_mut();
        let mut create =
            |name: &str| nodes.create(ROOT, name.as_bytes(), DIR).map_err(|errno| failed(errno.to_string()));
        let copied = create(COPIED_DIR)?;
        // Without passthrough the directory must not exist, or its figures would be wrong.
        let passthrough = memory_file(&floor.registers, &[]).map(|_| create(PASSTHROUGH_DIR)).transpose()?;
        floor.real = Some(RealDir { path: dir.to_owned(), passthrough, copied });
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

/// Registers a file in memory for passthrough. Returns `None` if that is not possible: reads then fill the page cache.
fn memory_file(registers: &Backing, data: &[u8]) -> Option<BackingId> {
    let file = rustix::fs::memfd_create("floor", MemfdFlags::CLOEXEC).ok()?;
    if !data.is_empty() {
        rustix::io::pwrite(&file, data, 0).ok()?;
    }
    registers.open(file.as_fd()).ok()
}

struct Floor {
    registers: Backing,
    /// The backing files in memory of the files that have been opened.
    backing: RwLock<HashMap<u64, BackingId>>,
    nodes: RwLock<Nodes>,
    real: Option<RealDir>,
}

/// A real directory, and the two nodes that show its files.
struct RealDir {
    path: PathBuf,
    passthrough: Option<u64>,
    copied: u64,
}

/// A file of the real directory.
struct RealFile {
    size: u64,
    data: Data,
}

enum Data {
    Passthrough(BackingId),
    Copied(OwnedFd),
}

impl RealDir {
    /// Opens a file. Returns `None` if there is no such file, or no passthrough.
    fn open(&self, registers: &Backing, parent: u64, name: &[u8]) -> Option<RealFile> {
        if parent != self.copied && Some(parent) != self.passthrough {
            return None;
        }
        let path = self.path.join(OsStr::from_bytes(name));
        let file = File::options().read(true).write(true).open(path).ok()?;
        let size = file.metadata().ok().filter(Metadata::is_file)?.len();
        let data = if parent == self.copied {
            Data::Copied(file.into())
        } else {
            Data::Passthrough(registers.open(file.as_fd()).ok()?)
        };
        Some(RealFile { size, data })
    }
}

/// The tree of nodes.
struct Nodes {
    by_id: HashMap<u64, Node>,
    last: u64,
}

#[derive(Default)]
struct Node {
    mode: u32,
    /// How many names it has beyond the first.
    links: u32,
    names: HashMap<Box<[u8]>, u64>,
    /// The number of other files in the directory, named `f0` and so on.
    full: u64,
    /// The real file that the node shows.
    real: Option<RealFile>,
}

impl Nodes {
    fn new() -> Nodes {
        let root = Node { mode: DIR, ..Node::default() };
        Nodes { by_id: HashMap::from([(ROOT, root)]), last: ROOT }
    }

    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let dir = self.by_id.get(&parent)?;
        let prefilled = || {
            let index: u64 = std::str::from_utf8(name.strip_prefix(b"f")?).ok()?.parse().ok()?;
            (index < dir.full).then_some((parent << INDEX_BITS) + index)
        };
        dir.names.get(name).copied().or_else(prefilled)
    }

    fn create(&mut self, parent: u64, name: &[u8], mode: u32) -> Result<u64, i32> {
        if self.lookup(parent, name).is_some() {
            return Err(EEXIST);
        }
        self.last += 1;
        self.by_id.get_mut(&parent).ok_or(ENOENT)?.names.insert(name.into(), self.last);
        let full = name.strip_prefix(b"full.").and_then(|rest| rest.split(|&byte| byte == b'.').next());
        let full = full.and_then(|number| std::str::from_utf8(number).ok()?.parse().ok()).unwrap_or(0);
        self.by_id.insert(self.last, Node { mode, full, ..Node::default() });
        Ok(self.last)
    }

    /// Gives a node another name.
    fn link(&mut self, id: u64, parent: u64, name: &[u8]) -> Result<(), i32> {
        if self.lookup(parent, name).is_some() {
            return Err(EEXIST);
        }
        self.by_id.get_mut(&parent).ok_or(ENOENT)?.names.insert(name.into(), id);
        if let Some(node) = self.by_id.get_mut(&id) {
            node.links += 1;
        }
        Ok(())
    }

    /// Removes a name. Returns its node if that was the last name. After that, the kernel only closes the file.
    fn remove(&mut self, parent: u64, name: &[u8]) -> Result<Option<u64>, i32> {
        let id = self.by_id.get_mut(&parent).and_then(|dir| dir.names.remove(name)).ok_or(ENOENT)?;
        Ok(self.forget_name(id))
    }

    fn forget_name(&mut self, id: u64) -> Option<u64> {
        match self.by_id.get_mut(&id) {
            Some(node) if node.links > 0 => {
                node.links -= 1;
                None
            }
            _ => self.by_id.remove(&id).map(|_| id),
        }
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) -> Result<(), i32> {
        let id = self.by_id.get_mut(&from.0).and_then(|dir| dir.names.remove(from.1)).ok_or(ENOENT)?;
        let replaced = self.by_id.get_mut(&to.0).ok_or(ENOENT)?.names.insert(to.1.into(), id);
        replaced.map(|gone| self.forget_name(gone));
        Ok(())
    }

    /// Returns the data of a real file.
    fn data(&self, id: u64) -> Option<&Data> {
        Some(&self.by_id.get(&id)?.real.as_ref()?.data)
    }

    fn attr(&self, id: u64) -> Option<Attr> {
        let mode = if id >> INDEX_BITS == 0 { self.by_id.get(&id)?.mode } else { FILE };
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let node = self.by_id.get(&id);
        let nlink = if mode == DIR { 2 } else { 1 + node.map_or(0, |node| node.links) };
        let real = node.and_then(|node| node.real.as_ref());
        let size = real.map_or(SIZE, |real| real.size);
        Some(Attr { ino: id, mode, nlink, uid, gid, size, blksize: 4096, ..Attr::default() })
    }

    fn entry(&self, id: u64) -> Option<EntryOut> {
        Some(EntryOut::new(id, 0, self.attr(id)?, CACHE_TTL, CACHE_TTL))
    }

    /// Passes the entries from an offset on to `take`, each with the next offset, until it returns false.
    fn list(&self, parent: u64, from: u64, mut take: impl FnMut(u64, u64, &[u8]) -> bool) {
        let Some(dir) = self.by_id.get(&parent) else { return };
        for index in from..dir.full {
            let mut name = [0; 24];
            let mut rest = &mut name[..];
            let _ = write!(rest, "f{index}");
            let length = 24 - rest.len();
            if !take((parent << INDEX_BITS) + index, index + 1, &name[..length]) {
                return;
            }
        }
        let created = (dir.full..).zip(&dir.names).skip(from.saturating_sub(dir.full) as usize);
        for (offset, (name, &id)) in created {
            if !take(id, offset + 1, name) {
                return;
            }
        }
    }
}

impl Floor {
    /// Returns the flags and the backing file for an open. If `is_new`, the file is empty.
    fn open(&self, id: u64, is_new: bool) -> (OpenFlags, Option<u32>) {
        match self.nodes.read().data(id) {
            Some(Data::Copied(_)) => return (OpenFlags::DIRECT_IO | OpenFlags::NOFLUSH, None),
            Some(Data::Passthrough(backing)) => return (OpenFlags::NOFLUSH, Some(backing.raw())),
            None => {}
        }
        let registered = self.backing.read().get(&id).map(BackingId::raw);
        let backing = registered.or_else(|| match self.backing.write().entry(id) {
            // While a node is open, the kernel accepts only one backing file for it.
            Entry::Occupied(backing) => Some(backing.get().raw()),
            Entry::Vacant(vacant) => {
                let data: &[u8] = if is_new { &[] } else { &[7; SIZE as usize] };
                Some(vacant.insert(memory_file(&self.registers, data)?).raw())
            }
        });
        let cache = if backing.is_some() { OpenFlags::empty() } else { OpenFlags::KEEP_CACHE };
        (cache | OpenFlags::NOFLUSH, backing)
    }

    /// Looks a real file up, and creates its node.
    fn lookup_real(&self, parent: u64, name: &[u8]) -> Option<EntryOut> {
        let file = self.real.as_ref()?.open(&self.registers, parent, name)?;
        let mut nodes = self.nodes.write();
        let id = nodes.create(parent, name, FILE).ok()?;
        nodes.by_id.get_mut(&id)?.real = Some(file);
        nodes.entry(id)
    }

    /// Reads a real file or, without passthrough, a file in memory. The latter repeats one byte.
    fn read(&self, id: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, i32> {
        if let Some(Data::Copied(file)) = self.nodes.read().data(id) {
            return rustix::io::pread(file, buffer, offset).map_err(Errno::raw_os_error);
        }
        let length = (SIZE.saturating_sub(offset) as usize).min(buffer.len());
        buffer[..length].fill(7);
        Ok(length)
    }

    /// Writes to a real file or, without passthrough, discards what is written to a file in memory.
    fn write(&self, id: u64, offset: u64, data: &[u8]) -> Result<usize, i32> {
        match self.nodes.read().data(id) {
            Some(Data::Copied(file)) => rustix::io::pwrite(file, data, offset).map_err(Errno::raw_os_error),
            _ => Ok(data.len()),
        }
    }
}

impl Handler for Floor {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        let this = request.header.node.0;
        let entry_reply = |reply: Reply<'_>, entry: Option<EntryOut>| match entry {
            Some(entry) => reply.entry(&entry),
            None => reply.entry(&EntryOut::negative(CACHE_TTL)),
        };
        let empty_reply = |reply: Reply<'_>, result: Result<(), i32>| match result {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        };
        match request.op {
            Op::Lookup { name } => {
                let nodes = self.nodes.read();
                let found = nodes.lookup(this, name.as_bytes()).and_then(|id| nodes.entry(id));
                drop(nodes);
                entry_reply(reply, found.or_else(|| self.lookup_real(this, name.as_bytes())))
            }
            Op::Getattr { .. } | Op::Setattr(_) => match self.nodes.read().attr(this) {
                Some(attr) => reply.attr(&AttrOut::new(attr, CACHE_TTL)),
                None => reply.error(ENOENT),
            },
            Op::Mkdir { name, .. } => {
                let mut nodes = self.nodes.write();
                match nodes.create(this, name.as_bytes(), DIR) {
                    Ok(id) => entry_reply(reply, nodes.entry(id)),
                    Err(errno) => reply.error(errno),
                }
            }
            Op::Create(create) => {
                let created = self.nodes.write().create(this, create.name.as_bytes(), FILE);
                match created.and_then(|id| self.nodes.read().entry(id).ok_or(ENOENT)) {
                    Ok(entry) => {
                        let (flags, backing) = self.open(entry.nodeid, true);
                        reply.created(&entry, entry.nodeid, flags, backing)
                    }
                    Err(errno) => reply.error(errno),
                }
            }
            Op::Open { .. } => {
                let (flags, backing) = self.open(this, false);
                reply.opened(this, flags, backing)
            }
            Op::Opendir { .. } => reply.opened(this, OpenFlags::CACHE_DIR | OpenFlags::KEEP_CACHE, None),
            Op::Read(io) => reply.data(io.size as usize, |buffer| self.read(this, io.offset, buffer)),
            Op::Write(io) => match self.write(this, io.offset, io.data) {
                Ok(written) => reply.written(written as u32),
                Err(errno) => reply.error(errno),
            },
            Op::Unlink { name } | Op::Rmdir { name } => {
                let removed = self.nodes.write().remove(this, name.as_bytes());
                let _backing = removed.ok().flatten().and_then(|id| self.backing.write().remove(&id));
                empty_reply(reply, removed.map(drop))
            }
            Op::Rename { name, newdir, newname, flags: 0 } => {
                let to = (newdir.0, newname.as_bytes());
                empty_reply(reply, self.nodes.write().rename((this, name.as_bytes()), to))
            }
            Op::Readdir(io) => {
                let nodes = self.nodes.read();
                let mut dir = reply.dir(io.size as usize);
                nodes.list(this, io.offset, |id, next, name| {
                    let kind = if id >> INDEX_BITS == 0 { 0 } else { FILE >> 12 };
                    !dir.push(id, next, kind, name)
                });
                dir.finish()
            }
            Op::Readdirplus(io) => {
                let nodes = self.nodes.read();
                let mut dir = reply.plus(io.size as usize);
                nodes.list(this, io.offset, |id, next, name| match nodes.entry(id) {
                    Some(entry) => !dir.push(&entry, id, next, entry.attr.mode >> 12, name),
                    None => false,
                });
                dir.finish()
            }
            Op::Release { .. } | Op::Releasedir { .. } | Op::Flush { .. } | Op::Fsync { .. } => reply.ok(),
            Op::Statfs => {
                reply.statfs(&Kstatfs { bsize: 4096, frsize: 4096, namelen: 255, ..Kstatfs::default() })
            }
            Op::Link { old, name } => {
                let mut nodes = self.nodes.write();
                match nodes.link(old.0, this, name.as_bytes()) {
                    Ok(()) => entry_reply(reply, nodes.entry(old.0)),
                    Err(errno) => reply.error(errno),
                }
            }
            Op::Symlink { name, .. } => {
                let mut nodes = self.nodes.write();
                match nodes.create(this, name.as_bytes(), SYMLINK) {
                    Ok(id) => entry_reply(reply, nodes.entry(id)),
                    Err(errno) => reply.error(errno),
                }
            }
            Op::Readlink => reply.bytes(b"target"),
            // All files have the same attribute of the user. The others are not set. ENOSYS would make the kernel stop
            // sending these requests, which pools answer.
            Op::Setxattr { .. } | Op::Removexattr { .. } => reply.ok(),
            Op::Getxattr { name, .. } if name.to_bytes().starts_with(b"user.") => reply.xattr(b"a value."),
            Op::Getxattr { .. } => reply.error(ENODATA),
            Op::Listxattr { .. } => reply.xattr(b"user.canopy-bench\0"),
            // The kernel does not send these again. A request that needs no reply gets none.
            _ => reply.error(ENOSYS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_directory_has_as_many_files_as_its_name_says() {
        let mut nodes = Nodes::new();
        let full = nodes.create(ROOT, b"full.3.x-1", DIR).unwrap();
        assert!(nodes.lookup(full, b"f2").is_some_and(|id| nodes.attr(id).unwrap().mode == FILE));
        assert!(nodes.lookup(full, b"f3").is_none() && nodes.lookup(full, b"m0").is_none());
        nodes.create(full, b"n", FILE).unwrap();
        assert_eq!(nodes.create(full, b"f0", FILE), Err(EEXIST));
        let list = |from| {
            let mut names = Vec::new();
            nodes.list(full, from, |_, next, name| {
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
    fn a_rename_replaces_its_target() {
        let mut nodes = Nodes::new();
        let id = nodes.create(ROOT, b"a", FILE).unwrap();
        nodes.create(ROOT, b"b", FILE).unwrap();
        nodes.rename((ROOT, b"a"), (ROOT, b"b")).unwrap();
        assert_eq!((nodes.lookup(ROOT, b"a"), nodes.lookup(ROOT, b"b")), (None, Some(id)));
        nodes.remove(ROOT, b"b").unwrap();
        assert!(nodes.attr(id).is_none() && nodes.remove(ROOT, b"b") == Err(ENOENT));
    }

    #[test]
    fn a_file_lives_as_long_as_one_of_its_names() {
        let mut nodes = Nodes::new();
        let id = nodes.create(ROOT, b"a", FILE).unwrap();
        nodes.link(id, ROOT, b"b").unwrap();
        assert_eq!(nodes.link(id, ROOT, b"b"), Err(EEXIST));
        assert_eq!(nodes.attr(id).unwrap().nlink, 2);
        assert_eq!(nodes.remove(ROOT, b"a"), Ok(None));
        assert_eq!((nodes.lookup(ROOT, b"b"), nodes.attr(id).unwrap().nlink), (Some(id), 1));
        assert_eq!(nodes.remove(ROOT, b"b"), Ok(Some(id)));
        // A file that a directory has from the start exists without a node.
        let full = nodes.create(ROOT, b"full.1.x", DIR).unwrap();
        let given = nodes.lookup(full, b"f0").unwrap();
        nodes.link(given, ROOT, b"c").unwrap();
        assert_eq!(nodes.lookup(ROOT, b"c"), Some(given));
        assert_eq!(nodes.remove(ROOT, b"c"), Ok(None));
    }
}
