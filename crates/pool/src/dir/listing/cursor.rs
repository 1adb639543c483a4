//! A cursor reads one listing: the names of all branches, each once.
//!
//! It holds the names of the answer that it has given last and those that have been read after them, and tells names
//! apart by what it has read since it began. One that begins in the middle asks the branches before whether they hold a
//! name, which an earlier cursor then has given.

use super::position::{self, Offsets, PASSES, Place, Position};
use super::source::{DT_DIR, DT_LNK, DT_UNKNOWN, Opened, Raw, Source, read_names, seek};
use crate::branch::health::Deed;
use crate::branch::{Branch, Branches};
use crate::config::FollowSymlinks;
use crate::dir::symlinks::Follow;
use crate::error::{Error, Result};
use crate::fs::beneath;
use crate::ids::NodeId;
use crate::inode_number::DirentInodes;
use crate::node::{Identity, Node};
use crate::ops::readdir::DirEntry;
use crate::pool::Pool;
use crate::relocate::is_reserved;
use rapidhash::fast::RandomState;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

pub(crate) struct Cursor {
    branches: Arc<Branches>,
    /// The directory on the branches that hold it.
    sources: Vec<Source>,
    /// Which of them is being read.
    reading: usize,
    /// How often all have been read.
    pass: u8,
    /// The first source of this pass.
    first: usize,
    /// What had been done to the tree and to the directory when the pass began.
    since: Since,
    ended: bool,
    /// It has given one answer at least. Others may have changed the directory since.
    lasts: bool,
    names: Vec<u8>,
    items: Vec<Item>,
    /// The position of the first of them.
    start: u64,
    /// What has been read, once a name could come twice: more than one branch has any, or time has passed.
    seen: Option<HashSet<u128, BuildHasherDefault<Hashed>>>,
    /// Not all that was given is in `seen`: branches before are asked.
    asks: bool,
    /// When it began the kernel knew attributes of names.
    pub(crate) meets_known: bool,
    inodes: DirentInodes,
    follow: Follow,
    following: bool,
    disguising: bool,
}

/// What tells that names may have moved between branches.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Since {
    /// How often directories and files had moved ([`TreeLock::moves`](crate::lock::tree::TreeLock::moves)).
    moves: u64,
    /// How many names the pool had made in the directory.
    made: u32,
}

impl Since {
    fn now(pool: &Pool, node: &Node) -> Since {
        Since { moves: pool.tree.moves(), made: node.made.load(Ordering::Relaxed) }
    }
}

struct Item {
    start: u32,
    len: u16,
    kind: u8,
    /// Which source listed it first.
    source: u16,
    ino: u64,
    /// Of the entry after this one.
    next: u64,
}

/// Names that one cursor tells apart by itself; 18 MiB.
const SEEN: usize = (1 << 20) / 8 * 7;

/// The keys are hashes already.
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

/// Keyed, and so wide that no two names of a directory share one.
fn wide_hash(name: &[u8]) -> u128 {
    static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    let [one, other] = KEYS.each_ref().map(|key| u128::from(key.hash_one(name)));
    one << 64 | other
}

impl Cursor {
    /// A cursor that is at a position.
    pub(crate) fn begin(pool: &Pool, node: &Node, path: &[u8], at: Position) -> Result<Cursor> {
        let since = Since::now(pool, node);
        let from_start = matches!(at, Position::Start(_));
        let branches = pool.branches.load();
        let opened = pool.open_on_branches(&branches, path, from_start);
        let mut failed = branches.unheard();
        let sources = sources(pool, &branches, opened, &mut failed)?;
        let (config, follow) = (pool.config(), pool.follow());
        let mut cursor = Cursor {
            ended: sources.is_empty(),
            branches,
            sources,
            reading: 0,
            pass: 0,
            first: 0,
            since,
            lasts: false,
            names: Vec::new(),
            items: Vec::new(),
            start: 0,
            seen: None,
            asks: false,
            meets_known: node.has_relied_upon(),
            inodes: DirentInodes::new(config.inode, path),
            follow,
            following: config.follow_symlinks != FollowSymlinks::Never,
            disguising: follow.may_disguise(),
        };
        match failed {
            _ if !cursor.sources.is_empty() => {}
            Some(errno) => return Err(Error::Branch(errno)),
            None if node.id != NodeId::ROOT => return Err(Error::Absent),
            None => {}
        }
        match at {
            Position::At { pass, mark, place } => {
                cursor.start = at.to_u64();
                cursor.go_on(pool, node, pass, mark, place);
            }
            Position::Start(given) => {
                cursor.own_entries(pool, node);
                cursor.discard(given.min(cursor.items.len()));
            }
            Position::End => cursor.ended = true,
        }
        Ok(cursor)
    }

    /// The directory itself and the one above, and what is to be said where there are no branches.
    fn own_entries(&mut self, pool: &Pool, node: &Node) {
        let own = match node.identity() {
            Identity::Directory { ino } => ino,
            Identity::File(_) => 0,
        };
        let above = pool.nodes.parent(node.id).ok().and_then(|id| pool.nodes.get(id).ok());
        let above = match above.map(|parent| parent.identity()) {
            Some(Identity::Directory { ino }) => ino,
            _ => own,
        };
        self.push(b".", DT_DIR, own, Position::Start(1));
        self.push(b"..", DT_DIR, above, Position::Start(2));
        if self.sources.is_empty() {
            let told = b"error: no valid canopy branch found, check config";
            self.push(told, DT_UNKNOWN, 0, Position::Start(3));
        }
    }

    /// Goes on where another cursor was.
    fn go_on(&mut self, pool: &Pool, node: &Node, pass: u8, mark: position::Mark, place: Place) {
        (self.pass, self.lasts, self.asks, self.seen) = (pass, true, true, Some(HashSet::default()));
        let all = pool.branches.all();
        let Some(at) = position::marks(&all).iter().position(|&(_, known)| known == mark) else {
            // A branch that is not any more: nobody knows what stood behind it.
            return;
        };
        let index = |source: &Source| all.index_of(self.branches[source.index].id);
        self.reading = self.sources.iter().take_while(|source| index(source).is_some_and(|i| i < at)).count();
        if self.sources.get(self.reading).is_some_and(|source| source.mark == mark) {
            let (dir, offsets) = self.source();
            if !seek(dir.as_fd(), place, |raw| self.add(pool, node, offsets, raw)) {
                tracing::debug!("a listing begins a branch anew: the place where it was is gone");
            }
        }
    }

    /// Goes to a position among the names that are here; what is before it is forgotten. False if it is not here.
    pub(crate) fn turn_to(&mut self, position: u64) -> bool {
        let Some(given) = self.find(position) else { return false };
        self.discard(given);
        true
    }

    /// How many of the names that are here are before a position.
    pub(crate) fn find(&self, position: u64) -> Option<usize> {
        if position == self.start {
            return Some(0);
        }
        self.items.iter().position(|item| item.next == position).map(|at| at + 1)
    }

    fn discard(&mut self, given: usize) {
        let Some(last) = given.checked_sub(1) else { return };
        self.start = self.items[last].next;
        let gone = self.items.get(given).map_or(self.names.len(), |item| item.start as usize);
        self.items.drain(..given);
        self.names.drain(..gone);
        self.items.iter_mut().for_each(|item| item.start -= gone as u32);
    }

    /// An entry, by its place after the position to which the cursor has been turned.
    pub(crate) fn entry(&mut self, pool: &Pool, node: &Node, at: usize) -> Option<DirEntry<'_>> {
        // The last one is told as such.
        while self.items.len() <= at + 1 && !self.ended {
            self.extend(pool, node);
        }
        self.given(at)
    }

    /// As `entry`, of those that have been read.
    pub(crate) fn given(&self, at: usize) -> Option<DirEntry<'_>> {
        let item = self.items.get(at)?;
        let next = if self.is_over(at + 1) { position::END } else { item.next };
        Some(DirEntry { ino: item.ino, next, kind: item.kind, name: self.name(item) })
    }

    /// As `given`, with the source where it was found.
    pub(crate) fn found(&self, at: usize) -> Option<(DirEntry<'_>, usize)> {
        Some((self.given(at)?, usize::from(self.items.get(at)?.source)))
    }

    /// The directory on the branches that hold it.
    pub(crate) fn sources(&self) -> impl ExactSizeIterator<Item = (&Arc<Branch>, BorrowedFd<'_>)> {
        self.sources.iter().map(|source| (&self.branches.as_slice()[source.index], source.dir.as_fd()))
    }

    /// Is there nothing after so many entries?
    pub(crate) fn is_over(&self, given: usize) -> bool {
        self.ended && given >= self.items.len()
    }

    /// An answer has been given, and another will be asked for.
    pub(crate) fn rest(&mut self) {
        self.lasts = true;
        // What comes may have been given already, having been removed and made.
        self.remember();
    }

    /// In bytes, about.
    pub(crate) fn size(&self) -> usize {
        let names: usize = self.sources.iter().filter_map(|s| s.names.as_ref()).map(|n| n.bytes()).sum();
        let seen = self.seen.as_ref().map_or(0, |seen| seen.capacity() * 8 / 7 * 17);
        size_of::<Cursor>() + self.names.capacity() + self.items.capacity() * size_of::<Item>() + names + seen
    }

    /// What is being read.
    fn source(&self) -> (Arc<OwnedFd>, Offsets) {
        let source = &self.sources[self.reading];
        (Arc::clone(&source.dir), source.offsets)
    }

    fn name(&self, item: &Item) -> &[u8] {
        &self.names[item.start as usize..][..usize::from(item.len)]
    }

    fn push(&mut self, name: &[u8], kind: u8, ino: u64, next: Position) {
        self.items.push(Item {
            start: self.names.len() as u32,
            len: name.len() as u16,
            kind,
            source: self.reading as u16,
            ino,
            next: next.to_u64(),
        });
        self.names.extend_from_slice(name);
    }

    /// Adds what the next buffer of names holds.
    fn extend(&mut self, pool: &Pool, node: &Node) {
        if self.reading >= self.sources.len() {
            return self.end_pass(pool, node);
        }
        let (dir, offsets) = self.source();
        let broken = match self.sources[self.reading].names.take() {
            Some(names) => {
                names.each().for_each(|raw| self.add(pool, node, offsets, raw));
                names.broken
            }
            None => match read_names(dir.as_fd(), |raw| self.add(pool, node, offsets, raw)) {
                Ok(true) => return,
                Ok(false) => None,
                Err(errno) => Some(errno),
            },
        };
        // A directory that was removed while it was read has no more names.
        if let Some(errno) = broken.filter(|&errno| !beneath::is_absent(errno)) {
            let branch = &self.branches[self.sources[self.reading].index];
            branch.notice(errno, Deed::Looking);
            tracing::warn!("the listing of a directory on {} is incomplete: {errno}", branch.path.display());
        }
        self.reading += 1;
        if self.reading < self.sources.len() {
            self.remember();
        }
    }

    /// All has been read. What has been moved meanwhile, from a branch that had not been read yet to one that had, was missed.
    /// Then all is read once more, for names that have not been given.
    fn end_pass(&mut self, pool: &Pool, node: &Node) {
        self.ended = true;
        // Who has begun in the middle does not know what was given.
        if !self.lasts || self.asks || self.pass + 1 >= PASSES || !self.may_have_missed(pool, node) {
            return;
        }
        let Ok(path) = pool.nodes.dir_path(node.id) else { return };
        let (since, branches) = (Since::now(pool, node), pool.branches.load());
        let opened = pool.open_on_branches(&branches, &path, false);
        let Ok(again) = sources(pool, &branches, opened, &mut None) else { return };
        (self.since, self.branches) = (since, branches);
        // Entries that are here still tell of those before.
        self.first = self.sources.len();
        self.sources.extend(again);
        self.pass += 1;
        self.ended = false;
        self.inodes = DirentInodes::new(pool.config().inode, &path);
    }

    /// May a name have moved between branches since the pass began? Names that the pool itself makes are no reason to look
    /// again: whoever renames what he lists would be given the new names as well.
    fn may_have_missed(&self, pool: &Pool, node: &Node) -> bool {
        let now = Since::now(pool, node);
        let by_others = || now == self.since && self.sources[self.first..].iter().any(Source::has_changed);
        pool.branches.load().len() > 1 && (now.moves != self.since.moves || by_others())
    }

    /// From now on names are told apart. Those that one branch gives in one go are apart already.
    fn remember(&mut self) {
        if self.seen.is_none() {
            self.seen = Some(self.items.iter().map(|item| wide_hash(self.name(item))).collect());
        }
    }

    /// Has a name been given before?
    fn is_known(&mut self, name: &[u8]) -> bool {
        let Some(seen) = &mut self.seen else { return false };
        let hash = wide_hash(name);
        if seen.len() < SEEN {
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

    fn add(&mut self, pool: &Pool, node: &Node, offsets: Offsets, raw: Raw<'_>) {
        let Raw { name, mut kind, mut ino, offset } = raw;
        if matches!(name, b"." | b"..") || is_reserved(name) || self.is_known(name) {
            return;
        }
        let source = &self.sources[self.reading];
        let mut dev = source.dev;
        // A listing has the number of the directory on which another filesystem is mounted.
        let doubtful = kind == DT_DIR && !self.inodes.uses_path(true);
        if (kind == DT_UNKNOWN || kind == DT_LNK && self.following || doubtful)
            && let Ok(attr) = self.follow.at(&source.dir, name)
        {
            (kind, ino, dev) = (attr.dirent_type(), attr.ino, attr.dev);
        }
        let next = Position::new(self.pass, source.mark, offsets.place(offset, name));
        let branch = &self.branches[source.index];
        let seed = pool.seed(branch, dev, || self.follow.pin(&source.dir, name).ok());
        let shown = self.inodes.inode(seed, name, ino, kind == DT_DIR);
        if self.disguising && !matches!(kind, DT_DIR | DT_LNK) {
            // Only its age could tell what it is shown as, and that may have changed when somebody looks.
            kind = DT_UNKNOWN;
        }
        let ino = match kind {
            DT_DIR => pool.nodes.dir_number(node.id, name, shown),
            _ => pool.nodes.kept_number(dev, ino).unwrap_or(shown),
        };
        self.push(name, kind, ino, next);
    }
}

/// The branches that hold the directory, with its first error where one could not say so.
fn sources(
    pool: &Pool,
    branches: &Branches,
    opened: Vec<std::result::Result<Opened, Errno>>,
    failed: &mut Option<Errno>,
) -> Result<Vec<Source>> {
    let marks = position::marks(&pool.branches.all());
    let mark = |branch: &Branch| marks.iter().find(|(id, _)| *id == branch.id).map(|&(_, mark)| mark);
    let mut sources = Vec::with_capacity(opened.len());
    for (index, opened) in opened.into_iter().enumerate() {
        let branch = &branches[index];
        match opened {
            // A branch that has been taken away in this moment has no mark.
            Ok(opened) => {
                let admit = || pool.memory.admit_listing(opened.dir());
                // Cursors that nobody uses at this moment make room.
                admit().or_else(|_| {
                    pool.cursors.clear();
                    admit()
                })?;
                sources.extend(mark(branch).map(|mark| Source::new(index, branch, mark, opened)));
            }
            Err(errno) if beneath::is_absent(errno) => {}
            Err(errno) => {
                failed.get_or_insert(branch.notice(errno, Deed::Looking));
            }
        }
    }
    Ok(sources)
}
