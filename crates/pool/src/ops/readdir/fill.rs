//! Filling a cursor with names: the part of a listing that needs the whole pool.

use crate::config::FollowSymlinks;
use crate::dir::listing::cursor::{Cursor, DirEntry, ListingVersion, Sorted};
use crate::dir::listing::position::{self, BranchPosition, Offsets, PASSES, Position};
use crate::dir::listing::sorted::{SortedName, Sorter};
use crate::dir::listing::source::{
    DT_DIR, DT_LNK, DT_UNKNOWN, OpenedSource, RawEntry, Source, read_names, seek,
};
use crate::dir::merged::Trust;
use crate::export::StableId;
use crate::node::Node;
use crate::ops::names;
use crate::ops::readdir;
use crate::ops::readdir::remembered;
use crate::ops::resolve;
use crate::ops::resolve::dirs::KnownCopies;
use crate::pool::Op;
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_base::inode_number::{DirentInodes, OfDirectory};
use canopy_branch::branch::Branch;
use canopy_branch::fs::beneath;
use canopy_branch::fs::reserved::is_reserved;
use canopy_branch::fs::stat::Attr;
use canopy_sys::shown::Show as _;
use rustix::fd::AsFd;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl ListingVersion {
    fn now(op: &Op<'_>, node: &Node) -> ListingVersion {
        ListingVersion { moves: op.paths.moves(), made: node.dir().made.load(Ordering::Relaxed) }
    }
}

impl Cursor {
    /// Returns a new cursor at a position.
    pub(crate) fn begin(op: &Op<'_>, node: &Node, path: &[u8], at: Position, trust: Trust) -> Result<Cursor> {
        let (since, begun) = (ListingVersion::now(op, node), op.changes.ticket());
        let from_start = matches!(at, Position::Start(_));
        let known = trust.and_then(|_| resolve::dirs::known_copies(op, node));
        let is_whole = known.as_ref().is_some_and(KnownCopies::is_whole);
        let opened = readdir::open_on_branches(op, path, known.as_ref(), from_start);
        let mut failed = op.branches.timeout_error().filter(|_| !is_whole);
        let sources = sources(op, opened, &mut failed)?;
        let remembered = remembered::Part::of(op, node, path, at, failed)?;
        let (config, follow) = (&op.config, resolve::dirs::follow(op));
        let mut cursor = Cursor {
            ended: sources.is_empty() && remembered.names.is_empty(),
            branches: Arc::clone(&op.branches),
            sources,
            reading: 0,
            pass: 0,
            first: 0,
            since,
            begun,
            incomplete: failed.is_some() || remembered.counts,
            lasts: false,
            names: Vec::new(),
            items: Vec::new(),
            sorted: None,
            start: 0,
            remembered: remembered.names,
            lacks: remembered.lacks,
            seen: None,
            asks: false,
            meets_known: node.has_relied_on_entries(),
            learning: None,
            inodes: DirentInodes::new(config.inode, path),
            follow,
            following: config.follow_symlinks != FollowSymlinks::Never,
            may_show_symlinks: follow.may_show_symlinks(),
        };
        match failed {
            _ if !cursor.sources.is_empty() || remembered.exists => {}
            Some(errno) => return Err(Error::Branch(errno)),
            None if node.id != NodeId::ROOT => return Err(Error::Absent),
            None => {}
        }
        if from_start && trust.is_some() {
            cursor.learning = names::known::begin_listing(op, path, &cursor);
        }
        match at {
            Position::At { pass, mark, place } => {
                cursor.start = at.to_u64();
                cursor.go_on(op, pass, mark, place);
            }
            Position::Narrow(from) => {
                cursor.start = at.to_u64();
                cursor.sorted = Some(Sorted { names: Vec::new(), more: Some(from) });
            }
            Position::Start(given) => {
                cursor.sorted =
                    config.inode.has_32_bits().then_some(Sorted { names: Vec::new(), more: Some(0) });
                cursor.own_entries(op, node);
                cursor.discard(given.min(cursor.items.len()));
            }
            Position::End => cursor.ended = true,
        }
        Ok(cursor)
    }

    /// Adds `.` and `..`, and an error message as an entry if there are no branches.
    fn own_entries(&mut self, op: &Op<'_>, node: &Node) {
        let own = resolve::dir_number::number_of(op, node);
        let above = op.nodes.parent(node.id).ok().and_then(|id| op.nodes.get(id).ok());
        let above = above.map_or(own, |parent| resolve::dir_number::number_of(op, &parent));
        self.push(b".", DT_DIR, own, Position::Start(1));
        self.push(b"..", DT_DIR, above, Position::Start(2));
        if self.sources.is_empty() && self.remembered.is_empty() {
            let message = b"error: no valid canopy branch found, check config";
            self.push(message, DT_UNKNOWN, 0, Position::Start(3));
        }
    }

    /// Moves to a position that another cursor returned.
    fn go_on(&mut self, op: &Op<'_>, pass: u8, mark: position::BranchMark, place: BranchPosition) {
        (self.pass, self.lasts, self.asks, self.seen) = (pass, true, true, Some(HashSet::default()));
        if mark == position::REMEMBERED {
            self.reading = self.sources.len();
            return;
        }
        let all = op.branches.whole();
        let Some(at) = position::marks(&all).iter().position(|&(_, known)| known == mark) else {
            // The branch was removed, so the branches after it are unknown: starts from the first.
            return;
        };
        let index = |source: &Source| all.index_of(self.branches[source.index].id);
        self.reading = self.sources.iter().take_while(|source| index(source).is_some_and(|i| i < at)).count();
        if self.sources.get(self.reading).is_some_and(|source| source.mark == mark) {
            let (dir, offsets) = self.source();
            if !seek(dir.as_fd(), place, |raw| self.add(op, offsets, raw)) {
                tracing::debug!("a listing begins a branch anew: the place where it was is gone");
            }
        }
    }

    /// Returns the entry `at` places after the cursor's position, reading more names if needed.
    pub(crate) fn entry(&mut self, op: &Op<'_>, node: &Node, at: usize) -> Option<DirEntry<'_>> {
        // Reads one entry ahead, because the last entry is marked as the last.
        while self.items.len() <= at + 1 && !self.ended {
            self.extend(op, node);
        }
        self.given(at)
    }

    /// Adds the next buffer of names.
    fn extend(&mut self, op: &Op<'_>, node: &Node) {
        if self.sorted.is_some() {
            return self.extend_sorted(op);
        }
        if self.reading >= self.sources.len() {
            return self.end_pass(op, node);
        }
        let (dir, offsets) = self.source();
        let branch = Arc::clone(&self.branches[self.sources[self.reading].index]);
        let broken = match self.sources[self.reading].names.take() {
            Some(names) => {
                names.each().for_each(|raw| self.add(op, offsets, raw));
                names.broken
            }
            None => match branch.reads(|| read_names(dir.as_fd(), |raw| self.add(op, offsets, raw))) {
                Ok(true) => return,
                Ok(false) => None,
                Err(errno) => Some(errno),
            },
        };
        self.broken(self.reading, broken);
        self.reading += 1;
        if self.reading < self.sources.len() {
            self.tell_apart();
        }
    }

    /// Notes that a source could not be read to its end.
    fn broken(&mut self, source: usize, broken: Option<Errno>) {
        // If the directory was removed during the listing, it has no more names; this is no error.
        if let Some(errno) = broken.filter(|&errno| !beneath::is_absent(errno)) {
            let branch = &self.branches[self.sources[source].index];
            self.incomplete = true;
            tracing::warn!("the listing of a directory on {} is incomplete: {errno}", branch.path.shown());
        }
    }

    /// As `extend`, in the order of the names' hashes. For that, the names of all branches are read first.
    fn extend_sorted(&mut self, op: &Op<'_>) {
        /// Few enough that what is left of them is moved quickly, after each answer.
        const AT_ONCE: usize = 256;
        let Some(mut sorted) = self.sorted.take() else { return };
        if sorted.names.is_empty()
            && let Some(from) = sorted.more
        {
            (sorted.names, sorted.more) = self.sort(from);
        }
        for name in (0..AT_ONCE).map_while(|_| sorted.names.pop()) {
            self.reading = usize::from(name.source);
            let (kind, ino) = self.shown(op, name.raw());
            self.push(&name.name, kind, ino, Position::Narrow(name.next));
        }
        self.ended = sorted.names.is_empty() && sorted.more.is_none();
        self.sorted = Some(sorted);
    }

    /// Reads the names of all branches from a position on.
    fn sort(&mut self, from: u32) -> (Vec<SortedName>, Option<u32>) {
        let mut sorter = Sorter::new(from);
        for at in 0..self.sources.len() {
            let mut add = |raw: RawEntry<'_>| {
                if !matches!(raw.name, b"." | b"..") && !is_reserved(raw.name) {
                    sorter.add(raw, at);
                }
            };
            let broken = match self.sources[at].names.take() {
                Some(names) => {
                    names.each().for_each(add);
                    names.broken
                }
                None => {
                    let dir = Arc::clone(&self.sources[at].dir);
                    let read = self.branches[self.sources[at].index].reads(|| {
                        rustix::fs::seek(&dir, SeekFrom::Start(0))?;
                        while read_names(dir.as_fd(), &mut add)? {}
                        Ok::<_, Errno>(())
                    });
                    read.err()
                }
            };
            self.broken(at, broken);
        }
        sorter.finish()
    }

    /// Ends a pass, and begins another one if names may have been missed. A name is missed if it moves, during the
    /// pass, from a branch that has not been read yet to one that has. The next pass returns only new names.
    fn end_pass(&mut self, op: &Op<'_>, node: &Node) {
        if self.pass_ended(op, node) {
            self.ended = !self.add_remembered();
        }
    }

    /// Returns whether all that the branches hold has been read. Otherwise another pass has begun.
    fn pass_ended(&mut self, op: &Op<'_>, node: &Node) -> bool {
        // A cursor that began in the middle does not know which names were returned before.
        if !self.lasts || self.asks || self.pass + 1 >= PASSES || !self.may_have_missed(op, node) {
            return true;
        }
        let Ok(path) = op.nodes.dir_path(node.id) else { return true };
        let since = ListingVersion::now(op, node);
        let opened = readdir::open_on_branches(op, &path, None, false);
        let Ok(again) = sources(op, opened, &mut None) else { return true };
        (self.since, self.branches) = (since, Arc::clone(&op.branches));
        // Items still in the cursor refer to the old sources, so the new ones are appended.
        self.first = self.sources.len();
        self.sources.extend(again);
        self.pass += 1;
        self.inodes = DirentInodes::new(op.config.inode, &path);
        false
    }

    /// Returns true if a name may have moved between branches since the pass began. Names that the pool itself creates
    /// do not count: a client that renames what it lists would get the new names, too.
    fn may_have_missed(&self, op: &Op<'_>, node: &Node) -> bool {
        let now = ListingVersion::now(op, node);
        let by_others = || now == self.since && self.sources[self.first..].iter().any(Source::has_changed);
        op.branches.len() > 1 && (now.moves != self.since.moves || by_others())
    }

    fn add(&mut self, op: &Op<'_>, offsets: Offsets, raw: RawEntry<'_>) {
        let RawEntry { name, offset, .. } = raw;
        if matches!(name, b"." | b"..") || is_reserved(name) || self.is_duplicate(name) {
            return;
        }
        let next = Position::new(self.pass, self.sources[self.reading].mark, offsets.place(offset, name));
        let (kind, ino) = self.shown(op, raw);
        self.push(name, kind, ino, next);
    }

    /// Returns the type and the inode number that the pool shows for a name of the source that is being read. The number of
    /// a directory is 0 until it is asked for ([`Cursor::number`]).
    fn shown(&mut self, op: &Op<'_>, raw: RawEntry<'_>) -> (u8, u64) {
        let RawEntry { name, mut kind, mut ino, .. } = raw;
        let source = &self.sources[self.reading];
        let mut dev = source.dev;
        if (kind == DT_UNKNOWN || kind == DT_LNK && self.following)
            && let Ok(attr) = self.follow.at(&source.dir, name)
        {
            (kind, ino, dev) = (attr.dirent_type(), attr.ino, attr.dev);
        }
        if kind == DT_DIR {
            return (kind, 0);
        }
        let branch = &self.branches[source.index];
        let seed = resolve::inode_seed::seed(op, branch, dev, || self.follow.pin(&source.dir, name).ok());
        let shown = self.inodes.inode(seed, name, ino, false);
        if self.may_show_symlinks && kind != DT_LNK {
            // Its age decides whether it is shown as a symlink, and may do so between the listing and the lookup.
            kind = DT_UNKNOWN;
        }
        let kept = op.nodes.preserved_ino(dev, ino).map(|number| op.config.inode.fit(number));
        (kind, kept.unwrap_or(shown))
    }

    /// Finds the number of an entry if it is a directory, which takes a look at its copies.
    pub(crate) fn number(&mut self, op: &Op<'_>, node: &Node, at: usize) {
        let Some(item) = self.items.get(at).filter(|item| item.kind == DT_DIR && item.ino == 0) else {
            return;
        };
        let (name, source) = (Vec::from(self.name(item)), usize::from(item.source));
        let path = self.inodes.path(&name).to_vec();
        // Those of the pass in which it was found.
        let first = if source < self.first { 0 } else { self.first };
        let copies = || -> SmallVec<[(usize, Attr); 4]> {
            let copy = |source: &Source| {
                let attr = self.follow.at(&source.dir, &name).ok().filter(Attr::is_dir)?;
                Some((source.index, attr))
            };
            match op.config.inode.of_directory() {
                OfDirectory::Oldest => self.sources[first..].iter().filter_map(copy).collect(),
                OfDirectory::Shown => self.sources.get(source).and_then(copy).into_iter().collect(),
                OfDirectory::Path => SmallVec::new(),
            }
        };
        let branch = |index: usize| -> &Branch { &self.branches[index] };
        let number = || {
            let copies = copies();
            let each = || copies.iter().map(|(index, attr)| (branch(*index), attr));
            // One that has gone has no number. It is shown as what its path says.
            let gone = Attr::default();
            let shown = each().next().unwrap_or((branch(self.sources[source].index), &gone));
            resolve::dir_number::dir_number(op, &path, shown, each())
        };
        let stable = || {
            let copies = copies();
            StableId::of_dir(copies.iter().map(|(index, attr)| (branch(*index), attr)))
        };
        let ino = op.nodes.dir_ino(node.id, &name, number, stable);
        self.items[at].ino = ino;
    }
}

/// Returns a source for each branch that holds the directory. Stores the first other error in `failed`.
fn sources(
    op: &Op<'_>,
    opened: Vec<std::result::Result<OpenedSource, Errno>>,
    failed: &mut Option<Errno>,
) -> Result<Vec<Source>> {
    let marks = position::marks(&op.branches.whole());
    let mark = |branch: &Branch| marks.iter().find(|(id, _)| *id == branch.id).map(|&(_, mark)| mark);
    let mut sources = Vec::with_capacity(opened.len());
    for (index, opened) in opened.into_iter().enumerate() {
        let branch = &op.branches[index];
        match opened {
            // A branch that has just been removed has no mark, and is left out.
            Ok(opened) => {
                let admit = || op.dir_cache.admit_listing(opened.dir());
                // If file descriptors run short, drops the parked cursors and tries again.
                admit().or_else(|_| {
                    op.cursors.clear();
                    admit()
                })?;
                sources.extend(mark(branch).map(|mark| Source::new(index, branch, mark, opened)));
            }
            Err(errno) if beneath::is_absent(errno) => {}
            Err(errno) => {
                failed.get_or_insert(errno);
            }
        }
    }
    Ok(sources)
}
