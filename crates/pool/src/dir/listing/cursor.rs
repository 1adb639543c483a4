//! A cursor reads a listing: the names of all branches, each once.
//!
//! It holds the names of its last answer and those that it has read after them. It finds duplicates by remembering
//! what it has read since it began. A cursor that begins in the middle asks the branches before whether they hold a
//! name, because then an earlier cursor has returned it.

use super::position::{END, NARROW_END, Offsets, Position};
use super::sorted::SortedName;
use super::source::Source;
use crate::coherence::catalogue::{Listed, Row};
use crate::coherence::changes::Ticket;
use crate::dir::symlinks::Symlinks;
use canopy_base::inode_number::DirentInodes;
use canopy_branch::branch::{Branch, Branches};
use rapidhash::fast::RandomState;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::{Arc, LazyLock};

pub(crate) struct Cursor {
    pub(crate) branches: Arc<Branches>,
    /// The directory on each branch that holds it.
    pub(crate) sources: Vec<Source>,
    /// The index of the source that is being read.
    pub(crate) reading: usize,
    /// How often all sources have been read.
    pub(crate) pass: u8,
    /// The first source of this pass.
    pub(crate) first: usize,
    /// The state of the tree and the directory when the pass began.
    pub(crate) since: ListingVersion,
    /// From when the cursor began to read.
    pub(crate) begun: Ticket,
    /// A branch could not be read.
    pub(crate) incomplete: bool,
    pub(crate) ended: bool,
    /// It has given at least one answer. Others may have changed the directory since.
    pub(crate) lasts: bool,
    pub(crate) names: Vec<u8>,
    pub(crate) items: Vec<ListedEntry>,
    /// In a listing whose positions have 31 bits, the names that were read and are not among the items yet.
    pub(crate) sorted: Option<Sorted>,
    /// The position of the first item.
    pub(crate) start: u64,
    /// The names on branches that are missing, which come after the others.
    pub(crate) remembered: Vec<RememberedName>,
    /// Why names may be missing, which is said after those that are known: the names of a missing branch are to stay, and
    /// cannot all be told.
    pub(crate) lacks: Option<Errno>,
    /// The names read so far, as hashes; from the moment when a name can occur twice, because more than one branch
    /// has names or time has passed.
    pub(crate) seen: Option<HashSet<u128, BuildHasherDefault<Hashed>>>,
    /// Not every returned name is in `seen`, so the branches before are asked, too.
    pub(crate) asks: bool,
    /// The kernel had cached attributes of names in the directory when the listing began.
    pub(crate) meets_known: bool,
    /// What the catalogue is going to be told.
    pub(crate) learning: Option<Box<Learning>>,
    pub(crate) inodes: DirentInodes,
    pub(crate) follow: Symlinks,
    pub(crate) following: bool,
    pub(crate) may_show_symlinks: bool,
}

/// A name on a branch that is missing. The one with the largest hash comes first, to be taken last.
pub(crate) struct RememberedName {
    /// The hash of the name, which is its place in the listing.
    pub(crate) place: u64,
    pub(crate) name: Box<[u8]>,
    pub(crate) kind: u8,
    pub(crate) ino: u64,
}

/// What a listing has found so far, if it is going to be known.
pub(crate) struct Learning {
    pub(crate) listed: Listed,
    /// The position after what it has.
    pub(crate) end: u64,
}

/// The state of a listing that gives the names in the order of their hashes.
pub(crate) struct Sorted {
    /// The next one last.
    pub(crate) names: Vec<SortedName>,
    /// From where to read more names.
    pub(crate) more: Option<u32>,
}

impl Sorted {
    fn size(&self) -> usize {
        // Of a name, some 24 bytes are its own.
        self.names.capacity() * (size_of::<SortedName>() + 24)
    }
}

/// Changes when names may have moved between branches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListingVersion {
    /// How often directories and files had moved ([`Paths::moves`](crate::paths::Paths::moves)).
    pub(crate) moves: u64,
    /// How many names the pool had created in the directory.
    pub(crate) made: u32,
}

/// How far the names of a part of a listing can be relied on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamesRead {
    /// Every branch was read, and no change was reported since the listing began.
    Current,
    /// Names have changed since the listing began, or a branch could not be read: names may be gone, or missing.
    Doubtful,
}

pub(crate) struct ListedEntry {
    pub(crate) start: u32,
    pub(crate) len: u16,
    pub(crate) kind: u8,
    /// The source that listed it first.
    pub(crate) source: u16,
    pub(crate) ino: u64,
    /// The position of the next entry.
    pub(crate) next: u64,
}

/// The size of a row, with its name and some of the facts.
const ROW: usize = size_of::<Row>() + 200;

/// The most names that one cursor remembers; 18 MiB.
const MAX_SEEN: usize = (1 << 20) / 8 * 7;

/// A hasher for keys that are hashes already.
#[derive(Default)]
pub(crate) struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only whole hashes are hashed")
    }
    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
}

/// Hashes a name with random keys, to so many bits that no two names of a directory collide.
fn wide_hash(name: &[u8]) -> u128 {
    static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    let [one, other] = KEYS.each_ref().map(|key| u128::from(key.hash_one(name)));
    one << 64 | other
}

impl Cursor {
    /// Goes to a position among the items, and drops the items before it. Returns false if the position is not among
    /// them.
    pub(crate) fn advance_to(&mut self, position: u64) -> bool {
        let Some(given) = self.find(position) else { return false };
        self.discard(given);
        true
    }

    /// Returns how many items are before a position.
    pub(crate) fn find(&self, position: u64) -> Option<usize> {
        if position == self.start {
            return Some(0);
        }
        self.items.iter().position(|item| item.next == position).map(|at| at + 1)
    }

    pub(crate) fn discard(&mut self, given: usize) {
        let Some(last) = given.checked_sub(1) else { return };
        self.start = self.items[last].next;
        let gone = self.items.get(given).map_or(self.names.len(), |item| item.start as usize);
        self.items.drain(..given);
        self.names.drain(..gone);
        self.items.iter_mut().for_each(|item| item.start -= gone as u32);
    }

    /// Returns an item as an entry.
    pub(crate) fn given(&self, at: usize) -> Option<DirEntry<'_>> {
        let item = self.items.get(at)?;
        let end = if self.sorted.is_some() { NARROW_END.into() } else { END };
        let next = if self.is_over(at + 1) { end } else { item.next };
        Some(DirEntry { ino: item.ino, next, kind: item.kind, name: self.name(item) })
    }

    /// As `given`, with the source that listed it.
    pub(crate) fn found(&self, at: usize) -> Option<(DirEntry<'_>, usize)> {
        Some((self.given(at)?, usize::from(self.items.get(at)?.source)))
    }

    /// Returns the directory on each branch that holds it.
    pub(crate) fn sources(&self) -> impl ExactSizeIterator<Item = (&Arc<Branch>, BorrowedFd<'_>)> {
        self.sources.iter().map(|source| (&self.branches.as_slice()[source.index], source.dir.as_fd()))
    }

    /// Returns true if the listing ends after so many items.
    pub(crate) fn is_over(&self, given: usize) -> bool {
        self.ended && given >= self.items.len() && self.lacks.is_none()
    }

    /// Prepares for the time until the next answer.
    pub(crate) fn suspend(&mut self) {
        self.lasts = true;
        if self.sorted.is_some() {
            return;
        }
        // Names to come may be ones that were returned already, then removed and created again.
        self.tell_apart();
    }

    /// Returns the approximate size in bytes.
    pub(crate) fn size(&self) -> usize {
        let names: usize = self.sources.iter().filter_map(|s| s.names.as_ref()).map(|n| n.bytes()).sum();
        let seen = self.seen.as_ref().map_or(0, |seen| seen.capacity() * 8 / 7 * 17);
        let sorted = self.sorted.as_ref().map_or(0, |sorted| sorted.size());
        let learnt = self.learning.as_ref().map_or(0, |learning| learning.listed.rows.capacity() * ROW);
        size_of::<Cursor>()
            + self.remembered.capacity() * (size_of::<RememberedName>() + 24)
            + sorted
            + learnt
            + self.names.capacity()
            + self.items.capacity() * size_of::<ListedEntry>()
            + names
            + seen
    }

    /// Returns the source that is being read.
    pub(crate) fn source(&self) -> (Arc<OwnedFd>, Offsets) {
        let source = &self.sources[self.reading];
        (Arc::clone(&source.dir), source.offsets)
    }

    pub(crate) fn name(&self, item: &ListedEntry) -> &[u8] {
        &self.names[item.start as usize..][..usize::from(item.len)]
    }

    pub(crate) fn push(&mut self, name: &[u8], kind: u8, ino: u64, next: Position) {
        self.items.push(ListedEntry {
            start: self.names.len() as u32,
            len: name.len() as u16,
            kind,
            source: self.reading as u16,
            ino,
            next: next.to_u64(),
        });
        self.names.extend_from_slice(name);
    }

    /// Begins to detect duplicates. Before, names came from one branch in one go, without duplicates.
    pub(crate) fn tell_apart(&mut self) {
        if self.seen.is_none() {
            self.seen = Some(self.items.iter().map(|item| wide_hash(self.name(item))).collect());
        }
    }

    /// Returns true if the name was returned before.
    pub(crate) fn is_duplicate(&mut self, name: &[u8]) -> bool {
        let Some(seen) = &mut self.seen else { return false };
        let hash = wide_hash(name);
        if seen.len() < MAX_SEEN {
            if !seen.insert(hash) {
                return true;
            }
        } else if seen.contains(&hash) {
            return true;
        } else {
            self.asks = true;
        }
        self.asks && self.sources[self.first..self.reading].iter().any(|source| source.holds(name))
    }
}

/// One entry, as in getdents64(2).
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    pub ino: u64,
    /// The position of the next entry, at which a listing can resume.
    pub next: u64,
    /// `DT_*`
    pub kind: u8,
    pub name: &'a [u8],
}
