//! A filesystem in memory, for the example and the tests: one table of nodes under one lock.
//!
//! It keeps what clients write, so that tests can check it. The floor server of `canopy-bench` answers only what its
//! workloads ask, with files passed through as in a pool; `FaultyFs` of `canopy-testkit` serves real files with faults.

#![allow(dead_code, unreachable_pub, reason = "shared by an example and tests, each of which uses a part")]

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use canopy_fuse::abi::{Attr, AttrOut, EntryOut, FileLock, Kstatfs, Statx, StatxOut, SxTime};
use canopy_fuse::flags::{InitFlags, OpenFlags};
use canopy_fuse::request::{NodeId, Op, SetTime, Setattr};
use canopy_fuse::{Handler, Replied, Reply, Request, SessionOptions, Undelivered};
use parking_lot::Mutex;

pub const ENOENT: i32 = 2;
pub const EEXIST: i32 = 17;
pub const ENOTDIR: i32 = 20;
pub const EINVAL: i32 = 22;
pub const ENOTTY: i32 = 25;
pub const ENOSYS: i32 = 38;
pub const ENOTEMPTY: i32 = 39;
pub const ENODATA: i32 = 61;

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

/// Unwraps a value, or returns the errno together with the reply to send it with.
macro_rules! attempt {
    ($reply:ident, $result:expr) => {
        match $result {
            Ok(value) => value,
            Err(errno) => return Err(($reply, errno)),
        }
    };
}

/// Returns the options to negotiate.
pub fn options() -> SessionOptions {
    let flags = InitFlags::ASYNC_READ
        | InitFlags::ATOMIC_O_TRUNC
        | InitFlags::BIG_WRITES
        | InitFlags::DONT_MASK
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::DO_READDIRPLUS
        | InitFlags::READDIRPLUS_AUTO
        | InitFlags::MAX_PAGES
        | InitFlags::SETXATTR_EXT
        | InitFlags::CREATE_SUPP_GROUP
        | InitFlags::ALLOW_IDMAP
        | InitFlags::PASSTHROUGH;
    SessionOptions { flags, ..SessionOptions::default() }
}

struct Node {
    attr: Attr,
    data: Vec<u8>,
    children: Children,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    lookups: u64,
}

/// The names of a directory, by name and in the order of creation. Offsets are positions in that order, so they stay valid
/// while other names are removed.
#[derive(Default)]
struct Children {
    by_name: HashMap<Vec<u8>, u64>,
    by_offset: BTreeMap<u64, (Vec<u8>, u64)>,
    last: u64,
}

impl Children {
    fn get(&self, name: &[u8]) -> Option<u64> {
        self.by_name.get(name).map(|offset| self.by_offset[offset].1)
    }

    fn insert(&mut self, name: &[u8], id: u64) {
        self.remove(name);
        self.last += 1;
        self.by_name.insert(name.to_vec(), self.last);
        self.by_offset.insert(self.last, (name.to_vec(), id));
    }

    fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let offset = self.by_name.remove(name)?;
        self.by_offset.remove(&offset).map(|(_, id)| id)
    }

    /// Returns offset, name and node of the entries after an offset.
    fn after(&self, offset: u64) -> impl Iterator<Item = (u64, &[u8], u64)> {
        self.by_offset.range(offset + 1..).map(|(&offset, (name, id))| (offset, name.as_slice(), *id))
    }
}

struct Tree {
    nodes: HashMap<u64, Node>,
    next: u64,
}

pub struct Memory {
    tree: Mutex<Tree>,
    ttl: Duration,
    pub requests: AtomicU64,
    pub undelivered: Mutex<Vec<Undelivered>>,
    /// Called first for every request.
    pub hook: Option<Hook>,
}

/// A function of a test that answers some requests itself.
pub type Hook = Box<dyn for<'a, 'b> Fn(&Request<'a>, Reply<'b>) -> Result<Replied, Reply<'b>> + Send + Sync>;

impl Memory {
    pub fn new(ttl: Duration) -> Memory {
        let attr = Attr { ino: 1, mode: S_IFDIR | 0o755, nlink: 2, blksize: 4096, ..Attr::default() };
        let tree = Tree { nodes: HashMap::from([(1, node(attr))]), next: 2 };
        Memory {
            tree: Mutex::new(tree),
            ttl,
            requests: AtomicU64::new(0),
            undelivered: Mutex::default(),
            hook: None,
        }
    }

    /// Changes a file behind the kernel's back.
    pub fn overwrite(&self, name: &[u8], data: &[u8]) -> u64 {
        let mut tree = self.tree.lock();
        let id = tree.nodes[&1].children.get(name).unwrap();
        let node = tree.nodes.get_mut(&id).unwrap();
        node.data = data.to_vec();
        node.attr.size = data.len() as u64;
        id
    }

    /// Removes a name from the root behind the kernel's back, and returns its node.
    pub fn remove_name(&self, name: &[u8]) -> u64 {
        self.tree.lock().nodes.get_mut(&1).unwrap().children.remove(name).unwrap()
    }

    /// Lets all users create files in the root.
    pub fn make_root_writable(&mut self) {
        self.tree.lock().nodes.get_mut(&1).unwrap().attr.mode = S_IFDIR | 0o777;
    }

    /// Returns the lookup count of a node, or 0 if the node does not exist.
    pub fn lookups(&self, id: u64) -> u64 {
        self.tree.lock().nodes.get(&id).map_or(0, |node| node.lookups)
    }

    pub fn node_of(&self, name: &[u8]) -> Option<u64> {
        self.tree.lock().nodes[&1].children.get(name)
    }

    fn entry(&self, node: &mut Node) -> EntryOut {
        node.lookups += 1;
        EntryOut::new(node.attr.ino, 0, node.attr, self.ttl, self.ttl)
    }

    fn make(
        &self,
        request: &Request<'_>,
        name: &[u8],
        mode: u32,
        rdev: u32,
        data: &[u8],
    ) -> Result<EntryOut, i32> {
        let mut tree = self.tree.lock();
        let id = tree.next;
        let parent = tree.nodes.get_mut(&request.header.node.0).ok_or(ENOENT)?;
        if parent.children.get(name).is_some() {
            return Err(EEXIST);
        }
        parent.children.insert(name, id);
        tree.next += 1;
        let (uid, gid) = (request.header.uid, request.header.gid);
        let nlink = if mode & S_IFMT == S_IFDIR { 2 } else { 1 };
        let size = data.len() as u64;
        let mut fresh =
            node(Attr { ino: id, mode, uid, gid, rdev, nlink, size, blksize: 4096, ..Attr::default() });
        fresh.data = data.to_vec();
        let entry = self.entry(&mut fresh);
        tree.nodes.insert(id, fresh);
        Ok(entry)
    }

    fn remove(&self, parent: NodeId, name: &[u8], dir: bool) -> Result<(), i32> {
        let mut tree = self.tree.lock();
        let id = tree.nodes.get(&parent.0).ok_or(ENOENT)?.children.get(name).ok_or(ENOENT)?;
        if dir && tree.nodes[&id].attr.mode & S_IFMT != S_IFDIR {
            return Err(ENOTDIR);
        }
        if !tree.nodes[&id].children.by_name.is_empty() {
            return Err(ENOTEMPTY);
        }
        tree.nodes.get_mut(&parent.0).ok_or(ENOENT)?.children.remove(name);
        let node = tree.nodes.get_mut(&id).ok_or(ENOENT)?;
        node.attr.nlink = node.attr.nlink.saturating_sub(1);
        Ok(())
    }

    fn forget(&self, id: NodeId, count: u64) {
        let mut tree = self.tree.lock();
        let Some(node) = tree.nodes.get_mut(&id.0) else { return };
        node.lookups = node.lookups.saturating_sub(count);
        if node.lookups == 0 && node.attr.nlink == 0 {
            tree.nodes.remove(&id.0);
        }
    }

    fn setattr(node: &mut Node, set: &Setattr) {
        if let Some(mode) = set.mode {
            node.attr.mode = node.attr.mode & S_IFMT | mode & !S_IFMT;
        }
        node.attr.uid = set.uid.unwrap_or(node.attr.uid);
        node.attr.gid = set.gid.unwrap_or(node.attr.gid);
        if let Some(size) = set.size {
            node.data.resize(size as usize, 0);
            node.attr.size = size;
        }
        if let Some(SetTime::At(time)) = set.mtime {
            (node.attr.mtime, node.attr.mtimensec) = (time.sec.cast_unsigned(), time.nsec);
        }
        if let Some(SetTime::At(time)) = set.atime {
            (node.attr.atime, node.attr.atimensec) = (time.sec.cast_unsigned(), time.nsec);
        }
    }

    fn serve<'b>(&self, request: &Request<'_>, reply: Reply<'b>) -> Result<Replied, (Reply<'b>, i32)> {
        let this = request.header.node;
        Ok(match request.op {
            Op::Lookup { .. }
            | Op::Symlink { .. }
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Link { .. }
            | Op::Create(_) => return self.serve_name(request, reply),
            Op::Getattr { .. }
            | Op::Statx { .. }
            | Op::Setattr(_)
            | Op::Readlink
            | Op::Setxattr { .. }
            | Op::Getxattr { .. }
            | Op::Listxattr { .. }
            | Op::Removexattr { .. } => return self.serve_inode(request, reply),
            Op::Open { .. }
            | Op::Opendir { .. }
            | Op::Read(_)
            | Op::Write(_)
            | Op::Readdir(_)
            | Op::Readdirplus(_)
            | Op::CopyFileRange(_)
            | Op::Lseek { .. } => return self.serve_open_file(request, reply),
            Op::Forget { nlookup } => {
                self.forget(this, nlookup);
                reply.none()
            }
            Op::BatchForget(items) => {
                items.for_each(|item| self.forget(item.node, item.nlookup));
                reply.none()
            }
            Op::Interrupt { .. } | Op::NotifyReply { .. } => reply.none(),
            Op::Release { .. }
            | Op::Releasedir { .. }
            | Op::Flush { .. }
            | Op::Fsync { .. }
            | Op::Fsyncdir { .. }
            | Op::Access { .. }
            | Op::Syncfs
            | Op::Destroy => reply.ok(),
            Op::Statfs => {
                reply.statfs(&Kstatfs { bsize: 4096, frsize: 4096, namelen: 255, ..Kstatfs::default() })
            }
            Op::Getlk(lock) => reply.lock(&FileLock { typ: 2, ..lock.lock }),
            Op::Setlk(_) | Op::Setlkw(_) => reply.ok(),
            Op::Fallocate { .. } => reply.ok(),
            Op::Poll { events, .. } => reply.poll(events),
            Op::Bmap { block, .. } => reply.bmap(block),
            Op::Ioctl { .. } => reply.error(ENOTTY),
            Op::Init(_)
            | Op::CuseInit(_)
            | Op::Unknown(_)
            | Op::Tmpfile(_)
            | Op::SetupMapping(_)
            | Op::RemoveMapping { .. } => reply.error(ENOSYS),
        })
    }

    /// Serves requests about names in a directory.
    fn serve_name<'b>(&self, request: &Request<'_>, reply: Reply<'b>) -> Result<Replied, (Reply<'b>, i32)> {
        let this = request.header.node;
        let mut guard = self.tree.lock();
        let tree = &mut *guard;
        Ok(match request.op {
            Op::Lookup { name } => {
                let children = &attempt!(reply, tree.nodes.get(&this.0).ok_or(ENOENT)).children;
                let Some(id) = children.get(name.as_bytes()) else {
                    return Ok(reply.entry(&EntryOut::negative(self.ttl)));
                };
                let entry = self.entry(attempt!(reply, tree.nodes.get_mut(&id).ok_or(ENOENT)));
                reply.entry(&entry)
            }
            Op::Symlink { name, target } => {
                drop(guard);
                let made = self.make(request, name.as_bytes(), S_IFLNK | 0o777, 0, target.to_bytes());
                let entry = attempt!(reply, made);
                reply.entry(&entry)
            }
            Op::Mknod { name, mode, rdev, umask } => {
                drop(guard);
                let entry = attempt!(reply, self.make(request, name.as_bytes(), mode & !umask, rdev, b""));
                reply.entry(&entry)
            }
            Op::Mkdir { name, mode, umask } => {
                drop(guard);
                let mode = S_IFDIR | mode & !umask & !S_IFMT;
                let entry = attempt!(reply, self.make(request, name.as_bytes(), mode, 0, b""));
                reply.entry(&entry)
            }
            Op::Unlink { name } => {
                drop(guard);
                attempt!(reply, self.remove(this, name.as_bytes(), false));
                reply.ok()
            }
            Op::Rmdir { name } => {
                drop(guard);
                attempt!(reply, self.remove(this, name.as_bytes(), true));
                reply.ok()
            }
            Op::Rename { name, newdir, newname, flags: 0 } => {
                let from = attempt!(reply, tree.nodes.get_mut(&this.0).ok_or(ENOENT));
                let id = attempt!(reply, from.children.remove(name.as_bytes()).ok_or(ENOENT));
                let into = attempt!(reply, tree.nodes.get_mut(&newdir.0).ok_or(ENOENT));
                into.children.insert(newname.as_bytes(), id);
                reply.ok()
            }
            Op::Rename { .. } => reply.error(EINVAL),
            Op::Link { old, name } => {
                let parent = attempt!(reply, tree.nodes.get_mut(&this.0).ok_or(ENOENT));
                parent.children.insert(name.as_bytes(), old.0);
                let node = attempt!(reply, tree.nodes.get_mut(&old.0).ok_or(ENOENT));
                node.attr.nlink += 1;
                reply.entry(&self.entry(node))
            }
            Op::Create(create) => {
                drop(guard);
                let mode = S_IFREG | create.mode & !create.umask & !S_IFMT;
                let entry = attempt!(reply, self.make(request, create.name.as_bytes(), mode, 0, b""));
                reply.created(&entry, entry.nodeid, OpenFlags::NOFLUSH, None)
            }
            _ => reply.error(ENOSYS),
        })
    }

    /// Serves requests about the attributes of a node, its target and its extended attributes.
    fn serve_inode<'b>(&self, request: &Request<'_>, reply: Reply<'b>) -> Result<Replied, (Reply<'b>, i32)> {
        let this = request.header.node;
        let mut guard = self.tree.lock();
        let tree = &mut *guard;
        Ok(match request.op {
            Op::Getattr { .. } => {
                let node = attempt!(reply, tree.nodes.get(&this.0).ok_or(ENOENT));
                reply.attr(&AttrOut::new(node.attr, self.ttl))
            }
            Op::Statx { .. } => {
                let attr = attempt!(reply, tree.nodes.get(&this.0).ok_or(ENOENT)).attr;
                let stat = Statx {
                    mask: 0x7ff,
                    ino: attr.ino,
                    size: attr.size,
                    mode: attr.mode as u16,
                    nlink: attr.nlink,
                    uid: attr.uid,
                    gid: attr.gid,
                    blksize: attr.blksize,
                    mtime: SxTime { sec: attr.mtime.cast_signed(), nsec: attr.mtimensec, reserved: 0 },
                    ..Statx::default()
                };
                reply.statx(&StatxOut::new(stat, self.ttl))
            }
            Op::Setattr(set) => {
                let node = attempt!(reply, tree.nodes.get_mut(&this.0).ok_or(ENOENT));
                Memory::setattr(node, &set);
                reply.attr(&AttrOut::new(node.attr, self.ttl))
            }
            Op::Readlink => {
                let node = attempt!(reply, tree.nodes.get(&this.0).ok_or(ENOENT));
                reply.bytes(&node.data)
            }
            Op::Setxattr { name, value, .. } => {
                let node = attempt!(reply, tree.nodes.get_mut(&this.0).ok_or(ENOENT));
                node.xattrs.insert(name.to_bytes().to_vec(), value.to_vec());
                reply.ok()
            }
            Op::Getxattr { name, .. } => {
                let node = attempt!(reply, tree.nodes.get(&this.0).ok_or(ENOENT));
                let value = attempt!(reply, node.xattrs.get(name.to_bytes()).ok_or(ENODATA));
                reply.xattr(value)
            }
            Op::Listxattr { .. } => {
                let node = attempt!(reply, tree.nodes.get(&this.0).ok_or(ENOENT));
                let list: Vec<u8> =
                    node.xattrs.keys().flat_map(|name| [name.as_slice(), b"\0"].concat()).collect();
                reply.xattr(&list)
            }
            Op::Removexattr { name } => {
                let node = attempt!(reply, tree.nodes.get_mut(&this.0).ok_or(ENOENT));
                attempt!(reply, node.xattrs.remove(name.to_bytes()).ok_or(ENODATA));
                reply.ok()
            }
            _ => reply.error(ENOSYS),
        })
    }

    /// Serves requests about an open file or directory.
    fn serve_open_file<'b>(
        &self,
        request: &Request<'_>,
        reply: Reply<'b>,
    ) -> Result<Replied, (Reply<'b>, i32)> {
        let this = request.header.node;
        let mut guard = self.tree.lock();
        let tree = &mut *guard;
        Ok(match request.op {
            Op::Open { flags, .. } => {
                const O_TRUNC: u32 = 0o1000;
                let node = attempt!(reply, tree.nodes.get_mut(&this.0).ok_or(ENOENT));
                if flags & O_TRUNC != 0 {
                    node.data.clear();
                    node.attr.size = 0;
                }
                reply.opened(this.0, OpenFlags::NOFLUSH | OpenFlags::KEEP_CACHE, None)
            }
            Op::Opendir { .. } => reply.opened(this.0, OpenFlags::empty(), None),
            Op::Read(io) => {
                let data = &attempt!(reply, tree.nodes.get(&this.0).ok_or(ENOENT)).data;
                let rest = data.get(io.offset as usize..).unwrap_or(&[]);
                reply.data(io.size as usize, |buf| {
                    let len = rest.len().min(buf.len());
                    buf[..len].copy_from_slice(&rest[..len]);
                    Ok(len)
                })
            }
            Op::Write(io) => {
                let node = attempt!(reply, tree.nodes.get_mut(&this.0).ok_or(ENOENT));
                let (start, end) = (io.offset as usize, io.offset as usize + io.data.len());
                if node.data.len() < end {
                    node.data.resize(end, 0);
                }
                node.data[start..end].copy_from_slice(io.data);
                node.attr.size = node.data.len() as u64;
                reply.written(io.data.len() as u32)
            }
            Op::Readdir(io) => {
                let children = &attempt!(reply, tree.nodes.get(&this.0).ok_or(ENOENT)).children;
                let mut dir = reply.dir(io.size as usize);
                for (offset, name, id) in children.after(io.offset) {
                    let kind = tree.nodes.get(&id).map_or(0, |node| node.attr.mode >> 12);
                    if dir.push(id, offset, kind, name) {
                        break;
                    }
                }
                dir.finish()
            }
            Op::Readdirplus(io) => {
                let node = attempt!(reply, tree.nodes.get_mut(&this.0).ok_or(ENOENT));
                // Taken out, because the loop borrows the child nodes mutably.
                let children = std::mem::take(&mut node.children);
                let mut dir = reply.plus(io.size as usize);
                for (offset, name, id) in children.after(io.offset) {
                    let Some(child) = tree.nodes.get_mut(&id).filter(|_| dir.fits(name.len())) else { break };
                    let entry = self.entry(child);
                    assert!(!dir.push(&entry, id, offset, entry.attr.mode >> 12, name));
                }
                if let Some(node) = tree.nodes.get_mut(&this.0) {
                    node.children = children;
                }
                dir.finish()
            }
            Op::Lseek { offset, .. } => reply.lseek(offset),
            Op::CopyFileRange(range) => {
                let source = &attempt!(reply, tree.nodes.get(&this.0).ok_or(ENOENT)).data;
                let rest = source.get(range.offset_in as usize..).unwrap_or(&[]);
                let part = rest[..rest.len().min(range.len as usize)].to_vec();
                let node = attempt!(reply, tree.nodes.get_mut(&range.node_out.0).ok_or(ENOENT));
                let start = range.offset_out as usize;
                if node.data.len() < start + part.len() {
                    node.data.resize(start + part.len(), 0);
                }
                node.data[start..start + part.len()].copy_from_slice(&part);
                node.attr.size = node.data.len() as u64;
                reply.copied(part.len() as u64, range.reply64)
            }
            _ => reply.error(ENOSYS),
        })
    }
}

fn node(attr: Attr) -> Node {
    Node { attr, data: Vec::new(), children: Children::default(), xattrs: BTreeMap::new(), lookups: 0 }
}

impl Handler for Memory {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let reply = match &self.hook {
            Some(hook) => match hook(&request, reply) {
                Ok(replied) => return replied,
                Err(reply) => reply,
            },
            None => reply,
        };
        match self.serve(&request, reply) {
            Ok(replied) => replied,
            Err((reply, errno)) => reply.error(errno),
        }
    }

    fn undelivered(&self, what: Undelivered) {
        self.undelivered.lock().push(what);
        if let Undelivered::Entry { node } | Undelivered::Created { node, .. } = what {
            self.forget(node, 1);
        }
    }
}
