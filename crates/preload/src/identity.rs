//! What fstat(2) tells of exchanged descriptors.
//!
//! Programs compare it with what stat(2) tells of the name, which is the pool's word, to see whether a file was
//! replaced: cp(1) then refuses to copy and SQLite to write. So device and inode number stay those of the pool.

use libc::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file's device, as major and minor number, and its inode number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) dev: (u32, u32),
    pub(crate) ino: u64,
}

impl File {
    pub(crate) fn of(stat: &libc::statx) -> Self {
        Self { dev: (stat.stx_dev_major, stat.stx_dev_minor), ino: stat.stx_ino }
    }

    fn packed(self) -> [u64; 2] {
        [u64::from(self.dev.0) << 32 | u64::from(self.dev.1), self.ino]
    }
}

/// What a descriptor number was exchanged for, and what it is shown as. Nothing is removed: an entry counts only
/// while the number refers to the same file of the branch. A child of vfork(2), which shares the table, can at worst
/// make its parent's number show the branch's identity.
struct Entry {
    held: [AtomicU64; 2],
    shown: [AtomicU64; 2],
}

/// Larger numbers are not exchanged. The table is zeros, so that only what is used of it takes memory.
const NUMBERS: usize = 65_536;

static TABLE: [Entry; NUMBERS] =
    [const { Entry { held: [const { AtomicU64::new(0) }; 2], shown: [const { AtomicU64::new(0) }; 2] } };
        NUMBERS];

fn entry(fd: c_int) -> Option<&'static Entry> {
    TABLE.get(usize::try_from(fd).ok()?)
}

pub(crate) fn can_hold(fd: c_int) -> bool {
    entry(fd).is_some()
}

/// Called before anybody can know the descriptor, so nobody reads the entry meanwhile.
pub(crate) fn remember(fd: c_int, shown: File, held: File) {
    let Some(entry) = entry(fd) else { return };
    let store = |place: &[AtomicU64; 2], value: [u64; 2]| {
        for (place, value) in place.iter().zip(value) {
            place.store(value, Ordering::Release);
        }
    };
    store(&entry.held, [0, 0]);
    store(&entry.shown, shown.packed());
    store(&entry.held, held.packed());
}

/// What a descriptor that refers to `file` is shown as.
pub(crate) fn shown(fd: c_int, file: File) -> File {
    let Some(entry) = entry(fd) else { return file };
    let load = |place: &[AtomicU64; 2]| [0, 1].map(|index: usize| place[index].load(Ordering::Acquire));
    if load(&entry.held) != file.packed() {
        return file;
    }
    let [dev, ino] = load(&entry.shown);
    File { dev: ((dev >> 32) as u32, dev as u32), ino }
}
