//! One branch's part of a listing: its directory, and the names read from it.

use super::position::{BranchMark, BranchPosition, Offsets, hash};
use crate::dir::symlinks::Symlinks;
use canopy_branch::branch::{Branch, Branches};
use canopy_branch::fs::beneath;
use canopy_branch::fs::stat::{self, Time};
use canopy_sys::thread::sched;
use parking_lot::Mutex;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) const DT_UNKNOWN: u8 = 0;
pub(crate) const DT_DIR: u8 = 4;
pub(crate) const DT_LNK: u8 = 10;

/// An entry as getdents64(2) returns it.
#[derive(Clone, Copy)]
pub(crate) struct RawEntry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) kind: u8,
    pub(crate) ino: u64,
    /// `d_off`
    pub(crate) offset: u64,
}

/// A directory of one branch that is being listed.
pub(crate) struct Source {
    /// The branch's index in the listing.
    pub(crate) index: usize,
    pub(crate) mark: BranchMark,
    pub(crate) dir: Arc<OwnedFd>,
    pub(crate) offsets: Offsets,
    /// The device that the directory is on.
    pub(crate) dev: u64,
    /// Its modification time before anything was read.
    changed: Option<Time>,
    /// All of its names, if they were read in parallel with those of other branches.
    pub(crate) names: Option<NameBuffer>,
}

impl Source {
    pub(crate) fn new(index: usize, branch: &Branch, mark: BranchMark, opened: OpenedSource) -> Source {
        let OpenedSource { dir, changed, dev, names } = opened;
        // A filesystem that is mounted below the branch may be of any kind.
        let offsets = if dev == Some(branch.dev) { Offsets::of(branch) } else { Offsets::Passing };
        Source { index, mark, dir: Arc::new(dir), offsets, dev: dev.unwrap_or(branch.dev), changed, names }
    }

    /// Returns true if names have come or gone since it was opened.
    pub(crate) fn has_changed(&self) -> bool {
        stat::of(self.dir.as_fd()).ok().map(|attr| attr.mtime) != self.changed
    }

    /// Returns true if the directory holds a name.
    pub(crate) fn holds(&self, name: &[u8]) -> bool {
        stat::at(&*self.dir, name).is_ok()
    }
}

/// Goes to a place in a directory. Passes on the entries after it that were read on the way. If the place is not
/// found, returns false and goes to the beginning.
pub(crate) fn seek(dir: BorrowedFd<'_>, place: BranchPosition, mut give: impl FnMut(RawEntry<'_>)) -> bool {
    let found = match place {
        BranchPosition::Offset(offset) => rustix::fs::seek(dir, SeekFrom::Start(offset)).is_ok(),
        BranchPosition::Behind(wanted) => {
            let mut found = false;
            while !found {
                let more =
                    read_names(dir, |raw| if found { give(raw) } else { found = hash(raw.name) == wanted });
                if !matches!(more, Ok(true)) {
                    break;
                }
            }
            found
        }
    };
    if !found {
        let _ = rustix::fs::seek(dir, SeekFrom::Start(0));
    }
    found
}

/// An open directory of one branch.
pub(crate) struct OpenedSource {
    dir: OwnedFd,
    changed: Option<Time>,
    dev: Option<u64>,
    names: Option<NameBuffer>,
}

impl OpenedSource {
    /// Opens a directory of a branch, by its path from `at`.
    pub(crate) fn open(
        follow: Symlinks,
        branch: &Branch,
        at: BorrowedFd<'_>,
        path: &[u8],
    ) -> Result<OpenedSource, Errno> {
        let dir = branch.reads(|| open_dir(follow, at, path))?;
        let dir = branch.reopen_for_read(dir, OFlags::RDONLY | OFlags::DIRECTORY);
        let attr = branch.reads(|| stat::of(dir.as_fd())).ok();
        Ok(OpenedSource { dir, changed: attr.map(|a| a.mtime), dev: attr.map(|a| a.dev), names: None })
    }

    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Reads all names.
    pub(crate) fn read(mut self, branch: &Branch) -> OpenedSource {
        self.names = Some(NameBuffer::read(branch, self.dir.as_fd()));
        self
    }
}

pub(crate) fn open_dir(follow: Symlinks, root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
    match beneath::open(root, path, flags) {
        Err(Errno::LOOP | Errno::NOTDIR) => {
            let (dir, _) = follow.dir(root, path)?;
            beneath::open(dir.as_fd(), b"", flags)
        }
        other => other,
    }
}

/// The names of one branch's directory.
pub(crate) struct NameBuffer {
    bytes: Vec<u8>,
    /// Start and length of the name, `DT_*`, inode number, `d_off`.
    items: Vec<(u32, u16, u8, u64, u64)>,
    /// The error that ended reading before the end of the directory.
    pub(crate) broken: Option<Errno>,
}

impl NameBuffer {
    fn read(branch: &Branch, dir: BorrowedFd<'_>) -> NameBuffer {
        let (mut bytes, mut items) = (Vec::new(), Vec::new());
        let mut read = || {
            read_names(dir, |raw| {
                items.push((bytes.len() as u32, raw.name.len() as u16, raw.kind, raw.ino, raw.offset));
                bytes.extend_from_slice(raw.name);
            })
        };
        let broken = loop {
            match branch.reads(&mut read) {
                Ok(true) => {}
                other => break other.err(),
            }
        };
        NameBuffer { bytes, items, broken }
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = RawEntry<'_>> {
        self.items.iter().map(|&(start, len, kind, ino, offset)| {
            let name = &self.bytes[start as usize..][..usize::from(len)];
            RawEntry { name, kind, ino, offset }
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.capacity() + self.items.capacity() * size_of::<(u32, u16, u8, u64, u64)>()
    }
}

/// Reads one buffer of the directory, and passes each name to `give`. Returns false at the end.
pub(crate) fn read_names(dir: BorrowedFd<'_>, mut give: impl FnMut(RawEntry<'_>)) -> Result<bool, Errno> {
    // The buffer size of most programs, and so one that filesystems handle well.
    const BUFFER: usize = 32 << 10;
    thread_local! {
        static NAMES: RefCell<Vec<MaybeUninit<u8>>> = RefCell::new(vec![MaybeUninit::uninit(); BUFFER]);
    }
    NAMES.with_borrow_mut(|buffer| {
        let mut entries = RawDir::new(dir, buffer);
        let mut some = false;
        while let Some(entry) = entries.next() {
            let entry = entry?;
            give(RawEntry {
                name: entry.file_name().to_bytes(),
                kind: dirent_type(entry.file_type()),
                ino: entry.ino(),
                offset: entry.next_entry_cookie(),
            });
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

/// Runs `work` on every branch, on at most `threads` threads (0: as many as processors, at most 8). The results are
/// in branch order.
pub(crate) fn side_by_side<T: Send>(
    branches: &Branches,
    threads: u32,
    work: impl Fn(&Branch) -> Result<T, Errno> + Sync,
) -> Vec<Result<T, Errno>> {
    let threads = if threads == 0 { sched::available_cpus().clamp(1, 8) } else { threads as usize };
    let threads = threads.min(branches.len());
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<T, Errno>>>> = branches.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                sched::start_afresh();
                while let Some(branch) = branches.get(next.fetch_add(1, Ordering::Relaxed)).cloned() {
                    let index = branches.index_of(branch.id).unwrap_or_default();
                    *results[index].lock() = Some(work(&branch));
                }
            });
        }
    });
    results.into_iter().map(|slot| slot.into_inner().unwrap_or(Err(Errno::IO))).collect()
}
