//! The node table: what the kernel holds references to.
//!
//! A directory's identity is its place in the tree, merged over the branches. The identity of anything
//! else is its file ([`FileKey`]), so that all names of a hard-linked file are one node, and agree about
//! link count, times, size and locks at once. The one exception is a file that is shown as a symlink
//! (`symlinkify`): the kernel gives up an inode whose type changes, so that is a node of its own.
//!
//! A node lives while the kernel has looked it up more often than it has forgotten it, or while a known
//! name lies below it. It may outlive its last name: then an open file or a pinned descriptor stands in. Its id says
//! where its file lies, so that it can be found again when it has been forgotten (`export`).

mod children;
pub(crate) mod direct_writes;
pub(crate) mod handles;
pub(crate) mod idle_files;
pub(crate) mod known_tree;
mod listing;
pub(crate) mod name_index;

use crate::branch::Branch;
use crate::dir::cache;
use crate::error::{Error, Result};
use crate::export::Lasting;
use crate::fs::stat::FileKey;
use crate::hash::{HashMap, shrink};
use crate::ids::NodeId;
use children::Children;
use handles::{Fingerprint, OpenFile};
use parking_lot::{Mutex, RwLock};
use rustix::fd::OwnedFd;
use smallvec::SmallVec;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A path in the pool: bytes without a leading slash; the root is empty.
pub(crate) type PoolPath = SmallVec<[u8; 128]>;

/// One part of a path.
pub(crate) type FileName = SmallVec<[u8; 64]>;

/// `parent/name`.
pub(crate) fn join(parent: &[u8], name: &[u8]) -> PoolPath {
    let mut path = PoolPath::with_capacity(parent.len() + 1 + name.len());
    path.extend_from_slice(parent);
    if !parent.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Identity {
    /// Its place in the tree. Carries the inode number that callers see, which stays the same for as
    /// long as the node lives, renames included.
    Directory {
        ino: u64,
    },
    File(FileKey),
}

/// A file that has lost its last known name: pinned, so that its attributes can still be told.
pub(crate) struct Orphan {
    pub(crate) branch: Arc<Branch>,
    pub(crate) fd: OwnedFd,
}

pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// Tells its file from another one that a handle with this id may have been made of.
    pub(crate) generation: u32,
    /// Changes only when the file moves to another branch.
    identity: Mutex<Identity>,
    /// Shown as a symlink to the file on its branch, whatever the file is like by now.
    pub(crate) disguised: bool,
    /// How often the kernel was given this node, less what it has forgotten.
    lookups: AtomicU64,
    /// What all handles of this node share. Without users it is only kept open (`memory::kept`), and counts as closed.
    /// Held over an open, so that two first opens cannot register two backing files.
    pub(crate) open: Mutex<Weak<OpenFile>>,
    pub(crate) orphan: Mutex<Option<Arc<Orphan>>>,
    /// Somebody has had it open such that he could write it by a mapping of the branch's own file, which may outlive what
    /// is open here.
    pub(crate) mapped: AtomicBool,
    /// What the file looked like at its last open, for `cache.files=auto-full`.
    pub(crate) seen: Mutex<Option<Fingerprint>>,
    /// Shared by whoever writes the file, exclusively by who moves it to another branch.
    pub(crate) moving: RwLock<()>,
    /// How often the file has moved.
    pub(crate) moves: AtomicU32,
    /// The inode number that callers know of a file that has moved; else 0. A file that changes its number while
    /// it is open looks like another one put in its place.
    pub(crate) number: AtomicU64,
    /// It has got so many names that some may not be its names any more: those that went on the branch itself.
    pub(crate) doubtful: AtomicBool,
    /// Until then nobody tries to move the file: its names were not found, or it cannot be leased.
    pub(crate) stays_until: Mutex<Option<Instant>>,
    /// The kernel was given attributes in a listing, and goes by them until then ([`batch::now`]).
    relied: AtomicU32,
    /// Of a directory: the same of names in it.
    relied_below: AtomicU32,
    /// Of a directory: how many names the pool has made in it.
    pub(crate) made: AtomicU32,
    /// Of a directory: where it lies, and who holds its names.
    pub(crate) memory: cache::Slot,
    /// It has a place among those of which something is remembered.
    pub(crate) ordered: AtomicBool,
}

impl Node {
    pub(crate) fn identity(&self) -> Identity {
        *self.identity.lock()
    }

    pub(crate) fn is_dir(&self) -> bool {
        matches!(self.identity(), Identity::Directory { .. })
    }

    pub(crate) fn key(&self) -> Option<FileKey> {
        match self.identity() {
            Identity::File(key) => Some(key),
            Identity::Directory { .. } => None,
        }
    }

    fn shown(&self) -> Option<Shown> {
        self.key().map(|key| (key, self.disguised))
    }

    pub(crate) fn opened(&self) -> Option<Arc<OpenFile>> {
        self.open.lock().upgrade().filter(|open| open.users() > 0)
    }
}

/// A file's names are looked through each time that it has got so many more.
const MANY_NAMES: usize = 64;

struct Name {
    parent: NodeId,
    name: Box<[u8]>,
}

struct Record {
    node: Arc<Node>,
    /// One for a directory, any number for a file. Newest last.
    names: SmallVec<[Name; 1]>,
    /// Known names below; each holds this node in the table.
    children: Children,
}

/// A known name, as its directory has it.
#[derive(Clone, Copy)]
struct Child {
    id: NodeId,
    /// Where the name is among the node's `names`: a file may have tens of thousands.
    slot: usize,
}

/// A file, and whether it is shown as a symlink.
type Shown = (FileKey, bool);

#[derive(Default)]
struct Table {
    records: HashMap<NodeId, Record>,
    files: HashMap<Shown, NodeId>,
    /// Inode numbers of known directories. One that was renamed keeps its own, and so does all below it,
    /// though the old paths may belong to other directories by now.
    numbers: HashMap<u64, NodeId>,
    /// Inode numbers that files had before they moved, by device and number on their branch.
    kept: HashMap<(u64, u64), u64>,
    /// Far fewer nodes are known than once were.
    shrunk: bool,
}

pub(crate) struct Nodes {
    table: RwLock<Table>,
    /// The id of the next node that has none which lasts.
    next: AtomicU64,
    /// Tells such nodes from those of an earlier run.
    run: u32,
    /// Some file has kept its number.
    any_kept: AtomicBool,
}

impl Nodes {
    pub(crate) fn new(root_ino: u64) -> Self {
        let mut table = Table::default();
        let lasting = Lasting { id: NodeId::ROOT, generation: 0 };
        let root = new_node(lasting, Identity::Directory { ino: root_ino }, false);
        // The kernel never forgets the root.
        root.lookups.store(1, Ordering::Relaxed);
        table.records.insert(
            NodeId::ROOT,
            Record { node: root, names: SmallVec::new(), children: Children::default() },
        );
        table.numbers.insert(root_ino, NodeId::ROOT);
        let next = AtomicU64::new(NodeId::ROOT.0 + 1);
        let run = RandomState::new().hash_one(()) as u32;
        Nodes { table: RwLock::new(table), next, run, any_kept: AtomicBool::new(false) }
    }

    pub(crate) fn get(&self, id: NodeId) -> Result<Arc<Node>> {
        self.table.read().records.get(&id).map(|r| r.node.clone()).ok_or(Error::Stale)
    }

    /// Node and newest path in one look. `Stale` when the node is unknown; no path when it has no name.
    pub(crate) fn locate(&self, id: NodeId) -> Result<(Arc<Node>, Option<PoolPath>)> {
        let table = self.table.read();
        let record = table.records.get(&id).ok_or(Error::Stale)?;
        let path = match record.names.last() {
            _ if id == NodeId::ROOT => Some(PoolPath::new()),
            Some(name) => table.path_of(name),
            None => None,
        };
        Ok((record.node.clone(), path))
    }

    /// The path of a directory in which names are about to be used.
    pub(crate) fn dir_path(&self, id: NodeId) -> Result<PoolPath> {
        self.dir(id).map(|(_, path)| path)
    }

    /// A directory in which names are about to be used, and its path.
    pub(crate) fn dir(&self, id: NodeId) -> Result<(Arc<Node>, PoolPath)> {
        let (node, path) = self.locate(id)?;
        if !node.is_dir() {
            return Err(Error::NotDirectory);
        }
        // A removed directory that somebody still stands in.
        Ok((node, path.ok_or(Error::Absent)?))
    }

    /// The directory and the name by which a node was found last.
    pub(crate) fn newest_name(&self, id: NodeId) -> Option<(Arc<Node>, FileName)> {
        let table = self.table.read();
        let name = table.records.get(&id)?.names.last()?;
        let dir = table.records.get(&name.parent)?;
        Some((dir.node.clone(), FileName::from_slice(&name.name)))
    }

    /// The known names of a node, as directory and name, newest first. One at a time: a file may have tens
    /// of thousands, and the first is nearly always right. They are those of the file: that it is shown as
    /// something else by now, under another node, takes none away.
    pub(crate) fn names(&self, id: NodeId) -> impl Iterator<Item = (PoolPath, Box<[u8]>)> + '_ {
        let mut seen = 0;
        std::iter::from_fn(move || {
            let table = self.table.read();
            let mut record = table.records.get(&id)?;
            if record.names.is_empty() {
                record = table.twin(&record.node)?;
            }
            loop {
                let name = record.names.iter().rev().nth(seen)?;
                seen += 1;
                // A directory on the way may have lost its own name.
                if let Some(dir) = table.path(name.parent) {
                    return Some((dir, name.name.clone()));
                }
            }
        })
    }

    /// The known names of a node, as node of the directory and name.
    pub(crate) fn known(&self, id: NodeId) -> Vec<(NodeId, Box<[u8]>)> {
        let table = self.table.read();
        let names = table.records.get(&id).map(|record| record.names.as_slice()).unwrap_or_default();
        names.iter().map(|name| (name.parent, name.name.clone())).collect()
    }

    pub(crate) fn child(&self, parent: NodeId, name: &[u8]) -> Option<Arc<Node>> {
        let table = self.table.read();
        let id = table.records.get(&parent)?.children.get(name)?.id;
        table.records.get(&id).map(|r| r.node.clone())
    }

    /// The known names in a directory.
    pub(crate) fn children(&self, id: NodeId) -> Vec<Vec<u8>> {
        let table = self.table.read();
        table.records.get(&id).map(|r| r.children.names().map(<[u8]>::to_vec).collect()).unwrap_or_default()
    }

    pub(crate) fn parent(&self, id: NodeId) -> Result<NodeId> {
        let table = self.table.read();
        let record = table.records.get(&id).ok_or(Error::Stale)?;
        record.names.last().map(|n| n.parent).ok_or(Error::Absent)
    }

    /// Hands a reference to the kernel: the node of a directory that was found under a name.
    /// `ino` is its inode number by that name, `lasting` is asked if it was not known.
    pub(crate) fn hand_out_dir(
        &self,
        parent: NodeId,
        name: &[u8],
        ino: u64,
        lasting: impl FnOnce() -> Option<Lasting>,
    ) -> Result<Arc<Node>> {
        {
            let table = self.table.read();
            if let Some(node) = table.child(parent, name).filter(|n| n.is_dir()) {
                node.lookups.fetch_add(1, Ordering::Relaxed);
                return Ok(node.clone());
            }
        }
        let mut table = self.table.write();
        if let Some(node) = table.child(parent, name).filter(|n| n.is_dir()) {
            node.lookups.fetch_add(1, Ordering::Relaxed);
            return Ok(node.clone());
        }
        let ino = table.free_number(ino);
        let node = self.new_node(&table, Identity::Directory { ino }, false, lasting());
        let replaced = table.insert(parent, name, node.clone())?;
        table.numbers.insert(ino, node.id);
        drop(table);
        drop(replaced);
        Ok(node)
    }

    /// The inode number that a lookup of a directory would show, `ino` being the one by its name.
    pub(crate) fn dir_number(&self, parent: NodeId, name: &[u8], ino: u64) -> u64 {
        let table = self.table.read();
        match table.child(parent, name).map(|node| node.identity()) {
            Some(Identity::Directory { ino }) => ino,
            _ => table.free_number(ino),
        }
    }

    /// The inode number that a file shows since before it moved, if it has; by where it is now.
    pub(crate) fn kept_number(&self, dev: u64, ino: u64) -> Option<u64> {
        match self.any_kept.load(Ordering::Relaxed) {
            true => self.table.read().kept.get(&(dev, ino)).copied(),
            false => None,
        }
    }

    /// Hands a reference to the kernel: the node of a file that was found under a name on a branch.
    pub(crate) fn hand_out_file(
        &self,
        parent: NodeId,
        name: &[u8],
        branch: &Branch,
        key: FileKey,
        disguised: bool,
    ) -> Result<Arc<Node>> {
        let shown = (key, disguised);
        {
            let table = self.table.read();
            if let Some(node) = table.child(parent, name).filter(|n| n.shown() == Some(shown)) {
                node.lookups.fetch_add(1, Ordering::Relaxed);
                return Ok(node.clone());
            }
        }
        let mut freed = Vec::new();
        let node = self.file_under(&mut self.table.write(), parent, name, branch, shown, &mut freed);
        // Outside the lock: dropping a node closes descriptors.
        drop(freed);
        node
    }

    /// The node of a file that was found under a name, with one more reference; what the name led to before may be
    /// freed.
    fn file_under(
        &self,
        table: &mut Table,
        parent: NodeId,
        name: &[u8],
        branch: &Branch,
        shown: Shown,
        freed: &mut Vec<Record>,
    ) -> Result<Arc<Node>> {
        if let Some(node) = table.files.get(&shown).and_then(|id| table.records.get(id)).map(|r| &r.node) {
            let node = node.clone();
            if table.child(parent, name).is_none_or(|n| n.id != node.id) {
                freed.extend(table.add_name(node.id, parent, name)?);
            }
            node.lookups.fetch_add(1, Ordering::Relaxed);
            return Ok(node);
        }
        let node = self.new_file(table, branch, shown);
        freed.extend(table.insert(parent, name, node.clone())?);
        table.files.insert(shown, node.id);
        Ok(node)
    }

    /// Hands a reference to the kernel: a file that never had a name (`O_TMPFILE`).
    pub(crate) fn hand_out_nameless(&self, branch: &Branch, key: FileKey) -> Arc<Node> {
        let mut table = self.table.write();
        let node = self.new_file(&table, branch, (key, false));
        table.put_nameless(&node, key);
        node
    }

    /// Hands a reference to the kernel: a file that it knows no more and that was found by its id.
    ///
    /// Errors: `ESTALE` when the file is known as another node.
    pub(crate) fn hand_out_found(&self, lasting: Lasting, key: FileKey) -> Result<Arc<Node>> {
        let mut table = self.table.write();
        if let Some(record) = table.records.get(&lasting.id) {
            // Somebody else has just found it.
            let same = record.node.shown() == Some((key, false));
            same.then(|| record.node.lookups.fetch_add(1, Ordering::Relaxed)).ok_or(Error::Stale)?;
            return Ok(record.node.clone());
        }
        if table.files.contains_key(&(key, false)) {
            return Err(Error::Stale);
        }
        let node = new_node(lasting, Identity::File(key), false);
        table.put_nameless(&node, key);
        Ok(node)
    }

    /// Hands a reference to the kernel: one more for a node that it already knows.
    pub(crate) fn hand_out_again(&self, id: NodeId) -> Result<Arc<Node>> {
        let table = self.table.read();
        let node = &table.records.get(&id).ok_or(Error::Stale)?.node;
        // With the table held: who forgets it looks once more when nobody has it.
        node.lookups.fetch_add(1, Ordering::Relaxed);
        Ok(node.clone())
    }

    /// Takes back `count` references from the kernel; of more than it has, those that it has. `gone` is told of the nodes
    /// that go, without any lock held.
    pub(crate) fn forget(&self, id: NodeId, count: u64, gone: impl Fn(&Node)) {
        if id == NodeId::ROOT {
            return;
        }
        let (goes, memory) = {
            let table = self.table.read();
            let Some(record) = table.records.get(&id) else { return };
            let less = |held: u64| Some(held.saturating_sub(count));
            let before = record.node.lookups.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            let forgotten = before.is_ok_and(|before| before <= count);
            // Though the node may stay, nobody asks for what is in it.
            let memory = if forgotten { record.node.memory.lock().take() } else { None };
            (forgotten, memory)
        };
        drop(memory);
        if goes {
            // Freed outside the lock: dropping a node closes descriptors.
            let (freed, shrunk) = {
                let mut table = self.table.write();
                (table.release(id), std::mem::take(&mut table.shrunk))
            };
            freed.iter().for_each(|record| gone(&record.node));
            drop(freed);
            if shrunk {
                canopy_sys::heap::trim();
            }
        }
    }

    /// The name is gone from every branch.
    pub(crate) fn name_removed(&self, parent: NodeId, name: &[u8]) {
        let freed = {
            let mut table = self.table.write();
            match table.detach(parent, name) {
                Some(id) => table.removed(id, parent),
                None => Vec::new(),
            }
        };
        drop(freed);
    }

    /// No file has this key any more (its last link is gone): a later file that gets its inode number
    /// must get a node of its own.
    pub(crate) fn file_gone(&self, key: FileKey) {
        let mut table = self.table.write();
        table.files.remove(&(key, false));
        table.files.remove(&(key, true));
        table.kept.remove(&(key.dev, key.ino));
    }

    /// The node's file is another one from now on, and keeps the inode number that callers know. The caller holds
    /// the tree exclusively, or is the only one who knows of the new file.
    pub(crate) fn moved(&self, node: &Node, to: FileKey, number: u64) {
        let mut table = self.table.write();
        if let Some(from) = node.key() {
            table.kept.remove(&(from.dev, from.ino));
            if table.files.get(&(from, node.disguised)) == Some(&node.id) {
                table.files.remove(&(from, node.disguised));
            }
        }
        if number != 0 {
            table.kept.insert((to.dev, to.ino), number);
            self.any_kept.store(true, Ordering::Relaxed);
        }
        *node.identity.lock() = Identity::File(to);
        table.files.insert((to, node.disguised), node.id);
        node.number.store(number, Ordering::Relaxed);
        node.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// The kernel holds on to the file that this node has open: whoever looks the names up from now on gets a node of its own
    /// for the file `to`, which may be the same one. This one keeps the number that callers know, and the other one shows it
    /// too if it `stays` with the file. Gives the names. The caller holds the tree exclusively.
    pub(crate) fn parted(
        &self,
        node: &Node,
        to: FileKey,
        number: u64,
        stays: bool,
    ) -> Vec<(NodeId, Box<[u8]>)> {
        let names = self.known(node.id);
        match node.key() {
            Some(from) if from != to => self.file_gone(from),
            Some(from) => {
                self.table.write().files.remove(&(from, node.disguised));
            }
            None => {}
        }
        if stays {
            self.table.write().kept.insert((to.dev, to.ino), number);
            self.any_kept.store(true, Ordering::Relaxed);
        }
        for (parent, name) in &names {
            self.name_removed(*parent, name);
        }
        node.number.store(number, Ordering::Relaxed);
        node.moves.fetch_add(1, Ordering::Relaxed);
        names
    }

    /// The name moved, over whatever was there.
    pub(crate) fn renamed(&self, from: (NodeId, &[u8]), to: (NodeId, &[u8])) {
        let freed = {
            let mut table = self.table.write();
            let mut freed = Vec::new();
            if let Some(victim) = table.detach(to.0, to.1) {
                freed.extend(table.removed(victim, to.0));
            }
            if let Some(id) = table.detach(from.0, from.1) {
                freed.extend(table.add_name(id, to.0, to.1).unwrap_or_default());
                freed.extend(table.release(id));
                freed.extend(table.release(from.0));
            }
            freed
        };
        drop(freed);
    }

    /// The two names changed places.
    pub(crate) fn exchanged(&self, one: (NodeId, &[u8]), other: (NodeId, &[u8])) {
        let mut table = self.table.write();
        let (a, b) = (table.detach(one.0, one.1), table.detach(other.0, other.1));
        let mut freed = Vec::new();
        for (id, place) in [(a, other), (b, one)] {
            if let Some(id) = id {
                freed.extend(table.add_name(id, place.0, place.1).unwrap_or_default());
            }
        }
        // Neither directory lost a child, unless one of the names was not known here.
        freed.extend([one.0, other.0].into_iter().flat_map(|dir| table.release(dir)));
        drop(table);
        drop(freed);
    }

    fn new_node(
        &self,
        table: &Table,
        identity: Identity,
        disguised: bool,
        lasting: Option<Lasting>,
    ) -> Arc<Node> {
        let as_it_comes = || {
            let id = NodeId(self.next.fetch_add(1, Ordering::Relaxed));
            Lasting { id, generation: self.run }
        };
        let free = lasting.filter(|lasting| !table.records.contains_key(&lasting.id));
        new_node(free.unwrap_or_else(as_it_comes), identity, disguised)
    }

    fn new_file(&self, table: &Table, branch: &Branch, (key, disguised): Shown) -> Arc<Node> {
        // As a symlink it is another node than as itself, and the file can be found by one of them alone.
        let lasting = if disguised { None } else { Lasting::of(branch, key) };
        self.new_node(table, Identity::File(key), disguised, lasting)
    }

    /// How many entries each table has.
    pub(crate) fn sizes(&self) -> [(&'static str, usize); 5] {
        let table = self.table.read();
        let names = table.records.values().map(|record| record.names.len()).sum();
        [
            ("nodes", table.records.len()),
            ("names", names),
            ("files", table.files.len()),
            ("numbers", table.numbers.len()),
            ("kept numbers", table.kept.len()),
        ]
    }

    /// How many nodes are known.
    pub(crate) fn len(&self) -> usize {
        self.table.read().records.len()
    }
}

fn new_node(lasting: Lasting, identity: Identity, disguised: bool) -> Arc<Node> {
    Arc::new(Node {
        id: lasting.id,
        generation: lasting.generation,
        identity: Mutex::new(identity),
        disguised,
        lookups: AtomicU64::new(1),
        open: Mutex::new(Weak::new()),
        orphan: Mutex::new(None),
        mapped: AtomicBool::new(false),
        relied: AtomicU32::new(0),
        relied_below: AtomicU32::new(0),
        made: AtomicU32::new(0),
        seen: Mutex::new(None),
        moving: RwLock::new(()),
        moves: AtomicU32::new(0),
        number: AtomicU64::new(0),
        stays_until: Mutex::new(None),
        memory: Mutex::new(None),
        ordered: AtomicBool::new(false),
        doubtful: AtomicBool::new(false),
    })
}

impl Table {
    fn path(&self, id: NodeId) -> Option<PoolPath> {
        if id == NodeId::ROOT {
            return Some(PoolPath::new());
        }
        self.path_of(self.records.get(&id)?.names.last()?)
    }

    /// Walks up to the root; `None` when an ancestor has lost its name.
    fn path_of(&self, name: &Name) -> Option<PoolPath> {
        let mut parts: SmallVec<[&[u8]; 16]> = SmallVec::new();
        parts.push(&name.name);
        let mut at = name.parent;
        while at != NodeId::ROOT {
            let name = self.records.get(&at)?.names.last()?;
            parts.push(&name.name);
            at = name.parent;
        }
        let mut path = PoolPath::with_capacity(parts.iter().map(|p| p.len() + 1).sum());
        for part in parts.iter().rev() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(part);
        }
        Some(path)
    }

    fn child(&self, parent: NodeId, name: &[u8]) -> Option<&Arc<Node>> {
        let id = self.records.get(&parent)?.children.get(name)?.id;
        self.records.get(&id).map(|r| &r.node)
    }

    /// The other node of a file that is, or was, shown as a symlink.
    fn twin(&self, node: &Node) -> Option<&Record> {
        let (key, disguised) = node.shown()?;
        self.records.get(self.files.get(&(key, !disguised))?)
    }

    /// `ino`, or what stands in for it while another directory has it: always the same, so that a
    /// directory that is forgotten and found again does not change.
    fn free_number(&self, mut ino: u64) -> u64 {
        while self.numbers.contains_key(&ino) {
            ino = ino.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
        }
        ino
    }

    fn put_nameless(&mut self, node: &Arc<Node>, key: FileKey) {
        let record = Record { node: node.clone(), names: SmallVec::new(), children: Children::default() };
        self.records.insert(node.id, record);
        self.files.insert((key, false), node.id);
    }

    /// As `add_name`, for a node that is new.
    fn insert(&mut self, parent: NodeId, name: &[u8], node: Arc<Node>) -> Result<Vec<Record>> {
        let id = node.id;
        self.records.insert(id, Record { node, names: SmallVec::new(), children: Children::default() });
        self.add_name(id, parent, name).inspect_err(|_| {
            self.records.remove(&id);
        })
    }

    /// Gives a node a name, taking it from whichever node had it, and gives back what is freed by that.
    /// `Stale` when the directory is unknown.
    fn add_name(&mut self, id: NodeId, parent: NodeId, name: &[u8]) -> Result<Vec<Record>> {
        if !self.records.contains_key(&parent) {
            return Err(Error::Stale);
        }
        let previous = self.detach(parent, name);
        let record = self.records.get_mut(&id).ok_or(Error::Stale)?;
        let (slot, node) = (record.names.len(), record.node.clone());
        record.names.push(Name { parent, name: name.into() });
        if record.names.len() % MANY_NAMES == 0 {
            node.doubtful.store(true, Ordering::Relaxed);
        }
        let dir = self.records.get_mut(&parent).ok_or(Error::Stale)?;
        dir.children.insert(name.into(), Child { id, slot });
        // A name makes the file reachable again (link(2) of an open file without one).
        let orphan = node.orphan.lock().take();
        drop(orphan);
        // The kernel may still hold it, or names below it; then it goes when they are forgotten.
        Ok(previous.map(|previous| self.release(previous)).unwrap_or_default())
    }

    /// Takes a name from its node, if any has it. The node stays in the table.
    fn detach(&mut self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        let Child { id, slot } = self.records.get_mut(&parent)?.children.remove(name)?;
        self.drop_name(id, slot);
        Some(id)
    }

    /// Takes a name out of its node's list; the newest takes its place.
    fn drop_name(&mut self, id: NodeId, slot: usize) {
        let Some(record) = self.records.get_mut(&id) else { return };
        record.names.swap_remove(slot);
        let Some(moved) = record.names.get(slot) else { return };
        let (parent, name) = (moved.parent, moved.name.clone());
        if let Some(child) = self.records.get_mut(&parent).and_then(|dir| dir.children.get_mut(&name)) {
            child.slot = slot;
        }
    }

    /// `release`, for a node that has lost a name for good and the directory that has lost the child.
    fn removed(&mut self, id: NodeId, parent: NodeId) -> Vec<Record> {
        // Whoever is still in the directory may share its number with the next one of that name; the next
        // one's must not depend on when this one is forgotten.
        self.give_up_number(id);
        let mut freed = self.release(id);
        freed.extend(self.release(parent));
        freed
    }

    fn give_up_number(&mut self, id: NodeId) {
        if let Some(Identity::Directory { ino }) = self.records.get(&id).map(|record| record.node.identity())
            && self.numbers.get(&ino) == Some(&id)
        {
            self.numbers.remove(&ino);
        }
    }

    /// Drops the node if nothing holds it, and then its ancestors that only it held.
    fn release(&mut self, id: NodeId) -> Vec<Record> {
        let mut freed = Vec::new();
        let mut doubtful: SmallVec<[NodeId; 4]> = SmallVec::new();
        doubtful.push(id);
        while let Some(id) = doubtful.pop() {
            let Some(record) = self.records.get(&id) else { continue };
            let held = record.node.lookups.load(Ordering::Relaxed) > 0 || !record.children.is_empty();
            if held {
                continue;
            }
            let Some(record) = self.records.remove(&id) else { continue };
            let shown = |key| (key, record.node.disguised);
            match record.node.identity() {
                Identity::File(key) if self.files.get(&shown(key)) == Some(&id) => {
                    self.files.remove(&shown(key));
                    self.kept.remove(&(key.dev, key.ino));
                }
                Identity::Directory { ino } if self.numbers.get(&ino) == Some(&id) => {
                    self.numbers.remove(&ino);
                }
                _ => {}
            }
            for name in &record.names {
                if let Some(parent) = self.records.get_mut(&name.parent) {
                    if parent.children.get(&name.name).is_some_and(|child| child.id == id) {
                        parent.children.remove(&name.name);
                    }
                    doubtful.push(name.parent);
                }
            }
            freed.push(record);
        }
        self.shrunk |= shrink(&mut self.records);
        shrink(&mut self.files);
        shrink(&mut self.numbers);
        shrink(&mut self.kept);
        freed
    }
}
