//! The identity that fstat(2) reports for redirected descriptors.
//!
//! Programs compare it with that of stat(2) on the path, which comes from the pool, to detect that a file was replaced;
//! cp(1) then refuses to copy, and SQLite to write. So device and inode number stay those of the pool.

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

/// The branch file to which a descriptor number was redirected, and the identity to report. An entry stays when the number is
/// closed, and goes when it is opened again. It is valid only while the number refers to the same branch file. A child of
/// vfork(2), which shares the table, can at worst make its parent's descriptor report the branch's identity.
struct Entry {
    branch: [AtomicU64; 2],
    pool: [AtomicU64; 2],
}

/// Descriptors from this number on are not redirected. The table is all zeros, so only its used pages take memory.
const NUMBERS: usize = 65_536;

static TABLE: [Entry; NUMBERS] =
    [const { Entry { branch: [const { AtomicU64::new(0) }; 2], pool: [const { AtomicU64::new(0) }; 2] } };
        NUMBERS];

fn entry(fd: c_int) -> Option<&'static Entry> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Returns whether the table has an entry for this descriptor.
pub(crate) fn can_hold(fd: c_int) -> bool {
    entry(fd).is_some()
}

/// Records that `fd` is redirected to `branch` and reports `pool`. No other thread reads the entry, because the program
/// does not know the descriptor yet.
pub(crate) fn remember(fd: c_int, pool: File, branch: File) {
    let Some(entry) = entry(fd) else { return };
    let store = |place: &[AtomicU64; 2], value: [u64; 2]| {
        for (place, value) in place.iter().zip(value) {
            place.store(value, Ordering::Release);
        }
    };
    store(&entry.branch, [0, 0]);
    store(&entry.pool, pool.packed());
    store(&entry.branch, branch.packed());
}

/// Forgets to what this number was redirected before it was closed. The program may have opened the branch's file itself.
pub(crate) fn forget(fd: c_int) {
    // Pages of the table that were never used stay so.
    if let Some(entry) = entry(fd).filter(|entry| entry.branch[0].load(Ordering::Acquire) != 0) {
        entry.branch[0].store(0, Ordering::Release);
    }
}

/// Returns the identity to report for a descriptor that refers to `file`.
pub(crate) fn reported(fd: c_int, file: File) -> File {
    let Some(entry) = entry(fd) else { return file };
    let load = |place: &[AtomicU64; 2]| [0, 1].map(|index: usize| place[index].load(Ordering::Acquire));
    if load(&entry.branch) != file.packed() {
        return file;
    }
    let [dev, ino] = load(&entry.pool);
    File { dev: ((dev >> 32) as u32, dev as u32), ino }
}
