//! A client of a pool that treats paths as the Linux VFS and its FUSE client do. It looks up each component, caches names
//! and moves them on renames, counts lookups and forgets them, and makes the checks that the kernel makes before it sends
//! a request (fs/namei.c, fs/open.c, fs/read_write.c).

use super::ROOT;
use canopy_base::ids::{HandleId, NodeId};
use canopy_branch::fs::stat::Attr;
use canopy_pool::ops;
use canopy_pool::{DirEntry, Entry, Pool};
use canopy_testkit::model::{DIR_SLOTS, FILE_SLOTS};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub type Answer<T> = Result<T, Errno>;

#[derive(Clone, Copy, Debug)]
pub struct OpenedFile {
    pub node: NodeId,
    pub handle: HandleId,
    pub reads: bool,
    pub writes: bool,
    pub appends: bool,
}

pub struct Client {
    pub pool: Arc<Pool>,
    /// Lookup counts: references that the pool has returned and that are not forgotten yet.
    refs: BTreeMap<NodeId, u64>,
    /// The dentry cache, by path.
    known: BTreeMap<String, NodeId>,
    /// Unnamed files that may be linked (`I_LINKABLE` in include/linux/fs.h).
    pub linkable: BTreeSet<NodeId>,
    pub files: [Option<OpenedFile>; FILE_SLOTS],
    pub dirs: [Option<NodeId>; DIR_SLOTS],
    /// Decides what the kernel may do either way. It depends on the operation only, so that a shortened sequence makes the
    /// same choices.
    choice: u64,
}

impl Client {
    pub fn new(pool: Arc<Pool>) -> Client {
        Client {
            pool,
            refs: BTreeMap::new(),
            known: BTreeMap::new(),
            linkable: BTreeSet::new(),
            files: [None; FILE_SLOTS],
            dirs: [None; DIR_SLOTS],
            choice: 0,
        }
    }

    /// Derives the following choices from `what`.
    pub fn choose_by(&mut self, what: &str) {
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        self.choice = what.bytes().fold(0xCBF2_9CE4_8422_2325, mix) >> 20;
    }

    /// Returns true once in `n` times, for what the kernel may do either way.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.choice = self.choice.wrapping_add(1);
        self.choice.is_multiple_of(n)
    }

    /// Counts the lookup that an answer stands for.
    pub fn count_lookup(&mut self, entry: Entry) -> Entry {
        *self.refs.entry(entry.node).or_default() += 1;
        entry
    }

    /// Caches a name. If it led to another node before, drops the cached names below it.
    pub fn remember(&mut self, path: &str, node: NodeId) {
        if self.known.get(path) != Some(&node) {
            self.drop_name(path);
            self.known.insert(path.to_owned(), node);
        }
    }

    pub fn drop_name(&mut self, path: &str) {
        self.known.retain(|known, _| !is_at_or_below(known, path));
    }

    fn take_names(&mut self, path: &str) -> Vec<(String, NodeId)> {
        let taken: Vec<_> = self.known.iter().filter(|(known, _)| is_at_or_below(known, path)).collect();
        let taken = taken.into_iter().map(|(known, node)| (known[path.len()..].to_owned(), *node)).collect();
        self.drop_name(path);
        taken
    }

    fn put_names(&mut self, path: &str, names: Vec<(String, NodeId)>) {
        self.known.extend(names.into_iter().map(|(rest, node)| (format!("{path}{rest}"), node)));
    }

    /// Moves the cached names after a rename.
    pub fn moved(&mut self, from: &str, to: &str, exchanged: bool) {
        let (old, new) = (self.take_names(from), self.take_names(to));
        self.put_names(to, old);
        if exchanged {
            self.put_names(from, new);
        }
    }

    /// Looks up a name in a directory, in the cache or in the pool.
    pub fn lookup(&mut self, parent: NodeId, dir: &str, name: &str) -> Answer<Entry> {
        let path = if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
        if let Some(&node) = self.known.get(&path)
            && !self.once_in(3)
        {
            let attr = ops::names::lookup::getattr(&self.pool, node, None).map_err(|e| e.errno())?;
            return Ok(Entry { node, generation: 0, attr, brief: false });
        }
        match ops::names::lookup::lookup(&self.pool, parent, name.as_bytes()) {
            Ok(entry) => {
                self.remember(&path, entry.node);
                Ok(self.count_lookup(entry))
            }
            Err(error) => {
                self.drop_name(&path);
                Err(error.errno())
            }
        }
    }

    /// Returns the parent directory of a path, the path of that directory, and the last component.
    pub fn parent<'p>(&mut self, path: &'p str) -> Answer<(NodeId, &'p str, &'p str)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut at = NodeId::ROOT;
        let mut seen = 0;
        for part in dir.split('/').filter(|part| !part.is_empty()) {
            let entry = self.lookup(at, &dir[..seen], part)?;
            match entry.attr {
                attr if attr.is_symlink() => return Err(Errno::LOOP),
                attr if !attr.is_dir() => return Err(Errno::NOTDIR),
                _ => at = entry.node,
            }
            seen += part.len() + usize::from(seen > 0);
        }
        Ok((at, dir, name))
    }

    pub fn walk(&mut self, path: &str) -> Answer<Entry> {
        if path.is_empty() {
            let attr = ops::names::lookup::getattr(&self.pool, NodeId::ROOT, None).map_err(|e| e.errno())?;
            return Ok(Entry { node: NodeId::ROOT, generation: 0, attr, brief: false });
        }
        let (parent, dir, name) = self.parent(path)?;
        self.lookup(parent, dir, name)
    }

    /// Looks up a name for an operation that makes or replaces it. Sometimes returns `None` unasked, as a kernel with a
    /// negative dentry does.
    pub fn probe(&mut self, parent: NodeId, dir: &str, name: &str) -> Answer<Option<Entry>> {
        let path = if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
        if !self.known.contains_key(&path) && self.once_in(4) {
            return Ok(None);
        }
        match self.lookup(parent, dir, name) {
            Ok(entry) => Ok(Some(entry)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    pub fn attr(&self, node: NodeId, handle: Option<HandleId>) -> Answer<Attr> {
        ops::names::lookup::getattr(&self.pool, node, handle).map_err(|e| e.errno())
    }

    /// Reads all entries of a directory, a few at a time.
    pub fn entries(&mut self, dir: NodeId, path: Option<&str>) -> Answer<Vec<Listed>> {
        let plus = path.is_some() && self.once_in(2);
        let mut entries: Vec<Listed> = Vec::new();
        loop {
            let position = entries.last().map_or(0, |entry| entry.next);
            let before = entries.len();
            match path {
                Some(path) if plus => self.entries_plus(dir, position, path, &mut entries)?,
                _ => entries.extend(self.entries_from(dir, position, 3)?),
            }
            if entries.len() == before {
                return Ok(entries);
            }
        }
    }

    pub fn entries_from(&self, dir: NodeId, position: u64, count: usize) -> Answer<Vec<Listed>> {
        let mut entries = Vec::new();
        let take = |entry: DirEntry<'_>| {
            let room = entries.len() < count;
            if room {
                entries.push(Listed::from(entry));
            }
            room
        };
        ops::readdir::readdir(&self.pool, dir, position, take).map_err(|e| e.errno())?;
        Ok(entries)
    }

    fn entries_plus(
        &mut self,
        dir: NodeId,
        position: u64,
        path: &str,
        entries: &mut Vec<Listed>,
    ) -> Answer<()> {
        let room = std::cell::Cell::new(3);
        let mut nodes = Vec::new();
        let has_room = |_: &[u8]| {
            let left: usize = room.get();
            room.set(left.saturating_sub(1));
            left > 0
        };
        let take = |entry: DirEntry<'_>, node: Option<Entry>| {
            entries.push(Listed::from(entry));
            nodes.extend(node.map(|node| (String::from_utf8_lossy(entry.name).into_owned(), node)));
            Duration::ZERO
        };
        ops::readdir::readdirplus(&self.pool, dir, position, has_room, take).map_err(|e| e.errno())?;
        for (name, node) in nodes {
            self.count_lookup(node);
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            self.remember(&path, node.node);
        }
        Ok(())
    }

    pub fn close(&mut self, slot: usize) -> Answer<()> {
        let Some(file) = self.files[slot].take() else { return Ok(()) };
        let flushed = ops::data::open::flush(&self.pool, file.handle);
        ops::data::open::release(&self.pool, file.handle).map_err(|e| e.errno())?;
        flushed.map_err(|e| e.errno())
    }

    /// Forgets all nodes that are not open, or half of them.
    pub fn forget(&mut self) {
        let all = !self.once_in(2);
        let open: Vec<NodeId> =
            self.files.iter().flatten().map(|f| f.node).chain(self.dirs.iter().flatten().copied()).collect();
        let gone: Vec<NodeId> = self
            .refs
            .keys()
            .copied()
            .filter(|id| !open.contains(id) && (all || id.0.is_multiple_of(2)))
            .collect();
        self.forget_nodes(&gone);
    }

    fn forget_nodes(&mut self, gone: &[NodeId]) {
        // The kernel caches no name below a name that it has dropped.
        let lost: Vec<String> =
            self.known.iter().filter(|(_, id)| gone.contains(id)).map(|(path, _)| path.clone()).collect();
        for path in lost {
            self.drop_name(&path);
        }
        for id in gone {
            if let Some(count) = self.refs.remove(id) {
                // In two requests, like a single and a batched FORGET.
                ops::names::lookup::forget(&self.pool, *id, 1);
                if count > 1 {
                    ops::names::lookup::forget(&self.pool, *id, count - 1);
                }
            }
        }
    }

    /// Closes all files and forgets all nodes. The error says what is left in the pool.
    pub fn end(&mut self) -> Result<(), String> {
        for slot in 0..FILE_SLOTS {
            self.close(slot).map_err(|errno| format!("closing a file: {errno}"))?;
        }
        let all: Vec<NodeId> = self.refs.keys().copied().collect();
        self.forget_nodes(&all);
        match ops::settings::counts(&self.pool) {
            (1, 0) => Ok(()),
            counts => Err(format!("nodes and files left in the pool: {counts:?}")),
        }
    }
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    pub name: Vec<u8>,
    pub kind: u8,
    pub ino: u64,
    pub next: u64,
}

impl From<DirEntry<'_>> for Listed {
    fn from(entry: DirEntry<'_>) -> Self {
        Listed { name: entry.name.to_vec(), kind: entry.kind, ino: entry.ino, next: entry.next }
    }
}

fn is_at_or_below(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The caller of all operations. The kernel checks permissions, so root's suffice.
pub const CALLER: canopy_pool::Caller = ROOT;
