//! The tables of known nodes and names.

pub(crate) mod children;
pub(crate) mod dir_numbers;
pub(crate) mod index;
pub(crate) mod names;
pub(crate) mod slab;

use super::{Identity, Node, ShownFile};
use crate::export::StableId;
use canopy_base::error::{Error, Result};
use canopy_base::hash::{self, HashMap, shrink};
use canopy_base::ids::NodeId;
use canopy_base::path::{FileName, PoolPath};
use children::Children;
use dir_numbers::{DirNumbers, NameHash};
use index::Index;
use names::{Name, Names};
use rustix::fd::AsRawFd;
use slab::{Slab, Slot};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Each time a file has got so many more names, its names are checked.
const MANY_NAMES: usize = 64;

pub(crate) struct Record {
    pub(crate) node: Arc<Node>,
    /// One for a directory, any number for a file.
    pub(crate) names: Names,
}

const _: () = assert!(size_of::<Option<Record>>() == 40);

/// The number of nodes, for those who do not hold the lock.
#[derive(Default)]
pub(crate) struct NodeTally {
    pub(crate) known: AtomicUsize,
    /// How many have come since the start, which wraps around.
    pub(crate) come: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct Table {
    pub(crate) records: Slab<Record>,
    /// Finds records by their id.
    ids: Index,
    /// Finds records by their file.
    files: Index,
    /// The known names in each directory that has some. Each keeps the directory in the table.
    children: HashMap<Slot, Children>,
    /// Inode numbers of known directories. A directory that was renamed keeps its number, and so does everything
    /// below it, though other directories may have the old paths by now.
    numbers: HashMap<u64, NodeId>,
    /// Records of these directories, for the process that serves after this one.
    recorded: Option<DirNumbers>,
    /// Inode numbers that files had before they moved, by their present device and number on the branch.
    pub(crate) preserved: HashMap<(u64, u64), u64>,
    /// The most nodes since memory was last returned to the system.
    peak: usize,
    pub(crate) tally: Arc<NodeTally>,
}

/// What is known.
impl Table {
    pub(crate) fn slot(&self, id: NodeId) -> Option<Slot> {
        if id == NodeId::ROOT {
            return Some(Slot::FIRST);
        }
        self.ids.find(hash::of(&id), |at| self.records.get(at).is_some_and(|record| record.node.id == id))
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<&Record> {
        self.records.get(self.slot(id)?)
    }

    pub(crate) fn at(&self, slot: Slot) -> Option<&Arc<Node>> {
        self.records.get(slot).map(|record| &record.node)
    }

    pub(crate) fn file_slot(&self, shown: ShownFile) -> Option<Slot> {
        self.files.find(hash::of(&shown), |at| self.at(at).is_some_and(|node| node.shown() == Some(shown)))
    }

    pub(crate) fn file(&self, shown: ShownFile) -> Option<&Record> {
        self.records.get(self.file_slot(shown)?)
    }

    /// Returns the slots of some known files, in no order.
    pub(crate) fn files(&self) -> impl Iterator<Item = Slot> {
        self.files.slots()
    }

    pub(crate) fn child_slot(&self, parent: Slot, name: &[u8]) -> Option<Slot> {
        self.children.get(&parent)?.get(hash::of(name), |node| self.has_name(node, parent, name))
    }

    fn has_name(&self, node: Slot, parent: Slot, name: &[u8]) -> bool {
        self.records.get(node).is_some_and(|record| record.names.contains(parent, name))
    }

    pub(crate) fn child(&self, parent: NodeId, name: &[u8]) -> Option<&Arc<Node>> {
        self.at(self.child_slot(self.slot(parent)?, name)?)
    }

    /// Returns the nodes in a directory, once for each of their names there.
    pub(crate) fn children(&self, dir: Slot) -> impl Iterator<Item = Slot> {
        self.children.get(&dir).into_iter().flat_map(Children::nodes)
    }

    /// Returns the known names in a directory, with their nodes.
    pub(crate) fn names_in(&self, dir: Slot) -> impl Iterator<Item = (&[u8], &Arc<Node>)> {
        let records = self.children(dir).filter_map(|node| self.records.get(node));
        // A node with several names in the directory is there as often.
        let mut several: HashSet<NodeId> = HashSet::default();
        records
            .filter(move |record| record.names.as_slice().len() < 2 || several.insert(record.node.id))
            .flat_map(move |record| {
                let here = record.names.as_slice().iter().filter(move |name| name.parent == dir);
                here.map(|name| (name.text(), &record.node))
            })
    }

    /// Returns how many names in a directory are known.
    pub(crate) fn child_count(&self, dir: Slot) -> usize {
        self.children.get(&dir).map_or(0, Children::len)
    }

    pub(crate) fn has_children(&self, dir: Slot) -> bool {
        self.children.contains_key(&dir)
    }

    /// Returns the known names of a node, each with its directory.
    pub(crate) fn all_names(&self, id: NodeId) -> Vec<(NodeId, Box<[u8]>)> {
        let names = self.get(id).map(|record| record.names.as_slice()).unwrap_or_default();
        let known = |name: &Name| Some((self.at(name.parent)?.id, name.text().into()));
        names.iter().filter_map(known).collect()
    }

    pub(crate) fn path(&self, id: NodeId) -> Option<PoolPath> {
        if id == NodeId::ROOT {
            return Some(PoolPath::new());
        }
        self.path_of(self.get(id)?.names.newest()?)
    }

    /// Builds a path, walking up to the root; `None` if an ancestor has lost its name.
    pub(crate) fn path_of(&self, name: &Name) -> Option<PoolPath> {
        let mut parts: SmallVec<[&[u8]; 16]> = SmallVec::new();
        parts.push(name.text());
        let mut above = self.records.get(name.parent)?;
        while above.node.id != NodeId::ROOT {
            let name = above.names.newest()?;
            parts.push(name.text());
            above = self.records.get(name.parent)?;
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

    /// Returns the other node of a file that is, or was, shown as a symlink.
    pub(crate) fn twin(&self, node: &Node) -> Option<&Record> {
        let (key, symlinkified) = node.shown()?;
        self.file((key, !symlinkified))
    }

    /// Returns `ino`, or its replacement while another directory has that number. The replacement is always the same,
    /// so that the number of a directory does not change when it is forgotten and found again. One of 32 bits remains so.
    pub(crate) fn unused_ino(&self, mut ino: u64) -> u64 {
        while self.numbers.contains_key(&ino) {
            let next = ino.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
            ino = if ino >> u32::BITS == 0 { next >> u32::BITS } else { next };
        }
        ino
    }

    /// Returns the number of a directory that the kernel knows from the process before, and that has no node here yet.
    pub(crate) fn waiting_number(&self, id: NodeId) -> Option<u64> {
        self.recorded.as_ref()?.waits(id)
    }

    /// Returns whether the kernel knows a directory from the process before, whether that has a node here or not.
    pub(crate) fn is_left(&self, id: NodeId) -> bool {
        self.recorded.as_ref().is_some_and(|recorded| recorded.is_left(id))
    }

    /// Returns such a directory by its place.
    pub(crate) fn waiting_at(&self, parent: NodeId, name: &[u8]) -> Option<StableId> {
        self.recorded.as_ref()?.waits_at(parent, name)
    }

    /// Returns the place of such a directory.
    pub(crate) fn waiting_place(&self, id: NodeId) -> Option<(NodeId, NameHash)> {
        self.recorded.as_ref()?.place(id)
    }

    /// Returns whether there are such directories.
    pub(crate) fn any_number_waits(&self) -> bool {
        self.recorded.as_ref().is_some_and(DirNumbers::any_waits)
    }

    /// Returns the number of entries of each table.
    pub(crate) fn sizes(&self) -> [(&'static str, usize); 5] {
        let names = self.records.iter().map(|(_, record)| record.names.as_slice().len()).sum();
        [
            ("nodes", self.records.len()),
            ("names", names),
            ("files", self.files.len()),
            ("numbers", self.numbers.len()),
            ("kept numbers", self.preserved.len()),
        ]
    }
}

/// Changes.
impl Table {
    /// Adds a node without a name. A file can be found by its identity from now on.
    pub(crate) fn insert_nameless(&mut self, node: &Arc<Node>) -> Slot {
        let slot = self.records.insert(Record { node: node.clone(), names: Names::None });
        self.peak = self.peak.max(self.records.len());
        self.tally.known.store(self.records.len(), Ordering::Relaxed);
        self.tally.come.fetch_add(1, Ordering::Relaxed);
        let records = &self.records;
        let id = |at| records.get(at).map_or(0, |record| hash::of(&record.node.id));
        self.ids.insert(hash::of(&node.id), slot, id);
        slot
    }

    /// Makes a file lead to a node.
    pub(crate) fn insert_file(&mut self, slot: Slot) {
        let Some(shown) = self.at(slot).and_then(|node| node.shown()) else { return };
        self.remove_file(shown);
        let records = &self.records;
        self.files.insert(hash::of(&shown), slot, |at| shown_hash(records, at));
    }

    /// Makes a file lead to no node.
    pub(crate) fn remove_file(&mut self, shown: ShownFile) {
        let records = &self.records;
        let is = |at| records.get(at).is_some_and(|record: &Record| record.node.shown() == Some(shown));
        self.files.remove(hash::of(&shown), is, |at| shown_hash(records, at));
    }

    /// As `remove_file`, if the file leads to this node. Returns whether it did.
    pub(crate) fn remove_file_of(&mut self, slot: Slot) -> bool {
        let Some(shown) = self.at(slot).and_then(|node| node.shown()) else { return false };
        let records = &self.records;
        self.files.remove(hash::of(&shown), |at| at == slot, |at| shown_hash(records, at)).is_some()
    }

    /// As `add_name`, for a new node.
    pub(crate) fn insert(
        &mut self,
        parent: NodeId,
        name: &[u8],
        node: &Arc<Node>,
    ) -> Result<(Slot, Vec<Record>)> {
        let parent = self.slot(parent).ok_or(Error::Stale)?;
        let slot = self.insert_nameless(node);
        Ok((slot, self.add_name(slot, parent, name)))
    }

    /// Gives a node a name, taking it from whichever node had it. Returns what that frees. Both slots must be in use.
    pub(crate) fn add_name(&mut self, slot: Slot, parent: Slot, name: &[u8]) -> Vec<Record> {
        let previous = self.detach(parent, name);
        if let (Some(previous), Some(recorded)) =
            (previous.and_then(|at| self.records.get(at)), &mut self.recorded)
        {
            recorded.set_nowhere(previous.node.id);
        }
        let Some(record) = self.records.get_mut(slot) else { return Vec::new() };
        record.names.push(Name::new(parent, name));
        let dir = record.node.is_dir().then_some(record.node.id);
        if record.names.as_slice().len() % MANY_NAMES == 0 {
            record.node.has_doubtful_names.store(true, Ordering::Relaxed);
        }
        // The file can be found by a name again (link(2) of an open file without a name).
        let orphan = record.node.take_orphan_if(|_| true);
        self.children.entry(parent).or_default().insert(hash::of(name), slot);
        dir.into_iter().for_each(|dir| self.note_place(dir, parent, name));
        // No record tells of its descriptor any more.
        drop(orphan);
        // If the kernel holds the previous node or names below it, it stays until those are forgotten.
        previous.map(|previous| self.release(previous)).unwrap_or_default()
    }

    /// As `add_name`, if the directory is known.
    pub(crate) fn name_again(&mut self, slot: Slot, (parent, name): (NodeId, &[u8])) -> Vec<Record> {
        self.slot(parent).map(|parent| self.add_name(slot, parent, name)).unwrap_or_default()
    }

    /// Takes a name from the node that has it, if any. The node stays in the table.
    pub(crate) fn detach(&mut self, parent: Slot, name: &[u8]) -> Option<Slot> {
        let records = &self.records;
        let has = |node| records.get(node).is_some_and(|record: &Record| record.names.contains(parent, name));
        let children = self.children.get_mut(&parent)?;
        let slot = children.remove(hash::of(name), has)?;
        if children.is_empty() {
            self.children.remove(&parent);
            shrink(&mut self.children);
        }
        self.records.get_mut(slot)?.names.remove(parent, name);
        Some(slot)
    }

    /// As `release`, for a node that has lost a name for good and the directory that has lost the child.
    pub(crate) fn removed(&mut self, slot: Slot, parent: Slot) -> Vec<Record> {
        // The next directory of that name may have the same number as this one while some process still uses this
        // one. It must not depend on when this one is forgotten.
        self.release_ino(slot);
        let mut freed = self.release(slot);
        if freed.is_empty() {
            self.note_removed(slot);
        }
        freed.extend(self.release(parent));
        freed
    }

    /// Takes a name that is gone from the node that has it. Returns what that frees.
    pub(crate) fn name_removed(&mut self, parent: NodeId, name: &[u8]) -> Vec<Record> {
        self.left_renamed((parent, name), None);
        let dir = self.slot(parent);
        let had = dir.and_then(|dir| Some((self.detach(dir, name)?, dir)));
        had.map(|(slot, dir)| self.removed(slot, dir)).unwrap_or_default()
    }

    /// Notes where a directory is.
    fn note_place(&mut self, id: NodeId, parent: Slot, name: &[u8]) {
        if let Some(recorded) = &mut self.recorded
            && let Some(above) = self.records.get(parent)
        {
            recorded.set_place(id, above.node.id, name);
        }
    }

    /// Notes a directory that has no name any more, and that the kernel still uses.
    fn note_removed(&mut self, slot: Slot) {
        let Some(recorded) = &mut self.recorded else { return };
        let Some(node) = self.records.get(slot).map(|record| &record.node).filter(|node| node.is_dir())
        else {
            return;
        };
        match node.orphan() {
            Some(orphan) => {
                recorded.set_removed(node.id, orphan.fd.as_raw_fd(), orphan.branch.seed.number());
            }
            None => drop(recorded.remove(node.id)),
        }
    }

    fn release_ino(&mut self, slot: Slot) {
        let Some(node) = self.at(slot) else { return };
        if let (id, Identity::Directory { ino }) = (node.id, node.identity()) {
            self.release_number(ino, id);
        }
    }

    fn release_number(&mut self, ino: u64, id: NodeId) {
        if self.numbers.get(&ino) == Some(&id) {
            self.numbers.remove(&ino);
        }
    }

    /// Notes the inode number of a directory that gets a node. To be called before the kernel learns of it.
    pub(crate) fn note_number(&mut self, ino: u64, id: NodeId) {
        self.numbers.insert(ino, id);
        if id == NodeId::ROOT || self.recorded.is_none() {
            return;
        }
        let Some(record) = self.get(id) else { return };
        let stable = StableId { id, generation: record.node.generation };
        let place = record.names.newest().map(|name| (name.parent, FileName::from_slice(name.text())));
        if let Some(recorded) = &mut self.recorded {
            recorded.take(id);
            recorded.set(stable, ino);
        }
        if let Some((parent, name)) = place {
            self.note_place(id, parent, &name);
        }
    }

    /// Records the inode numbers of directories there from now on, and keeps those that are recorded for the directories
    /// that the kernel knows from the process before. No directory is known here yet.
    pub(crate) fn adopt_numbers(&mut self, recorded: DirNumbers) {
        for (id, ino) in recorded.waiting() {
            self.numbers.entry(ino).or_insert(id);
        }
        self.recorded = Some(recorded);
    }

    /// Returns the directories that the kernel knows from the process before, and that have no node here yet, or were removed.
    pub(crate) fn left_dirs(&self) -> Vec<NodeId> {
        let removed =
            self.records.iter().map(|(_, record)| record.node.id).filter(|id| self.is_removed_dir(*id));
        self.recorded.iter().flat_map(DirNumbers::waiting).map(|(id, _)| id).chain(removed).collect()
    }

    /// Returns whether a directory was removed, and the kernel may still use it.
    pub(crate) fn is_removed_dir(&self, id: NodeId) -> bool {
        let removed = |record: &Record| record.node.is_dir() && record.names.newest().is_none();
        id != NodeId::ROOT && self.get(id).is_some_and(removed)
    }

    /// Notes that a name of what may have no node here was renamed, or removed.
    pub(crate) fn left_renamed(&mut self, from: (NodeId, &[u8]), to: Option<(NodeId, &[u8])>) {
        if let Some(recorded) = &mut self.recorded {
            recorded.renamed(from, to);
        }
    }

    /// Notes that two names were exchanged, of what may have no node here.
    pub(crate) fn left_exchanged(&mut self, one: (NodeId, &[u8]), other: (NodeId, &[u8])) {
        if let Some(recorded) = &mut self.recorded {
            recorded.exchanged(one, other);
        }
    }

    /// Adds a directory that the process before has removed, and that the kernel still uses. Without one, its record is void.
    pub(crate) fn adopt_removed(&mut self, id: NodeId, node: Option<Arc<Node>>) {
        match node {
            Some(node) => drop(self.insert_nameless(&node)),
            None => self.forget_number(id),
        }
    }

    /// Forgets all numbers, because they are computed in another way from now on.
    pub(crate) fn renumber(&mut self, root: u64) {
        self.numbers.clear();
        if let Some(recorded) = &mut self.recorded {
            recorded.clear();
        }
        for (_, record) in self.records.iter().filter(|(_, record)| record.node.is_dir()) {
            record.node.set_number(if record.node.id == NodeId::ROOT { root } else { 0 });
        }
        self.note_number(root, NodeId::ROOT);
    }

    /// Keeps no number any more for a directory that has no node here, because the kernel has forgotten it.
    pub(crate) fn forget_number(&mut self, id: NodeId) {
        if let Some(ino) = self.recorded.as_mut().and_then(|recorded| recorded.remove(id)) {
            self.release_number(ino, id);
        }
    }

    /// Drops a node if nothing holds it, and then each ancestor that nothing else holds.
    pub(crate) fn release(&mut self, slot: Slot) -> Vec<Record> {
        let mut freed = Vec::new();
        let mut to_check: SmallVec<[Slot; 4]> = SmallVec::new();
        to_check.push(slot);
        while let Some(slot) = to_check.pop() {
            let Some(node) = self.at(slot) else { continue };
            if node.lookups.load(Ordering::Relaxed) > 0 || self.has_children(slot) {
                continue;
            }
            let key = node.key();
            let dir = node.is_dir().then_some(node.id);
            self.release_ino(slot);
            if let (Some(dir), Some(recorded)) = (dir, &mut self.recorded) {
                recorded.remove(dir);
            }
            if self.remove_file_of(slot)
                && let Some(key) = key
            {
                self.preserved.remove(&(key.dev, key.ino));
            }
            while let Some(name) = self.records.get(slot).and_then(|record| record.names.newest()) {
                let (parent, text) = (name.parent, FileName::from_slice(name.text()));
                self.detach(parent, &text);
                to_check.push(parent);
            }
            let Some(id) = self.at(slot).map(|node| node.id) else { continue };
            let records = &self.records;
            let rehash = |at| records.get(at).map_or(0, |record: &Record| hash::of(&record.node.id));
            self.ids.remove(hash::of(&id), |at| at == slot, rehash);
            freed.extend(self.records.remove(slot));
        }
        self.tally.known.store(self.records.len(), Ordering::Relaxed);
        shrink(&mut self.numbers);
        shrink(&mut self.preserved);
        freed
    }

    /// Returns true if the memory of so many nodes was freed that it should be returned to the system.
    pub(crate) fn has_shrunk(&mut self) -> bool {
        const FEW: usize = 4096;
        let shrunk = self.peak > FEW && self.records.len() * 4 < self.peak;
        if shrunk {
            self.peak = self.records.len();
        }
        shrunk
    }
}

fn shown_hash(records: &Slab<Record>, at: Slot) -> u64 {
    records.get(at).and_then(|record| record.node.shown()).map_or(0, |shown| hash::of(&shown))
}
