//! Listing directories: the names of all branches, each once.
//!
//! A listing is made whole at its first read and again at each rewind, and is then served by position, so
//! that a position (`telldir`) stays good whatever happens to the directory meanwhile. Names are told
//! apart exactly, never by hash alone.

mod merge;

use crate::beneath;
use crate::branch::{BranchId, Branches};
use crate::config::{Func, ReaddirMode};
use crate::dirs::{Dirs, PerBranch};
use crate::follow::Follow;
use crate::health::Deed;
use crate::node::{Node, join};
use crate::ops::lookup::Entry;
use crate::policy::{self, Category};
use crate::stat::Attr;
use crate::{Error, HandleId, NodeId, Pool, Result};
use canopy_sys::sched;
use merge::Merge;
use parking_lot::Mutex;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{OFlags, RawDir};
use rustix::io::Errno;
use std::cell::RefCell;
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
    /// By branch, in their order when it was read: the directory there.
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
    /// come without; so does what has gone since it was listed. `room` is asked about the names one after the other,
    /// and what it has granted is given to `take`, with the reference.
    pub fn readdirplus(
        &self,
        handle: HandleId,
        position: u64,
        mut room: impl FnMut(&[u8]) -> bool,
        mut take: impl FnMut(DirEntry<'_>, Option<Entry>),
    ) -> Result<()> {
        let handle = self.listings.get(handle)?;
        let _held = self.tree.shared();
        let mut slot = handle.listing.lock();
        let listing = self.listing(&handle.node, &mut slot, position)?;
        let rest = listing.items.get(position as usize..).unwrap_or_default();
        let granted = rest.iter().take_while(|item| room(listing.name(item))).count();
        let nodes = self.nodes_of(&handle.node, listing, &rest[..granted]);
        for (at, (item, node)) in rest.iter().zip(nodes).enumerate() {
            let next = position + at as u64 + 1;
            take(DirEntry { ino: item.ino, next, kind: item.kind, name: listing.name(item) }, node);
        }
        Ok(())
    }

    /// The nodes of listed names. The kernel lets nobody change names of the directory meanwhile: it asks for a
    /// listing with the directory locked.
    fn nodes_of(&self, dir: &Node, listing: &Listing, items: &[Item]) -> Vec<Option<Entry>> {
        let mut entries: Vec<Option<Entry>> = vec![None; items.len()];
        let Ok(path) = self.nodes.dir_path(dir.id) else { return entries };
        let (branches, follow) = (self.branches.load(), self.follow());
        // A file is where it was first listed, if the policy is the branch order.
        let in_order = policy::first_only(self.config().policies.get(Func::Getattr), Category::Search);
        let source = |source: &Option<(BranchId, OwnedFd)>| {
            let index = branches.index_of(source.as_ref()?.0)?;
            Some(branches.as_slice()[index].clone())
        };
        let sources: PerBranch<_> = listing.sources.iter().map(source).collect();
        let look = |item: &Item| {
            let at = usize::from(item.branch);
            let fd = &listing.sources[at].as_ref().filter(|_| in_order && sources[at].is_some())?.1;
            let looks = item.kind != DT_DIR && !matches!(listing.name(item), b"." | b"..");
            looks.then(|| follow.at(fd, listing.name(item)).ok())?.filter(|attr| !attr.is_dir())
        };
        let looked: Vec<Option<Attr>> = items.iter().map(look).collect();
        let files = items.iter().zip(&looked).map(|(item, attr)| {
            let attr = attr.as_ref()?;
            Some((listing.name(item), attr.key(), follow.disguises(attr)))
        });
        self.nodes.hand_out_files(dir.id, files, |at, node| {
            let (name, branch) = (listing.name(&items[at]), &sources[usize::from(items[at].branch)]);
            if let (Some(attr), Some(branch)) = (looked[at], branch) {
                let attr = match self.needs_path(&node) {
                    true => self.show(&node, branch, &join(&path, name), attr),
                    false => self.show(&node, branch, b"", attr),
                };
                entries[at] = Some(Entry { node: node.id, attr, brief: false });
            }
        });
        // Directories, which are merged, and what is chosen by more than the order.
        let mut dirs = None;
        for (at, item) in items.iter().enumerate() {
            let name = listing.name(item);
            if entries[at].is_none() && !matches!(name, b"." | b"..") {
                let dirs = dirs.get_or_insert_with(|| Dirs::open(follow, &branches, &path));
                entries[at] = self.enter(&branches, dir.id, &path, dirs, name).ok();
            }
        }
        entries
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
        let mut merge = Merge::new(self, node, path, &branches);
        match self.config().readdir {
            ReaddirMode::Seq => {
                for (index, branch) in branches.iter().enumerate() {
                    merge.read(index, open_dir(branch.root()));
                }
            }
            ReaddirMode::Cosr { threads, .. } => {
                // Opened side by side, so that sleeping disks wake together; read in order.
                for (index, opened) in side_by_side(&branches, threads, open_dir).into_iter().enumerate() {
                    merge.read(index, opened);
                }
            }
            ReaddirMode::Cor { threads, .. } => {
                let raw = side_by_side(&branches, threads, |root| open_dir(root).map(RawListing::read));
                for (index, raw) in raw.into_iter().enumerate() {
                    merge.take(index, raw);
                }
            }
        }
        merge.finish()
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
            result = result.and(synced.map_err(|errno| Error::Branch(branch.notice(errno, Deed::Changing))));
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
    fn read(dir: OwnedFd) -> RawListing {
        let (mut names, mut items) = (Vec::new(), Vec::new());
        let broken = read_names(dir.as_fd(), |name, kind, ino| {
            items.push((names.len() as u32, name.len() as u16, kind, ino));
            names.extend_from_slice(name);
        });
        RawListing { dir, names, items, broken: broken.err() }
    }
}

/// Gives each name with its `DT_*` and its inode number. An error ends the listing early.
fn read_names(dir: BorrowedFd<'_>, mut give: impl FnMut(&[u8], u8, u64)) -> Result<(), Errno> {
    thread_local! {
        static BUFFER: RefCell<Vec<MaybeUninit<u8>>> = RefCell::new(vec![MaybeUninit::uninit(); 128 << 10]);
    }
    BUFFER.with_borrow_mut(|buffer| {
        let mut entries = RawDir::new(dir, buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            give(entry.file_name().to_bytes(), dirent_type(entry.file_type()), entry.ino());
        }
        Ok(())
    })
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
    let threads = if threads == 0 { sched::processors().clamp(1, 8) } else { threads as usize };
    let threads = threads.min(branches.len());
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<T, Errno>>>> = branches.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                sched::anywhere();
                while let Some(branch) = branches.get(next.fetch_add(1, Ordering::Relaxed)).cloned() {
                    let index = branches.index_of(branch.id).unwrap_or_default();
                    *results[index].lock() = Some(work(branch.root.as_fd()));
                }
            });
        }
    });
    results.into_iter().map(|slot| slot.into_inner().unwrap_or(Err(Errno::IO))).collect()
}
