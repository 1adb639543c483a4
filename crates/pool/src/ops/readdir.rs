//! Listing directories: the names of all branches, each once.
//!
//! A listing is begun at its first read and again at each rewind, and is served by position, so that a position
//! (`telldir`) stays good whatever happens to the directory meanwhile. Names are told apart exactly, never by hash
//! alone.
//!
//! Names are read from the branches as they are asked for, a buffer at a time, so that the first answer about a large
//! directory does not wait for its end. Whoever serves has the rest read at once ([`Pool::read_on`]): a name that others
//! move from one branch to another must not be where the listing is not any more, or not yet, for longer than reading takes.
//! After a move of the pool's own, what is not read yet is read from the beginning, for names that are not listed yet.

mod merge;

use crate::acl::At;
use crate::beneath;
use crate::branch::{Branch, BranchId, Branches};
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
    /// Which source listed it first.
    source: u16,
    ino: u64,
}

/// The merged entries, names in one arena.
#[derive(Default)]
struct Listing {
    names: Vec<u8>,
    items: Vec<Item>,
    /// The directories whose names are here, in the order in which they were read.
    sources: Vec<(BranchId, Arc<OwnedFd>)>,
    /// What has not been read yet.
    rest: Option<Box<Merge>>,
}

impl Listing {
    fn name(&self, item: &Item) -> &[u8] {
        &self.names[item.start as usize..][..usize::from(item.len)]
    }

    /// To be called when it was left alone for a while: what comes may be listed already, having been removed and made.
    fn resume(&mut self) {
        if let Some(mut rest) = self.rest.take() {
            rest.remember(self);
            self.rest = Some(rest);
        }
    }

    fn push(&mut self, name: &[u8], kind: u8, source: usize, ino: u64) {
        self.items.push(Item {
            start: self.names.len() as u32,
            len: name.len() as u16,
            kind,
            source: source as u16,
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
        while self.extend(&handle.node, listing) {}
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
    /// and what it has granted is given to `take`, with the reference. True when this began the listing and has not read
    /// all names: the caller sees to it that they are ([`Pool::read_on`]).
    pub fn readdirplus(
        &self,
        handle: HandleId,
        position: u64,
        mut room: impl FnMut(&[u8]) -> bool,
        mut take: impl FnMut(DirEntry<'_>, Option<Entry>),
    ) -> Result<bool> {
        let handle = self.listings.get(handle)?;
        let _held = self.tree.shared();
        let mut slot = handle.listing.lock();
        let begins = position == 0 || slot.is_none();
        let listing = self.listing(&handle.node, &mut slot, position)?;
        let start = position as usize;
        let mut end = start;
        while end < listing.items.len() || self.extend(&handle.node, listing) {
            match listing.items.get(end) {
                Some(item) if !room(listing.name(item)) => break,
                Some(_) => end += 1,
                // Nothing of what was read is shown.
                None => {}
            }
        }
        let granted = listing.items.get(start..end).unwrap_or_default();
        let nodes = self.nodes_of(&handle.node, listing, granted);
        for (at, (item, node)) in granted.iter().zip(nodes).enumerate() {
            let next = position + at as u64 + 1;
            // What is mounted on a name has another number than the name was listed with.
            let ino = node.map_or(item.ino, |entry| entry.attr.ino);
            take(DirEntry { ino, next, kind: item.kind, name: listing.name(item) }, node);
        }
        Ok(begins && listing.rest.is_some())
    }

    /// Reads names of a listing that has been begun, a buffer full of them. False when there are no more.
    pub fn read_on(&self, handle: HandleId) -> bool {
        let Ok(handle) = self.listings.get(handle) else { return false };
        let _held = self.tree.shared();
        let mut slot = handle.listing.lock();
        let Some(listing) = slot.as_mut() else { return false };
        listing.resume();
        self.extend(&handle.node, listing)
    }

    /// The nodes of listed names. The kernel lets nobody change names of the directory meanwhile: it asks for a
    /// listing with the directory locked.
    fn nodes_of(&self, dir: &Node, listing: &Listing, items: &[Item]) -> Vec<Option<Entry>> {
        let mut entries: Vec<Option<Entry>> = vec![None; items.len()];
        let Ok(path) = self.nodes.dir_path(dir.id) else { return entries };
        let (branches, follow) = (self.branches.load(), self.follow());
        // A file is where it was first listed, if the policy is the branch order.
        let in_order = policy::first_only(self.config().policies.get(Func::Getattr), Category::Search);
        let source = |source: &(BranchId, _)| Some(branches.as_slice()[branches.index_of(source.0)?].clone());
        let sources: PerBranch<_> = listing.sources.iter().map(source).collect();
        let look = |item: &Item| {
            let at = usize::from(item.source);
            let fd = &listing.sources.get(at).filter(|_| in_order && sources[at].is_some())?.1;
            let looks = item.kind != DT_DIR && !matches!(listing.name(item), b"." | b"..");
            looks.then(|| follow.at(fd, listing.name(item)).ok())?.filter(|attr| !attr.is_dir())
        };
        let looked: Vec<Option<Attr>> = items.iter().map(look).collect();
        let files = items.iter().zip(&looked).map(|(item, attr)| {
            let attr = attr.as_ref()?;
            Some((listing.name(item), attr.key(), follow.disguises(attr)))
        });
        self.nodes.hand_out_files(dir.id, files, |at, node| {
            let (name, source) = (listing.name(&items[at]), usize::from(items[at].source));
            if let (Some(attr), Some(Some(branch))) = (looked[at], sources.get(source)) {
                self.tidy_names(&branches, &node, attr.nlink);
                let place = At::Named(follow, listing.sources[source].1.as_fd(), name);
                let attr = match self.needs_path(&node) {
                    true => self.show(&node, branch, &join(&path, name), attr, place),
                    false => self.show(&node, branch, b"", attr, place),
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
    ) -> Result<&'l mut Listing> {
        let begun = slot.take().filter(|_| position != 0);
        let listing = match begun {
            Some(mut begun) => {
                begun.resume();
                begun
            }
            None => match self.nodes.dir_path(node.id) {
                Ok(path) => self.list(node, &path)?,
                // A removed directory has no entries, not even its own.
                Err(Error::Absent) => Listing::default(),
                Err(error) => return Err(error),
            },
        };
        Ok(slot.insert(listing))
    }

    /// Begins a listing: the directory is open on every branch.
    fn list(&self, node: &Node, path: &[u8]) -> Result<Listing> {
        let branches = self.branches.load();
        let follow = self.follow();
        let open_dir = |branch: &Branch| {
            open_dir(follow, branch.root(), path)
                .map(|dir| branch.timed(dir, OFlags::RDONLY | OFlags::DIRECTORY))
        };
        let names_of = |branch: &Branch| open_dir(branch).map(RawListing::read);
        let opened: Vec<_> = match self.config().readdir {
            ReaddirMode::Seq => branches.iter().map(|branch| open_dir(branch).map(Source::Dir)).collect(),
            // Opened side by side, so that sleeping disks wake together; read in order.
            ReaddirMode::Cosr { threads, .. } => {
                let opened = side_by_side(&branches, threads, open_dir);
                opened.into_iter().map(|dir| dir.map(Source::Dir)).collect()
            }
            ReaddirMode::Cor { threads, .. } => {
                let read = side_by_side(&branches, threads, names_of);
                read.into_iter().map(|names| names.map(Source::Names)).collect()
            }
        };
        Merge::begin(self, node, path, branches, opened)
    }

    /// Reads more names into a listing, a buffer full of them; false when all have been read.
    fn extend(&self, node: &Node, listing: &mut Listing) -> bool {
        let Some(mut rest) = listing.rest.take() else { return false };
        if rest.moves != self.tree.moves()
            && let Ok(path) = self.nodes.dir_path(node.id)
            && let Ok(Listing { rest: Some(mut again), .. }) = self.list(node, &path)
        {
            // What was on a branch that is not read yet may be on one that has been, or on another path.
            while again.read(self, node, listing) {}
            return true;
        }
        let more = rest.read(self, node, listing);
        if more {
            listing.rest = Some(rest);
        }
        more
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

/// Where names come from.
enum Source {
    Dir(OwnedFd),
    Names(RawListing),
}

impl Source {
    fn dir(&self) -> BorrowedFd<'_> {
        match self {
            Source::Dir(dir) => dir.as_fd(),
            Source::Names(names) => names.dir.as_fd(),
        }
    }

    /// The device that the directory is on.
    fn device(&self) -> Option<u64> {
        rustix::fs::fstat(self.dir()).ok().map(|stat| stat.st_dev)
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
        let mut read = || {
            read_names(dir.as_fd(), |name, kind, ino| {
                items.push((names.len() as u32, name.len() as u16, kind, ino));
                names.extend_from_slice(name);
            })
        };
        let broken = loop {
            match read() {
                Ok(true) => {}
                other => break other.err(),
            }
        };
        RawListing { dir, names, items, broken }
    }
}

/// Gives each name that the directory's next buffer holds, with its `DT_*` and its inode number. False at the end.
fn read_names(dir: BorrowedFd<'_>, mut give: impl FnMut(&[u8], u8, u64)) -> Result<bool, Errno> {
    // What getdents(2) is asked for by most: filesystems do well with it.
    const BUFFER: usize = 32 << 10;
    thread_local! {
        static NAMES: RefCell<Vec<MaybeUninit<u8>>> = RefCell::new(vec![MaybeUninit::uninit(); BUFFER]);
    }
    NAMES.with_borrow_mut(|buffer| {
        let mut entries = RawDir::new(dir, buffer);
        let mut some = false;
        while let Some(entry) = entries.next() {
            let entry = entry?;
            give(entry.file_name().to_bytes(), dirent_type(entry.file_type()), entry.ino());
            some = true;
            if entries.is_buffer_empty() {
                break;
            }
        }
        Ok(some)
    })
}

fn dirent_type(kind: rustix::fs::FileType) -> u8 {
    match kind {
        rustix::fs::FileType::Unknown => DT_UNKNOWN,
        // The type bits of st_mode, shifted (include/linux/fs_types.h).
        known => ((known.as_raw_mode() & 0o170_000) >> 12) as u8,
    }
}

/// Runs `work` on every branch, on at most `threads` threads (0: as many as processors, at most 8).
/// The results are in branch order.
fn side_by_side<T: Send>(
    branches: &Branches,
    threads: u32,
    work: impl Fn(&Branch) -> Result<T, Errno> + Sync,
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
                    *results[index].lock() = Some(work(&branch));
                }
            });
        }
    });
    results.into_iter().map(|slot| slot.into_inner().unwrap_or(Err(Errno::IO))).collect()
}
