//! Listing directories: the names of all branches, each once.
//!
//! A listing is made whole at its first read and again at each rewind, and is then served by position, so
//! that a position (`telldir`) stays good whatever happens to the directory meanwhile. Names are told
//! apart exactly, never by hash alone.

use crate::beneath;
use crate::branch::{BranchId, Branches};
use crate::config::{FollowSymlinks, Func, ReaddirMode};
use crate::follow::Follow;
use crate::inode::DirentInodes;
use crate::node::{Identity, Node};
use crate::ops::lookup::Entry;
use crate::policy::{self, Category};
use crate::relocate::is_reserved;
use crate::resolve::{Copies, Dirs, PerBranch};
use crate::{Error, HandleId, NodeId, Pool, Result};
use hashbrown::HashTable;
use parking_lot::Mutex;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{OFlags, RawDir};
use rustix::io::Errno;
use std::hash::BuildHasher;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One entry, as getdents64(2) gives it.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    pub ino: u64,
    /// Position of the entry after this one: what to ask for to go on from here.
    pub next: u64,
    /// `DT_*`
    pub kind: u8,
    pub name: &'a [u8],
}

/// One opendir(3).
pub(crate) struct DirHandle {
    node: Arc<Node>,
    listing: Mutex<Option<Listing>>,
}

struct Item {
    start: u32,
    len: u16,
    kind: u8,
    /// Which branch listed it first.
    branch: u16,
    ino: u64,
}

/// The merged entries, names in one arena.
#[derive(Default)]
struct Listing {
    names: Vec<u8>,
    items: Vec<Item>,
    /// The branches that it was read from, and the directory on each.
    sources: PerBranch<Option<(BranchId, OwnedFd)>>,
}

impl Listing {
    fn name(&self, item: &Item) -> &[u8] {
        &self.names[item.start as usize..][..usize::from(item.len)]
    }

    fn push(&mut self, name: &[u8], kind: u8, branch: usize, ino: u64) {
        self.items.push(Item {
            start: self.names.len() as u32,
            len: name.len() as u16,
            kind,
            branch: branch as u16,
            ino,
        });
        self.names.extend_from_slice(name);
    }
}

const DT_UNKNOWN: u8 = 0;
const DT_DIR: u8 = 4;
const DT_LNK: u8 = 10;

impl Pool {
    pub fn opendir(&self, id: NodeId) -> Result<HandleId> {
        let node = self.nodes.get(id)?;
        if !node.is_dir() {
            return Err(Error::NotDirectory);
        }
        Ok(self.listings.insert(DirHandle { node, listing: Mutex::new(None) }))
    }

    pub fn releasedir(&self, handle: HandleId) -> Result<()> {
        self.listings.remove(handle).map(drop)
    }

    /// Gives the entries from a position on, until `take` says that it has no more room by returning
    /// false (that entry is given again next time). Position 0 reads the directory afresh.
    pub fn readdir(
        &self,
        handle: HandleId,
        position: u64,
        mut take: impl FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let handle = self.listings.get(handle)?;
        let _held = self.tree.shared();
        let mut slot = handle.listing.lock();
        let listing = self.listing(&handle.node, &mut slot, position)?;
        for (index, item) in listing.items.iter().enumerate().skip(position as usize) {
            let entry =
                DirEntry { ino: item.ino, next: index as u64 + 1, kind: item.kind, name: listing.name(item) };
            if !take(entry) {
                break;
            }
        }
        Ok(())
    }

    /// As `readdir`, each entry with its node, to which the kernel then holds a reference. `.` and `..`
    /// come without; so does what has gone since it was listed. `take` says whether it has taken the entry
    /// and the reference.
    pub fn readdirplus(
        &self,
        handle: HandleId,
        position: u64,
        room: impl Fn(&[u8]) -> bool,
        mut take: impl FnMut(DirEntry<'_>, Option<Entry>),
    ) -> Result<()> {
        let handle = self.listings.get(handle)?;
        let _held = self.tree.shared();
        let branches = self.branches.load();
        let mut slot = handle.listing.lock();
        let listing = self.listing(&handle.node, &mut slot, position)?;
        let path = self.nodes.dir_path(handle.node.id).ok();
        let mut everywhere = None;
        for (index, item) in listing.items.iter().enumerate().skip(position as usize) {
            let name = listing.name(item);
            if !room(name) {
                break;
            }
            let entry = DirEntry { ino: item.ino, next: index as u64 + 1, kind: item.kind, name };
            let node = match &path {
                Some(path) if name != b"." && name != b".." => {
                    self.listed(&branches, &handle.node, path, listing, item, &mut everywhere).ok()
                }
                _ => None,
            };
            take(entry, node);
        }
        Ok(())
    }

    /// The node of a listed name. A file is where it was first listed, if the policy is the branch order.
    fn listed<'b>(
        &self,
        branches: &'b Branches,
        dir: &Node,
        path: &[u8],
        listing: &Listing,
        item: &Item,
        everywhere: &mut Option<Dirs<'b>>,
    ) -> Result<Entry> {
        let name = listing.name(item);
        let in_order = policy::first_only(self.config().policies.get(Func::Getattr), Category::Search);
        if let (true, Some((branch, fd))) = (in_order, &listing.sources[usize::from(item.branch)])
            && let Some(index) = branches.index_of(*branch)
            && let Ok(attr) = self.follow().at(fd, name)
            && !attr.is_dir()
        {
            let copies = Copies::only(self.follow(), branches.len(), index, attr);
            return self.entry(branches, dir.id, path, name, &copies, index);
        }
        let dirs = everywhere.get_or_insert_with(|| Dirs::open(self.follow(), branches, path));
        self.enter(branches, dir.id, path, dirs, name)
    }

    fn listing<'l>(
        &self,
        node: &Arc<Node>,
        slot: &'l mut Option<Listing>,
        position: u64,
    ) -> Result<&'l Listing> {
        if position == 0 || slot.is_none() {
            *slot = Some(match self.nodes.dir_path(node.id) {
                Ok(path) => self.list(node, &path)?,
                // A removed directory has no entries, not even its own.
                Err(Error::Absent) => Listing::default(),
                Err(error) => return Err(error),
            });
        }
        slot.as_ref().ok_or(Error::BadHandle)
    }

    fn list(&self, node: &Node, path: &[u8]) -> Result<Listing> {
        let branches = self.branches.load();
        let follow = self.follow();
        let open_dir = |root: BorrowedFd<'_>| open_dir(follow, root, path);
        let raw = match self.config().readdir {
            ReaddirMode::Seq => branches.iter().map(|b| open_dir(b.root()).and_then(read_names)).collect(),
            ReaddirMode::Cosr { threads, .. } => {
                // Opened side by side, so that sleeping disks wake together; read in order.
                let opened = side_by_side(&branches, threads, open_dir);
                opened.into_iter().map(|dir| dir.and_then(read_names)).collect()
            }
            ReaddirMode::Cor { threads, .. } => {
                side_by_side(&branches, threads, |root| open_dir(root).and_then(read_names))
            }
        };
        self.merge(node, path, &branches, raw)
    }

    fn merge(
        &self,
        node: &Node,
        path: &[u8],
        branches: &Branches,
        raw: Vec<Result<RawListing, Errno>>,
    ) -> Result<Listing> {
        let mut listing = Listing::default();
        let follow = self.follow();
        let following = self.config().follow_symlinks != FollowSymlinks::Never;
        let mut failed = None;
        let several = raw.iter().flatten().count() > 1;
        let mut seen: HashTable<u32> = HashTable::new();
        let hasher = std::hash::RandomState::new();
        let mut inodes = DirentInodes::new(self.config().inode, path);
        let own = match node.identity() {
            Identity::Directory { ino } => ino,
            Identity::File(_) => 0,
        };
        let above = self.nodes.parent(node.id).ok().and_then(|id| self.nodes.get(id).ok());
        let above = match above.map(|parent| parent.identity()) {
            Some(Identity::Directory { ino }) => ino,
            _ => own,
        };
        for (index, result) in raw.into_iter().enumerate() {
            let raw = match result {
                Ok(raw) => raw,
                Err(errno) => {
                    if !beneath::is_absent(errno) {
                        failed.get_or_insert(errno);
                    }
                    listing.sources.push(None);
                    continue;
                }
            };
            if listing.items.is_empty() {
                listing.push(b".", DT_DIR, index, own);
                listing.push(b"..", DT_DIR, index, above);
            }
            let branch = &branches.as_slice()[index];
            for (name, mut kind, mut ino) in raw.entries() {
                if matches!(name, b"." | b"..") || is_reserved(name) {
                    continue;
                }
                if several {
                    let hash = hasher.hash_one(name);
                    let same = |&at: &u32| listing.name(&listing.items[at as usize]) == name;
                    if seen.find(hash, same).is_some() {
                        continue;
                    }
                    let rehash = |&at: &u32| hasher.hash_one(listing.name(&listing.items[at as usize]));
                    seen.insert_unique(hash, listing.items.len() as u32, rehash);
                }
                if (kind == DT_UNKNOWN || kind == DT_LNK && following)
                    && let Ok(attr) = follow.at(&raw.dir, name)
                {
                    (kind, ino) = (attr.dirent_type(), attr.ino);
                }
                let shown = inodes.inode(branch.seed, name, ino, kind == DT_DIR);
                if follow.may_disguise() && !matches!(kind, DT_DIR | DT_LNK) {
                    // Only its age could tell what it is shown as, and that may have changed when somebody looks.
                    kind = DT_UNKNOWN;
                }
                let ino = match kind {
                    DT_DIR => self.nodes.dir_number(node.id, name, shown),
                    _ => self.nodes.kept_number(branch.dev, ino).unwrap_or(shown),
                };
                listing.push(name, kind, index, ino);
            }
            if let Some(errno) = raw.broken {
                tracing::warn!(
                    "the listing of a directory on {} is incomplete: {errno}",
                    branch.path.display()
                );
            }
            listing.sources.push(Some((branch.id, raw.dir)));
        }
        match failed {
            Some(errno) if listing.items.is_empty() => Err(Error::Branch(errno)),
            None if listing.items.is_empty() && node.id != NodeId::ROOT => Err(Error::Absent),
            None if listing.items.is_empty() => {
                listing.push(b".", DT_DIR, 0, own);
                listing.push(b"..", DT_DIR, 0, own);
                listing.push(b"error: no valid canopy branch found, check config", DT_UNKNOWN, 0, 0);
                Ok(listing)
            }
            _ => Ok(listing),
        }
    }

    /// fsync(2) of a directory: on every branch that holds it.
    pub fn fsyncdir(&self, handle: HandleId, data_only: bool) -> Result<()> {
        let handle = self.listings.get(handle)?;
        let _held = self.tree.shared();
        let branches = self.branches.load();
        let Ok(path) = self.nodes.dir_path(handle.node.id) else { return Ok(()) };
        let mut result = Ok(());
        for branch in branches.iter() {
            let synced = match open_dir(self.follow(), branch.root(), &path) {
                Ok(dir) if data_only => rustix::fs::fdatasync(dir),
                Ok(dir) => rustix::fs::fsync(dir),
                Err(errno) if beneath::is_absent(errno) => Ok(()),
                Err(errno) => Err(errno),
            };
            result = result.and(synced.map_err(Error::Branch));
        }
        result
    }
}

fn open_dir(follow: Follow, root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
    match beneath::open(root, path, flags) {
        Err(Errno::LOOP | Errno::NOTDIR) => {
            let (dir, _) = follow.dir(root, path)?;
            beneath::open(dir.as_fd(), b"", flags)
        }
        other => other,
    }
}

/// What one branch lists.
struct RawListing {
    dir: OwnedFd,
    names: Vec<u8>,
    /// Start and length of the name, `DT_*`, inode number.
    items: Vec<(u32, u16, u8, u64)>,
    /// Reading ended with this before the end of the directory.
    broken: Option<Errno>,
}

impl RawListing {
    fn entries(&self) -> impl Iterator<Item = (&[u8], u8, u64)> {
        self.items
            .iter()
            .map(|&(start, len, kind, ino)| (&self.names[start as usize..][..usize::from(len)], kind, ino))
    }
}

fn read_names(dir: OwnedFd) -> Result<RawListing, Errno> {
    let mut raw = RawListing { dir, names: Vec::new(), items: Vec::new(), broken: None };
    let mut buffer = vec![MaybeUninit::uninit(); 128 << 10];
    let mut entries = RawDir::new(raw.dir.as_fd(), &mut buffer);
    while let Some(entry) = entries.next() {
        match entry {
            Ok(entry) => {
                let name = entry.file_name().to_bytes();
                let kind = dirent_type(entry.file_type());
                raw.items.push((raw.names.len() as u32, name.len() as u16, kind, entry.ino()));
                raw.names.extend_from_slice(name);
            }
            Err(errno) => {
                raw.broken = Some(errno);
                break;
            }
        }
    }
    Ok(raw)
}

fn dirent_type(kind: rustix::fs::FileType) -> u8 {
    match kind {
        rustix::fs::FileType::Unknown => DT_UNKNOWN,
        // The type bits of st_mode, shifted (include/linux/fs_types.h).
        known => ((known.as_raw_mode() & 0o170_000) >> 12) as u8,
    }
}

/// Runs `work` on every branch's root, on at most `threads` threads (0: as many as processors, at most 8).
/// The results are in branch order.
fn side_by_side<T: Send>(
    branches: &Branches,
    threads: u32,
    work: impl Fn(BorrowedFd<'_>) -> Result<T, Errno> + Sync,
) -> Vec<Result<T, Errno>> {
    // The calling thread may be bound to one processor; these run wherever the process may, as its first thread does.
    let everywhere = rustix::thread::sched_getaffinity(Some(rustix::process::getpid())).ok();
    let processors = everywhere.as_ref().map_or(1, |set| set.count() as usize).clamp(1, 8);
    let threads = if threads == 0 { processors } else { threads as usize }.min(branches.len());
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<T, Errno>>>> = branches.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                if let Some(set) = &everywhere {
                    let _ = rustix::thread::sched_setaffinity(None, set);
                }
                while let Some(branch) = branches.get(next.fetch_add(1, Ordering::Relaxed)).cloned() {
                    let index = branches.index_of(branch.id).unwrap_or_default();
                    *results[index].lock() = Some(work(branch.root.as_fd()));
                }
            });
        }
    });
    results.into_iter().map(|slot| slot.into_inner().unwrap_or(Err(Errno::IO))).collect()
}
