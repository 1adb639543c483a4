//! Listing directories: the names of all branches, each once.
//!
//! Names are read from the branches as they are asked for, a buffer at a time, branch by branch. Nothing belongs to who reads: a
//! position tells where to go on by itself ([`position`](crate::dir::listing::position)), and what is needed to go on quickly, and exactly, is kept for the
//! directory for some seconds ([`cursor`](crate::dir::listing::cursor), [`parked`](crate::dir::listing::parked)). So nobody has to open a directory to list it, and open directories
//! cost nothing.

mod fill;

use crate::branch::health::OpKind;
use crate::branch::{Branch, Branches};
use crate::config::{Func, ReaddirMode};
use crate::dir::listing::cursor::{Cursor, DirEntry};
use crate::dir::listing::position::Position;
use crate::dir::listing::source::{DT_DIR, OpenedSource, open_dir, side_by_side};
use crate::dir::merged::MergedDir;
use crate::error::{Error, Result};
use crate::fs::beneath;
use crate::fs::stat::Attr;
use crate::ids::NodeId;
use crate::node::Node;
use crate::node::dir_state::PerBranch;
use crate::ops::names::lookup::Entry;
use crate::ops::resolve::acl::At;
use crate::path::join;
use crate::policy::{self, Category};
use crate::pool::Pool;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

impl Pool {
    /// May this be listed?
    pub fn opendir(&self, id: NodeId) -> Result<()> {
        match self.nodes.get(id)?.is_dir() {
            true => Ok(()),
            false => Err(Error::NotDirectory),
        }
    }

    /// Gives the entries of a directory from a position on, until `take` says that it has no more room by returning
    /// false (that entry is given again next time). Position 0 reads the directory afresh.
    pub fn readdir(
        &self,
        id: NodeId,
        position: u64,
        mut take: impl FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let node = self.nodes.get(id)?;
        let parked = self.cursors.take(id, position);
        let _held = self.tree.shared();
        let Some(mut cursor) = self.cursor(&node, position, parked)? else { return Ok(()) };
        let mut given = 0;
        while cursor.entry(self, &node, given).is_some_and(&mut take) {
            given += 1;
        }
        self.park(id, cursor, given);
        Ok(())
    }

    /// As `readdir`, each entry with its node, to which the kernel then holds a reference. `.` and `..`
    /// come without; so does what has gone since it was listed, and what the kernel knows. `room` is asked about the names one
    /// after the other, and what it has granted is given to `take`, with the reference; it tells for how long the kernel goes by
    /// the attributes.
    pub fn readdirplus(
        &self,
        id: NodeId,
        position: u64,
        mut room: impl FnMut(&[u8]) -> bool,
        mut take: impl FnMut(DirEntry<'_>, Option<Entry>) -> Duration,
    ) -> Result<()> {
        let node = self.nodes.get(id)?;
        let parked = self.cursors.take(id, position);
        let known = parked.as_ref().map_or_else(|| node.has_relied_on_entries(), |cursor| cursor.meets_known);
        // What the kernel has been given is good where all that has happened by now has been told.
        let known = known && self.kernel.load().caught_up();
        let _held = self.tree.shared();
        let Some(mut cursor) = self.cursor(&node, position, parked)? else { return Ok(()) };
        let mut given = 0;
        while cursor.entry(self, &node, given).is_some_and(|entry| room(entry.name)) {
            given += 1;
        }
        let names = (0..given).filter_map(|at| Some(cursor.given(at)?.name));
        let mut known = if known { self.nodes.are_relied_on(id, names) } else { Vec::new() };
        if let Some(one) = known.iter_mut().find(|known| **known) {
            // By one that it is given the kernel sees whether attributes are wanted of the next names, too.
            *one = false;
        }
        let nodes = self.nodes_of(&node, &cursor, given, &known);
        let entries = (0..given).filter_map(|at| cursor.given(at)).zip(nodes);
        let mut longest = Duration::ZERO;
        for (entry, node) in entries {
            let Some((found, node)) = node else {
                take(entry, None);
                continue;
            };
            // Before anybody looks whether it has changed meanwhile: whoever has changed it says so afterwards.
            node.offer();
            // What is mounted on a name has another number than the name was listed with.
            let time = take(DirEntry { ino: found.attr.ino, ..entry }, Some(found));
            node.rely(time);
            longest = longest.max(time);
        }
        node.rely_on_entries(longest);
        self.park(id, cursor, given);
        Ok(())
    }

    /// A cursor at a position of a directory's listing, if there was none. `None` where there is nothing.
    fn cursor(
        &self,
        node: &Arc<Node>,
        position: u64,
        parked: Option<Box<Cursor>>,
    ) -> Result<Option<Box<Cursor>>> {
        let at = Position::from_u64(position);
        if parked.is_some() || at == Position::End {
            return Ok(parked);
        }
        match self.nodes.dir_path(node.id).and_then(|path| Cursor::begin(self, node, &path, at)) {
            Ok(cursor) => Ok(Some(Box::new(cursor))),
            // A removed directory has no entries, not even its own.
            Err(Error::Absent) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// So many entries have been given.
    fn park(&self, id: NodeId, mut cursor: Box<Cursor>, given: usize) {
        if !cursor.is_over(given) {
            cursor.suspend();
            self.cursors.park(id, cursor);
        }
    }

    /// The nodes of the first names that a cursor has, but for those that are known. The kernel lets nobody change names of the directory meanwhile: it
    /// asks for a listing with the directory locked.
    fn nodes_of(
        &self,
        dir: &Node,
        cursor: &Cursor,
        given: usize,
        known: &[bool],
    ) -> Vec<Option<(Entry, Arc<Node>)>> {
        let mut entries: Vec<Option<(Entry, Arc<Node>)>> = vec![None; given];
        let Ok(path) = self.nodes.dir_path(dir.id) else { return entries };
        let (branches, follow) = (self.branches.load(), self.follow());
        let items: Vec<(DirEntry<'_>, usize)> = (0..given).filter_map(|at| cursor.found(at)).collect();
        let own = |entry: &DirEntry<'_>| matches!(entry.name, b"." | b"..");
        let passed = |at: usize| known.get(at).is_some_and(|&known| known) || own(&items[at].0);
        // A file is where it was first listed, if the policy is the branch order.
        let in_order = policy::first_only(self.config().policies.get(Func::Getattr), Category::Search);
        let still = |branch: &Arc<Branch>| Some(branches.as_slice()[branches.index_of(branch.id)?].clone());
        let sources: PerBranch<_> = cursor.sources().map(|(branch, dir)| (still(branch), dir)).collect();
        let look = |(at, &(entry, source)): (usize, &(DirEntry<'_>, usize))| {
            let (_, dir) = sources.get(source).filter(|(branch, _)| in_order && branch.is_some())?;
            let looks = entry.kind != DT_DIR && !passed(at);
            looks.then(|| follow.at(dir, entry.name).ok())?.filter(|attr| !attr.is_dir())
        };
        let looked: Vec<Option<Attr>> = items.iter().enumerate().map(look).collect();
        let files = items.iter().zip(&looked).map(|((entry, source), attr)| {
            let (attr, (branch, _)) = (attr.as_ref()?, &sources[*source]);
            Some((entry.name, &**branch.as_ref()?, attr.key(), follow.shows_as_symlink(attr)))
        });
        self.nodes.hand_out_files(dir.id, files, |at, node| {
            let (entry, source) = items[at];
            if let (Some(attr), Some((Some(branch), within))) = (looked[at], sources.get(source)) {
                self.tidy_names(&branches, &node, attr.nlink);
                let place = At::Named(follow, *within, entry.name);
                let attr = match self.needs_path(&node) {
                    true => self.show(&node, branch, &join(&path, entry.name), attr, place),
                    false => self.show(&node, branch, b"", attr, place),
                };
                entries[at] = Some((Entry::new(&node, attr), node));
            }
        });
        // Directories, which are merged, and what is chosen by more than the order.
        let mut dirs = None;
        for (at, (entry, _)) in items.iter().enumerate() {
            if entries[at].is_none() && !passed(at) {
                let dirs = dirs.get_or_insert_with(|| MergedDir::open(follow, &branches, &path));
                let found = self.enter(&branches, dir.id, &path, dirs, entry.name).ok();
                entries[at] = found.and_then(|found| Some((found, self.nodes.get(found.node).ok()?)));
            }
        }
        entries
    }

    /// Opens a directory on every branch.
    pub(crate) fn open_on_branches(
        &self,
        branches: &Branches,
        path: &[u8],
        from_start: bool,
    ) -> Vec<Result<OpenedSource, Errno>> {
        let follow = self.follow();
        let open = |branch: &Branch| OpenedSource::open(follow, branch, path);
        match self.config().readdir {
            ReaddirMode::Cor { threads, .. } if from_start => {
                side_by_side(branches, threads, |branch| open(branch).map(OpenedSource::read))
            }
            // Opened side by side, so that sleeping disks wake together; read in order.
            ReaddirMode::Cosr { threads, .. } | ReaddirMode::Cor { threads, .. } => {
                side_by_side(branches, threads, open)
            }
            ReaddirMode::Seq => branches.iter().map(|branch| open(branch)).collect(),
        }
    }

    /// fsync(2) of a directory: on every branch that holds it.
    pub fn fsyncdir(&self, id: NodeId, data_only: bool) -> Result<()> {
        let _held = self.tree.shared();
        let branches = self.branches.load();
        let Ok(path) = self.nodes.dir_path(id) else { return Ok(()) };
        let mut result = Ok(());
        for branch in branches.iter() {
            let synced = match open_dir(self.follow(), branch.root(), &path) {
                Ok(dir) if data_only => rustix::fs::fdatasync(dir),
                Ok(dir) => rustix::fs::fsync(dir),
                Err(errno) if beneath::is_absent(errno) => Ok(()),
                Err(errno) => Err(errno),
            };
            result =
                result.and(synced.map_err(|errno| Error::Branch(branch.record_error(errno, OpKind::Change))));
        }
        result
    }
}
