//! Filling a cursor with names: what of a listing needs the whole pool.

use crate::branch::health::OpKind;
use crate::branch::{Branch, Branches};
use crate::config::FollowSymlinks;
use crate::dir::listing::cursor::{Cursor, DirEntry, ListingVersion};
use crate::dir::listing::position::{self, Offsets, PASSES, Place, Position};
use crate::dir::listing::source::{
    DT_DIR, DT_LNK, DT_UNKNOWN, OpenedSource, RawEntry, Source, read_names, seek,
};
use crate::error::{Error, Result};
use crate::fs::beneath;
use crate::fs::reserved::is_reserved;
use crate::ids::NodeId;
use crate::inode_number::DirentInodes;
use crate::node::{Identity, Node};
use crate::pool::Pool;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

impl ListingVersion {
    fn now(pool: &Pool, node: &Node) -> ListingVersion {
        ListingVersion { moves: pool.tree.moves(), made: node.made.load(Ordering::Relaxed) }
    }
}

impl Cursor {
    /// A cursor that is at a position.
    pub(crate) fn begin(pool: &Pool, node: &Node, path: &[u8], at: Position) -> Result<Cursor> {
        let since = ListingVersion::now(pool, node);
        let from_start = matches!(at, Position::Start(_));
        let branches = pool.branches.load();
        let opened = pool.open_on_branches(&branches, path, from_start);
        let mut failed = branches.timeout_error();
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
            meets_known: node.has_relied_on_entries(),
            inodes: DirentInodes::new(config.inode, path),
            follow,
            following: config.follow_symlinks != FollowSymlinks::Never,
            may_show_symlinks: follow.may_show_symlinks(),
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
    fn go_on(&mut self, pool: &Pool, node: &Node, pass: u8, mark: position::BranchMark, place: Place) {
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

    /// An entry, by its place after the position to which the cursor has been turned.
    pub(crate) fn entry(&mut self, pool: &Pool, node: &Node, at: usize) -> Option<DirEntry<'_>> {
        // The last one is told as such.
        while self.items.len() <= at + 1 && !self.ended {
            self.extend(pool, node);
        }
        self.given(at)
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
            branch.record_error(errno, OpKind::Read);
            tracing::warn!("the listing of a directory on {} is incomplete: {errno}", branch.path.display());
        }
        self.reading += 1;
        if self.reading < self.sources.len() {
            self.tell_apart();
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
        let (since, branches) = (ListingVersion::now(pool, node), pool.branches.load());
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
        let now = ListingVersion::now(pool, node);
        let by_others = || now == self.since && self.sources[self.first..].iter().any(Source::has_changed);
        pool.branches.load().len() > 1 && (now.moves != self.since.moves || by_others())
    }

    fn add(&mut self, pool: &Pool, node: &Node, offsets: Offsets, raw: RawEntry<'_>) {
        let RawEntry { name, mut kind, mut ino, offset } = raw;
        if matches!(name, b"." | b"..") || is_reserved(name) || self.is_duplicate(name) {
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
        if self.may_show_symlinks && !matches!(kind, DT_DIR | DT_LNK) {
            // Only its age could tell what it is shown as, and that may have changed when somebody looks.
            kind = DT_UNKNOWN;
        }
        let ino = match kind {
            DT_DIR => pool.nodes.dir_ino(node.id, name, shown),
            _ => pool.nodes.preserved_ino(dev, ino).unwrap_or(shown),
        };
        self.push(name, kind, ino, next);
    }
}

/// The branches that hold the directory, with its first error where one could not say so.
fn sources(
    pool: &Pool,
    branches: &Branches,
    opened: Vec<std::result::Result<OpenedSource, Errno>>,
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
                let admit = || pool.dir_cache.admit_listing(opened.dir());
                // Cursors that nobody uses at this moment make room.
                admit().or_else(|_| {
                    pool.cursors.clear();
                    admit()
                })?;
                sources.extend(mark(branch).map(|mark| Source::new(index, branch, mark, opened)));
            }
            Err(errno) if beneath::is_absent(errno) => {}
            Err(errno) => {
                failed.get_or_insert(branch.record_error(errno, OpKind::Read));
            }
        }
    }
    Ok(sources)
}
