//! The tables of known nodes and names.

use super::children::{Child, Children};
use super::{Identity, Node};
use crate::error::{Error, Result};
use crate::export::StableId;
use crate::fs::stat::FileKey;
use crate::hash::{HashMap, shrink};
use crate::ids::NodeId;
use crate::lock::ranked::{Mutex, RwLock};
use crate::path::PoolPath;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Each time a file has got so many more names, its names are checked.
pub(crate) const MANY_NAMES: usize = 64;

pub(crate) struct Name {
    pub(crate) parent: NodeId,
    pub(crate) name: Box<[u8]>,
}

pub(crate) struct Record {
    pub(crate) node: Arc<Node>,
    /// One for a directory, any number for a file. Newest last.
    pub(crate) names: SmallVec<[Name; 1]>,
    /// Known names in this directory. Each keeps this node in the table.
    pub(crate) children: Children,
}

/// A file's identity, and whether it is shown as a symlink.
pub(crate) type ShownFile = (FileKey, bool);

#[derive(Default)]
pub(crate) struct Table {
    pub(crate) records: HashMap<NodeId, Record>,
    pub(crate) files: HashMap<ShownFile, NodeId>,
    /// Inode numbers of known directories. A directory that was renamed keeps its number, and so does everything
    /// below it, though other directories may have the old paths by now.
    pub(crate) numbers: HashMap<u64, NodeId>,
    /// Inode numbers that files had before they moved, by their present device and number on the branch.
    pub(crate) preserved: HashMap<(u64, u64), u64>,
    /// The tables have shrunk, because far fewer nodes are known than before.
    pub(crate) shrunk: bool,
}

pub(crate) fn new_node(stable: StableId, identity: Identity, symlinkified: bool) -> Arc<Node> {
    Arc::new(Node {
        id: stable.id,
        generation: stable.generation,
        identity: Mutex::new(identity),
        symlinkified,
        lookups: AtomicU64::new(1),
        open: Mutex::new(Weak::new()),
        orphan: Mutex::new(None),
        mapped: AtomicBool::new(false),
        relied: AtomicU32::new(0),
        relied_below: AtomicU32::new(0),
        made: AtomicU32::new(0),
        names_changed: AtomicU32::new(0),
        seen: Mutex::new(None),
        moving: RwLock::new(()),
        moves: AtomicU32::new(0),
        number: AtomicU64::new(0),
        stays_until: Mutex::new(None),
        cached_dir: Mutex::new(None),
        in_cache_order: AtomicBool::new(false),
        has_doubtful_names: AtomicBool::new(false),
    })
}

impl Table {
    pub(crate) fn path(&self, id: NodeId) -> Option<PoolPath> {
        if id == NodeId::ROOT {
            return Some(PoolPath::new());
        }
        self.path_of(self.records.get(&id)?.names.last()?)
    }

    /// Builds a path, walking up to the root; `None` if an ancestor has lost its name.
    pub(crate) fn path_of(&self, name: &Name) -> Option<PoolPath> {
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

    pub(crate) fn child(&self, parent: NodeId, name: &[u8]) -> Option<&Arc<Node>> {
        let id = self.records.get(&parent)?.children.get(name)?.id;
        self.records.get(&id).map(|r| &r.node)
    }

    /// Returns the other node of a file that is, or was, shown as a symlink.
    pub(crate) fn twin(&self, node: &Node) -> Option<&Record> {
        let (key, symlinkified) = node.shown()?;
        self.records.get(self.files.get(&(key, !symlinkified))?)
    }

    /// Returns `ino`, or its replacement while another directory has that number. The replacement is always the same,
    /// so that the number of a directory does not change when it is forgotten and found again.
    pub(crate) fn unused_ino(&self, mut ino: u64) -> u64 {
        while self.numbers.contains_key(&ino) {
            ino = ino.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
        }
        ino
    }

    pub(crate) fn insert_nameless(&mut self, node: &Arc<Node>, key: FileKey) {
        let record = Record { node: node.clone(), names: SmallVec::new(), children: Children::default() };
        self.records.insert(node.id, record);
        self.files.insert((key, false), node.id);
    }

    /// As `add_name`, for a new node.
    pub(crate) fn insert(&mut self, parent: NodeId, name: &[u8], node: Arc<Node>) -> Result<Vec<Record>> {
        let id = node.id;
        self.records.insert(id, Record { node, names: SmallVec::new(), children: Children::default() });
        self.add_name(id, parent, name).inspect_err(|_| {
            self.records.remove(&id);
        })
    }

    /// Gives a node a name, taking it from whichever node had it. Returns what that frees. `Stale` if the directory
    /// is unknown.
    pub(crate) fn add_name(&mut self, id: NodeId, parent: NodeId, name: &[u8]) -> Result<Vec<Record>> {
        if !self.records.contains_key(&parent) {
            return Err(Error::Stale);
        }
        let previous = self.detach(parent, name);
        let record = self.records.get_mut(&id).ok_or(Error::Stale)?;
        let (slot, node) = (record.names.len(), record.node.clone());
        record.names.push(Name { parent, name: name.into() });
        if record.names.len() % MANY_NAMES == 0 {
            node.has_doubtful_names.store(true, Ordering::Relaxed);
        }
        let dir = self.records.get_mut(&parent).ok_or(Error::Stale)?;
        dir.children.insert(name.into(), Child { id, slot });
        // The file can be found by a name again (link(2) of an open file without a name).
        let orphan = node.orphan.lock().take();
        drop(orphan);
        // If the kernel holds the previous node or names below it, it stays until those are forgotten.
        Ok(previous.map(|previous| self.release(previous)).unwrap_or_default())
    }

    /// Takes a name from the node that has it, if any. The node stays in the table.
    pub(crate) fn detach(&mut self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        let Child { id, slot } = self.records.get_mut(&parent)?.children.remove(name)?;
        self.drop_name(id, slot);
        Some(id)
    }

    /// Removes a name from its node's list; the newest name takes its slot.
    pub(crate) fn drop_name(&mut self, id: NodeId, slot: usize) {
        let Some(record) = self.records.get_mut(&id) else { return };
        record.names.swap_remove(slot);
        let Some(moved) = record.names.get(slot) else { return };
        let (parent, name) = (moved.parent, moved.name.clone());
        if let Some(child) = self.records.get_mut(&parent).and_then(|dir| dir.children.get_mut(&name)) {
            child.slot = slot;
        }
    }

    /// As `release`, for a node that has lost a name for good and the directory that has lost the child.
    pub(crate) fn removed(&mut self, id: NodeId, parent: NodeId) -> Vec<Record> {
        // The next directory of that name may have the same number as this one while some process still uses this
        // one. It must not depend on when this one is forgotten.
        self.release_ino(id);
        let mut freed = self.release(id);
        freed.extend(self.release(parent));
        freed
    }

    pub(crate) fn release_ino(&mut self, id: NodeId) {
        if let Some(Identity::Directory { ino }) = self.records.get(&id).map(|record| record.node.identity())
            && self.numbers.get(&ino) == Some(&id)
        {
            self.numbers.remove(&ino);
        }
    }

    /// Drops a node if nothing holds it, and then each ancestor that nothing else holds.
    pub(crate) fn release(&mut self, id: NodeId) -> Vec<Record> {
        let mut freed = Vec::new();
        let mut to_check: SmallVec<[NodeId; 4]> = SmallVec::new();
        to_check.push(id);
        while let Some(id) = to_check.pop() {
            let Some(record) = self.records.get(&id) else { continue };
            let held = record.node.lookups.load(Ordering::Relaxed) > 0 || !record.children.is_empty();
            if held {
                continue;
            }
            let Some(record) = self.records.remove(&id) else { continue };
            let shown = |key| (key, record.node.symlinkified);
            match record.node.identity() {
                Identity::File(key) if self.files.get(&shown(key)) == Some(&id) => {
                    self.files.remove(&shown(key));
                    self.preserved.remove(&(key.dev, key.ino));
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
                    to_check.push(name.parent);
                }
            }
            freed.push(record);
        }
        self.shrunk |= shrink(&mut self.records);
        shrink(&mut self.files);
        shrink(&mut self.numbers);
        shrink(&mut self.preserved);
        freed
    }
}
