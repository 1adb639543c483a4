//! What came of the caches.

use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one directory, since the process began or the directory was added.
#[derive(Default)]
pub(crate) struct Counts {
    hits: AtomicU64,
    hit_bytes: AtomicU64,
    misses: AtomicU64,
    missed_bytes: AtomicU64,
    read_bytes: AtomicU64,
}

impl Counts {
    /// Counts an open of a file of so many bytes.
    pub(crate) fn opened(&self, hit: bool, bytes: u64) {
        let (opens, sizes) =
            if hit { (&self.hits, &self.hit_bytes) } else { (&self.misses, &self.missed_bytes) };
        opens.fetch_add(1, Ordering::Relaxed);
        sizes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn fill(&self, figures: &mut CacheFigures) {
        for (count, figure) in [
            (&self.hits, &mut figures.hits),
            (&self.hit_bytes, &mut figures.hit_bytes),
            (&self.misses, &mut figures.misses),
            (&self.missed_bytes, &mut figures.missed_bytes),
            (&self.read_bytes, &mut figures.read_bytes),
        ] {
            *figure = count.load(Ordering::Relaxed);
        }
    }
}

/// What a directory of copies holds, and what came of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CacheFigures {
    pub path: PathBuf,
    pub files: u64,
    /// That the copies take.
    pub bytes: u64,
    /// Opens that a copy here has served, and the sizes of their files.
    pub hits: u64,
    pub hit_bytes: u64,
    /// Opens of files of the cache without a copy, and their sizes: in the first of its directories.
    pub misses: u64,
    pub missed_bytes: u64,
    /// What was read from copies.
    pub read_bytes: u64,
    /// Why it cannot be used.
    pub unusable: Option<Errno>,
}

/// A copy, for those who look at it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CachedFile {
    /// Of the original in the pool, by which it was read last; empty if that is not known.
    pub path: Vec<u8>,
    /// Where the copy is.
    pub dir: PathBuf,
    /// The size of the file, and what the copy takes.
    pub size: u64,
    pub bytes: u64,
    /// Opens that it has served since the process began.
    pub hits: u64,
    /// When the file was opened last, in seconds since 1970; 0 if never.
    pub used: u64,
    /// It was added and not read since.
    pub added: bool,
}
