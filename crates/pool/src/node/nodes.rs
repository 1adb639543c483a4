//! The node table, by which the kernel's references are counted.

use super::surplus::Surplus;
use super::table::dir_numbers::{DirNumbers, NameHash, Removed};
use super::table::{NodeTally, Record, Table};
use super::{Identity, Node, Orphan, ShownFile};
use crate::export::StableId;
use crate::paths::{Changing, Scope, Tree};
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::RwLock;
use canopy_base::path::{FileName, PoolPath};
use canopy_branch::branch::Branch;
use canopy_branch::fs::stat::FileKey;
use smallvec::smallvec;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) struct Nodes {
    pub(crate) table: RwLock<Table, rank::NodeTable>,
    pub(crate) tally: Arc<NodeTally>,
    pub(crate) surplus: Surplus,
    /// The id of the next node without a stable id.
    next: AtomicU64,
    /// The generation of such nodes, which tells them from those of an earlier run.
    run: u32,
    /// Some file that moved shows the inode number that it had before.
    any_preserved: AtomicBool,
}

impl Nodes {
    pub(crate) fn new(root_ino: u64) -> Self {
        let mut table = Table::default();
        let stable = StableId { id: NodeId::ROOT, generation: 0 };
        // The kernel does not forget the root: its one reference stays.
        table.insert_nameless(&Arc::new(Node::new(stable, Identity::Directory { ino: root_ino }, false)));
        table.note_number(root_ino, NodeId::ROOT);
        let next = AtomicU64::new(NodeId::ROOT.0 + 1);
        let run = RandomState::new().hash_one(()) as u32;
        let (tally, surplus) = (Arc::clone(&table.tally), Surplus::default());
        Nodes { table: RwLock::new(table), tally, surplus, next, run, any_preserved: AtomicBool::new(false) }
    }

    pub(crate) fn get(&self, id: NodeId) -> Result<Arc<Node>> {
        self.table.read().get(id).map(|record| record.node.clone()).ok_or(Error::Stale)
    }

    /// Returns a node and its newest path under one lock. `Stale` if the node is unknown; no path if it has no name.
    pub(crate) fn locate(&self, id: NodeId) -> Result<(Arc<Node>, Option<PoolPath>)> {
        let table = self.table.read();
        let record = table.get(id).ok_or(Error::Stale)?;
        let path = match record.names.newest() {
            _ if id == NodeId::ROOT => Some(PoolPath::new()),
            Some(name) => table.path_of(name),
            None => None,
        };
        Ok((record.node.clone(), path))
    }

    /// Returns the path of a directory in which names will be used.
    pub(crate) fn dir_path(&self, id: NodeId) -> Result<PoolPath> {
        self.dir(id).map(|(_, path)| path)
    }

    /// Returns a directory in which names will be used, and its path.
    pub(crate) fn dir(&self, id: NodeId) -> Result<(Arc<Node>, PoolPath)> {
        let (node, path) = self.locate(id)?;
        if !node.is_dir() {
            return Err(Error::NotDirectory);
        }
        // A removed directory that some process still uses.
        Ok((node, path.ok_or(Error::Absent)?))
    }

    /// Returns the directory and the name by which a node was last found.
    pub(crate) fn newest_name(&self, id: NodeId) -> Option<(Arc<Node>, FileName)> {
        let table = self.table.read();
        let name = table.get(id)?.names.newest()?;
        Some((table.at(name.parent)?.clone(), FileName::from_slice(name.text())))
    }

    /// Returns the known names of a node, as path of the directory and name, newest first. One at a time: a file may
    /// have tens of thousands, and the first is nearly always right. Names belong to the file: if it is now shown as
    /// a symlink or no longer is, its other node has the names, and they count for this one.
    pub(crate) fn names(&self, id: NodeId) -> impl Iterator<Item = (PoolPath, Box<[u8]>)> + '_ {
        self.names_in(id).map(|(_, dir, name)| (dir, name))
    }

    /// As `names`, with the node of each directory.
    pub(crate) fn names_in(&self, id: NodeId) -> impl Iterator<Item = (Arc<Node>, PoolPath, Box<[u8]>)> + '_ {
        let mut seen = 0;
        std::iter::from_fn(move || {
            let table = self.table.read();
            let mut record = table.get(id)?;
            if record.names.newest().is_none() {
                record = table.twin(&record.node)?;
            }
            loop {
                let name = record.names.as_slice().iter().rev().nth(seen)?;
                seen += 1;
                // A parent directory may have lost its own name.
                if let Some(parent) = table.at(name.parent)
                    && let Some(dir) = table.path(parent.id)
                {
                    return Some((parent.clone(), dir, name.text().into()));
                }
            }
        })
    }

    /// Returns true if `names` would return a name whose directory may have lost its own.
    pub(crate) fn has_name(&self, id: NodeId) -> bool {
        let table = self.table.read();
        let named = |record: &Record| record.names.newest().is_some();
        table.get(id).is_some_and(|record| named(record) || table.twin(&record.node).is_some_and(named))
    }

    /// Returns the known names of a node, as node of the directory and name.
    pub(crate) fn known(&self, id: NodeId) -> Vec<(NodeId, Box<[u8]>)> {
        self.table.read().all_names(id)
    }

    /// Returns what changes when another file takes the place of a node's, which has `least` names or more.
    pub(crate) fn file_scope(&self, id: NodeId, least: usize) -> Scope {
        // So that a file with tens of thousands of names does not cost a list of them.
        const MOST: usize = 64;
        let names = self.known(id);
        // A name that is not known may be looked up.
        if names.len() > MOST || names.len() < least {
            return smallvec![Changing::Everything];
        }
        let names = names.iter().map(|(dir, name)| Changing::name(*dir, name));
        names.chain([Changing::Node(id)]).collect()
    }

    pub(crate) fn child(&self, parent: NodeId, name: &[u8]) -> Option<Arc<Node>> {
        self.table.read().child(parent, name).cloned()
    }

    /// Returns the node of a file, if it is known.
    pub(crate) fn file(&self, key: FileKey) -> Option<Arc<Node>> {
        self.table.read().file((key, false)).map(|record| Arc::clone(&record.node))
    }

    /// Returns the known names in a directory.
    pub(crate) fn children(&self, id: NodeId) -> Vec<Vec<u8>> {
        let table = self.table.read();
        let dir = table.slot(id);
        dir.into_iter().flat_map(|dir| table.names_in(dir)).map(|(name, _)| name.to_vec()).collect()
    }

    pub(crate) fn parent(&self, id: NodeId) -> Result<NodeId> {
        let table = self.table.read();
        let record = table.get(id).ok_or(Error::Stale)?;
        let name = record.names.newest().ok_or(Error::Absent)?;
        table.at(name.parent).map(|parent| parent.id).ok_or(Error::Absent)
    }

    /// Hands a reference to the kernel for a directory that was found under a name. `ino` is its inode number by that
    /// name. `stable` is called if the directory is not known yet.
    pub(crate) fn give_out_dir(
        &self,
        parent: NodeId,
        name: &[u8],
        ino: u64,
        stable: impl FnOnce() -> Option<StableId>,
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
        let stable = stable();
        // Which the kernel was told by the process before.
        let kept = stable.and_then(|stable| table.waiting_number(stable.id));
        let ino = kept.unwrap_or_else(|| table.unused_ino(ino));
        let node = self.new_node(&table, Identity::Directory { ino }, false, stable);
        let (_, replaced) = table.insert(parent, name, &node)?;
        table.note_number(ino, node.id);
        drop(table);
        drop(replaced);
        Ok(node)
    }

    /// Returns the inode number that a lookup of a directory would show. `number` is called if the directory has no node here,
    /// and `stable` if it may be known from the process before.
    pub(crate) fn dir_ino(
        &self,
        parent: NodeId,
        name: &[u8],
        number: impl FnOnce() -> u64,
        stable: impl FnOnce() -> Option<StableId>,
    ) -> u64 {
        let (any_waits, here) = {
            let table = self.table.read();
            match table.child(parent, name).map(|node| node.identity()) {
                Some(Identity::Directory { ino }) if ino != 0 => return ino,
                _ => (table.any_number_waits(), table.waiting_at(parent, name)),
            }
        };
        let kept = here.or_else(|| if any_waits { stable() } else { None });
        let kept = kept.and_then(|stable| self.table.read().waiting_number(stable.id));
        kept.unwrap_or_else(|| {
            let number = number();
            self.table.read().unused_ino(number)
        })
    }

    /// Has all known directories get new numbers.
    pub(crate) fn renumber(&self, root: u64) {
        self.table.write().renumber(root);
    }

    /// Gives a known directory a new number, unless it has got one. Returns what it has.
    pub(crate) fn number_again(&self, node: &Node, number: u64) -> u64 {
        let mut table = self.table.write();
        if let Identity::Directory { ino } = node.identity()
            && ino != 0
        {
            return ino;
        }
        let ino = table.unused_ino(number);
        node.set_number(ino);
        // A directory that has lost its name has none that others must not have.
        if table.get(node.id).is_some_and(|record| record.names.newest().is_some()) {
            table.note_number(ino, node.id);
        }
        ino
    }

    /// Records directories there from now on, and takes over those that are recorded. Returns how many, and those that were
    /// removed before.
    pub(crate) fn adopt_numbers(&self, mut recorded: DirNumbers) -> (usize, Vec<Removed>) {
        let (count, removed) = (recorded.waiting().count(), recorded.take_removed());
        self.table.write().adopt_numbers(recorded);
        (count, removed)
    }

    /// Takes over a directory that was removed before, or not.
    pub(crate) fn adopt_removed(&self, removed: &Removed, orphan: Option<Orphan>) {
        let node = orphan.map(|orphan| {
            let node = Node::new(removed.stable, Identity::Directory { ino: removed.number }, false);
            node.set_orphan(Arc::new(orphan));
            Arc::new(node)
        });
        self.table.write().adopt_removed(removed.stable.id, node);
    }

    /// Records that the kernel does not know a directory any more that it knew from the process before. It may know one that has
    /// got a node here, and a name, since.
    pub(crate) fn forget_left(&self, id: NodeId) {
        let freed = {
            let mut table = self.table.write();
            match table.slot(id).filter(|_| table.is_removed_dir(id)) {
                Some(slot) => {
                    table.at(slot).into_iter().for_each(|node| node.lookups.store(0, Ordering::Relaxed));
                    table.release(slot)
                }
                None if table.waiting_number(id).is_some() => {
                    table.forget_number(id);
                    Vec::new()
                }
                None => Vec::new(),
            }
        };
        drop(freed);
    }

    /// Returns the directory that the kernel knows under this name from the process before, if it has no node here yet.
    pub(crate) fn left_at(&self, parent: NodeId, name: &[u8]) -> Option<StableId> {
        self.table.read().waiting_at(parent, name)
    }

    /// Returns whether the kernel knows a node, from the process before or from this one.
    pub(crate) fn is_known(&self, id: NodeId) -> bool {
        let table = self.table.read();
        table.slot(id).is_some() || table.waiting_number(id).is_some()
    }

    /// Returns where such a directory is.
    pub(crate) fn left_place(&self, id: NodeId) -> Option<(NodeId, NameHash)> {
        self.table.read().waiting_place(id)
    }

    /// Returns the inode number that a file had before it moved, if it has moved; by where it is now.
    pub(crate) fn preserved_ino(&self, dev: u64, ino: u64) -> Option<u64> {
        if self.any_preserved.load(Ordering::Relaxed) {
            self.table.read().preserved.get(&(dev, ino)).copied()
        } else {
            None
        }
    }

    /// Hands a reference to the kernel for a file that was found under a name on a branch.
    pub(crate) fn hand_out_file(
        &self,
        parent: NodeId,
        name: &[u8],
        branch: &Branch,
        key: FileKey,
        symlinkified: bool,
    ) -> Result<Arc<Node>> {
        let shown = (key, symlinkified);
        {
            let table = self.table.read();
            if let Some(node) = table.child(parent, name).filter(|n| n.shown() == Some(shown)) {
                node.lookups.fetch_add(1, Ordering::Relaxed);
                return Ok(node.clone());
            }
        }
        let mut freed = Vec::new();
        let node = self.file_under(&mut self.table.write(), parent, name, Some(branch), shown, &mut freed);
        // Outside the lock, because dropping a node closes descriptors.
        drop(freed);
        node
    }

    /// Returns the node of a file that was found under a name, with one more reference. Adds to `freed` what the name
    /// led to before, if nothing else holds it.
    pub(crate) fn file_under(
        &self,
        table: &mut Table,
        parent: NodeId,
        name: &[u8],
        branch: Option<&Branch>,
        shown: ShownFile,
        freed: &mut Vec<Record>,
    ) -> Result<Arc<Node>> {
        if let Some(slot) = table.file_slot(shown)
            && let Some(node) = table.at(slot).cloned()
        {
            let dir = table.slot(parent).ok_or(Error::Stale)?;
            if table.child_slot(dir, name) != Some(slot) {
                freed.extend(table.add_name(slot, dir, name));
            }
            node.lookups.fetch_add(1, Ordering::Relaxed);
            return Ok(node);
        }
        let node = self.new_file(table, branch, shown);
        let (slot, replaced) = table.insert(parent, name, &node)?;
        freed.extend(replaced);
        table.insert_file(slot);
        Ok(node)
    }

    /// As `hand_out_file`, for a file on a branch that is missing.
    pub(crate) fn hand_out_remembered(&self, parent: NodeId, name: &[u8], key: FileKey) -> Result<Arc<Node>> {
        let mut freed = Vec::new();
        let node = {
            let mut table = self.table.write();
            self.file_under(&mut table, parent, name, None, (key, false), &mut freed)
        };
        drop(freed);
        node
    }

    /// Hands a reference to the kernel for a file that never had a name (`O_TMPFILE`).
    pub(crate) fn hand_out_nameless(&self, branch: &Branch, key: FileKey) -> Arc<Node> {
        let mut table = self.table.write();
        let node = self.new_file(&table, Some(branch), (key, false));
        let slot = table.insert_nameless(&node);
        table.insert_file(slot);
        node
    }

    /// Hands a reference to the kernel for a file that it had forgotten, and that was found by its id.
    ///
    /// Errors: `ESTALE` if the file is known as another node.
    pub(crate) fn hand_out_found(&self, stable: StableId, key: FileKey) -> Result<Arc<Node>> {
        let mut table = self.table.write();
        if let Some(record) = table.get(stable.id) {
            // Another thread has just found it.
            let same = record.node.shown() == Some((key, false));
            same.then(|| record.node.lookups.fetch_add(1, Ordering::Relaxed)).ok_or(Error::Stale)?;
            return Ok(record.node.clone());
        }
        if table.file((key, false)).is_some() {
            return Err(Error::Stale);
        }
        let node = Arc::new(Node::new(stable, Identity::File(key), false));
        let slot = table.insert_nameless(&node);
        table.insert_file(slot);
        Ok(node)
    }

    /// Returns the node of a file that another process had open, which the kernel knows by this id. It has no name until
    /// one is looked up. `number`: the inode number that clients know of a file that has moved, or 0.
    pub(crate) fn adopt_open(&self, stable: StableId, key: FileKey, number: u64) -> Arc<Node> {
        let mut table = self.table.write();
        if let Some(record) = table.get(stable.id) {
            return record.node.clone();
        }
        let node = Arc::new(Node::new(stable, Identity::File(key), false));
        let slot = table.insert_nameless(&node);
        // The names of a file may lead to another node than the one that is open.
        if table.file((key, false)).is_none() {
            table.insert_file(slot);
        }
        if number != 0 {
            node.rare().number.store(number, Ordering::Relaxed);
            table.preserved.insert((key.dev, key.ino), number);
            self.any_preserved.store(true, Ordering::Relaxed);
        }
        node
    }

    /// Counts a reference that the kernel has to a node from another process, unless one is counted; returns whether the node
    /// is known.
    pub(crate) fn hold(&self, id: NodeId) -> bool {
        let table = self.table.read();
        table.get(id).map(|record| record.node.lookups.fetch_max(1, Ordering::Relaxed)).is_some()
    }

    /// Takes back a reference, unless it is the only one.
    pub(crate) fn give_back_but_one(&self, id: NodeId) {
        if let Some(record) = self.table.read().get(id) {
            let decrease = |held: u64| (held > 1).then(|| held - 1);
            #[allow(deprecated, reason = "Rust 1.88 lacks try_update, its new name")]
            let _ = record.node.lookups.fetch_update(Ordering::Relaxed, Ordering::Relaxed, decrease);
        }
    }

    /// As `give_back_but_one`, if it is a directory that the kernel knows from the process before. Returns whether it is.
    pub(crate) fn keeps_left(&self, id: NodeId) -> bool {
        let left = self.table.read().is_left(id);
        if left {
            self.give_back_but_one(id);
        }
        left
    }

    /// Makes the ids of all further nodes without stable ids larger than this one.
    pub(crate) fn skip_to(&self, number: u64) {
        self.next.fetch_max(number, Ordering::Relaxed);
    }

    /// Hands one more reference to the kernel for a node that it knows already.
    pub(crate) fn hand_out_again(&self, id: NodeId) -> Result<Arc<Node>> {
        let table = self.table.read();
        let node = &table.get(id).ok_or(Error::Stale)?.node;
        // Under the lock: `forget` checks the count once more when it seems to be zero.
        node.lookups.fetch_add(1, Ordering::Relaxed);
        Ok(node.clone())
    }

    /// Takes back `count` references from the kernel, or all if it has fewer. Calls `gone` for each node that is
    /// freed, without a lock held.
    pub(crate) fn forget(&self, id: NodeId, count: u64, gone: impl Fn(&Node)) {
        if id == NodeId::ROOT {
            return;
        }
        let (goes, cached_dir) = {
            let table = self.table.read();
            let Some(record) = table.get(id) else {
                let waits = table.waiting_number(id).is_some();
                drop(table);
                if waits {
                    self.table.write().forget_number(id);
                }
                return;
            };
            let decrease = |held: u64| Some(held.saturating_sub(count));
            #[allow(deprecated, reason = "Rust 1.88 lacks try_update, its new name")]
            let before = record.node.lookups.fetch_update(Ordering::Relaxed, Ordering::Relaxed, decrease);
            let forgotten = before.is_ok_and(|before| before <= count);
            // The node may stay for its children, but its directory is not used now.
            let dir = record.node.dir_if_any().filter(|_| forgotten);
            (forgotten, dir.and_then(|dir| dir.cached.lock().take()))
        };
        drop(cached_dir);
        if goes {
            // Freed outside the lock, because dropping a node closes descriptors.
            let (freed, shrunk) = {
                let mut table = self.table.write();
                let freed = table.slot(id).map(|slot| table.release(slot)).unwrap_or_default();
                (freed, table.has_shrunk())
            };
            freed.iter().for_each(|record| gone(&record.node));
            drop(freed);
            if shrunk {
                canopy_sys::memory::trim();
            }
        }
    }

    /// Records that a name is gone from every branch.
    pub(crate) fn name_removed(&self, parent: NodeId, name: &[u8]) {
        let freed = self.table.write().name_removed(parent, name);
        drop(freed);
    }

    /// Records that no file has this identity any more, because its last link is gone. A later file that gets its
    /// inode number must get another node.
    pub(crate) fn file_gone(&self, key: FileKey) {
        let mut table = self.table.write();
        table.remove_file((key, false));
        table.remove_file((key, true));
        table.preserved.remove(&(key.dev, key.ino));
    }

    /// Records that the node's file is now another one, which keeps the inode number that clients know. The caller
    /// has claimed it, or nothing else knows the new file.
    pub(crate) fn moved(&self, node: &Node, to: FileKey, number: u64) {
        let mut table = self.table.write();
        let slot = table.slot(node.id);
        if let Some(from) = node.key() {
            table.preserved.remove(&(from.dev, from.ino));
            slot.into_iter().for_each(|slot| {
                table.remove_file_of(slot);
            });
        }
        if number != 0 {
            table.preserved.insert((to.dev, to.ino), number);
            self.any_preserved.store(true, Ordering::Relaxed);
        }
        node.set_key(to);
        slot.into_iter().for_each(|slot| table.insert_file(slot));
        node.rare().number.store(number, Ordering::Relaxed);
        node.rare().moves.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the inode number that clients know of a node's file, which another copy of the file may show one day.
    pub(crate) fn number_known(&self, node: &Node, number: u64) {
        let Some(key) = node.key() else { return };
        self.table.write().preserved.insert((key.dev, key.ino), number);
        self.any_preserved.store(true, Ordering::Relaxed);
        node.rare().number.store(number, Ordering::Relaxed);
    }

    /// Detaches a node's names, because the kernel still uses the file that the node has open. The next lookup of a
    /// name makes a new node for the file. This node keeps the inode number that clients know; the new one shows it too
    /// if the number `stays` with the file. Returns the names. The caller has claimed it.
    pub(crate) fn names_detached(
        &self,
        node: &Node,
        key: FileKey,
        number: u64,
        stays: bool,
    ) -> Vec<(NodeId, Box<[u8]>)> {
        let mut freed = Vec::new();
        // At one moment: a lookup of another name of the file, which nobody has claimed, would add it to this node.
        let mut table = self.table.write();
        let names = table.all_names(node.id);
        if let Some(slot) = table.slot(node.id) {
            // Of a node whose names were detached before, the file leads to another one already.
            table.remove_file_of(slot);
        }
        for (parent, name) in &names {
            freed.extend(table.name_removed(*parent, name));
        }
        if stays {
            table.preserved.insert((key.dev, key.ino), number);
            self.any_preserved.store(true, Ordering::Relaxed);
        }
        node.rare().number.store(number, Ordering::Relaxed);
        node.rare().moves.fetch_add(1, Ordering::Relaxed);
        node.rare().superseded.store(true, Ordering::Relaxed);
        drop(table);
        // Outside the lock, because dropping a node closes descriptors.
        drop(freed);
        names
    }

    /// Records that a name was renamed, replacing whatever had the new name.
    pub(crate) fn renamed(&self, from: (NodeId, &[u8]), to: (NodeId, &[u8])) {
        let freed = {
            let mut table = self.table.write();
            table.left_renamed(from, Some(to));
            let mut freed = Vec::new();
            let (old, new) = (table.slot(from.0), table.slot(to.0));
            if let Some(new) = new
                && let Some(victim) = table.detach(new, to.1)
            {
                freed.extend(table.removed(victim, new));
            }
            if let Some(old) = old
                && let Some(slot) = table.detach(old, from.1)
            {
                freed.extend(table.name_again(slot, to));
                freed.extend(table.release(slot));
                freed.extend(table.release(old));
            }
            freed
        };
        drop(freed);
    }

    /// Records that two names were exchanged.
    pub(crate) fn exchanged(&self, one: (NodeId, &[u8]), other: (NodeId, &[u8])) {
        let mut table = self.table.write();
        let dirs = [one, other].map(|(dir, _)| table.slot(dir));
        let [a, b] = [(dirs[0], one.1), (dirs[1], other.1)].map(|(dir, name)| table.detach(dir?, name));
        table.left_exchanged(one, other);
        let mut freed = Vec::new();
        for (slot, new_place) in [(a, other), (b, one)] {
            if let Some(slot) = slot {
                freed.extend(table.name_again(slot, new_place));
            }
        }
        // Neither directory has lost a child, unless one of the names was not known.
        freed.extend(dirs.into_iter().flatten().flat_map(|dir| table.release(dir)));
        drop(table);
        drop(freed);
    }

    pub(crate) fn new_node(
        &self,
        table: &Table,
        identity: Identity,
        symlinkified: bool,
        stable: Option<StableId>,
    ) -> Arc<Node> {
        let consecutive = || {
            let id = NodeId(self.next.fetch_add(1, Ordering::Relaxed));
            StableId { id, generation: self.run }
        };
        let free = stable.filter(|stable| table.slot(stable.id).is_none());
        Arc::new(Node::new(free.unwrap_or_else(consecutive), identity, symlinkified))
    }

    pub(crate) fn new_file(
        &self,
        table: &Table,
        branch: Option<&Branch>,
        (key, symlinkified): ShownFile,
    ) -> Arc<Node> {
        // A file and the symlink that it is shown as are two nodes; only one can have the id by which the file is
        // found.
        let stable = branch.filter(|_| !symlinkified).and_then(|branch| StableId::of(branch, key));
        self.new_node(table, Identity::File(key), symlinkified, stable)
    }

    /// Returns the number of entries of each table.
    pub(crate) fn sizes(&self) -> [(&'static str, usize); 5] {
        self.table.read().sizes()
    }

    /// Returns some of the known files.
    pub(crate) fn some_files(&self, count: usize) -> Vec<NodeId> {
        let table = self.table.read();
        table.files().filter_map(|slot| Some(table.at(slot)?.id)).take(count).collect()
    }

    /// Returns the number of known nodes.
    pub(crate) fn len(&self) -> usize {
        self.table.read().records.len()
    }
}

/// Uses the newest name of each directory on the way up.
impl Tree for Nodes {
    fn is_within(&self, node: NodeId, dir: NodeId) -> bool {
        let table = self.table.read();
        let Some(record) = table.get(node) else { return false };
        if node == dir || dir == NodeId::ROOT {
            return true;
        }
        let twin = table.twin(&record.node);
        let names = [Some(record), twin].into_iter().flatten().flat_map(|record| record.names.as_slice());
        names.into_iter().any(|name| {
            let mut above = table.records.get(name.parent);
            while let Some(at) = above {
                if at.node.id == dir {
                    return true;
                }
                above = at.names.newest().and_then(|name| table.records.get(name.parent));
            }
            false
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use canopy_branch::branch::list::{BranchSpec, Mode};
    use canopy_branch::branch::{Branch, Branches};

    /// Returns a branch on which files have no stable ids.
    pub(crate) fn branch() -> Arc<Branch> {
        let spec = BranchSpec { path: "/proc".into(), mode: Mode::Ro, min_free: None };
        Branches::open(&[spec].into_iter().collect()).unwrap()[0].clone()
    }

    /// However many files are known, and whatever has been forgotten, a further name of a file leads to its node.
    #[test]
    fn all_names_of_a_file_lead_to_one_node() {
        let (nodes, branch) = (Nodes::new(1), branch());
        let key = |ino| FileKey { dev: 1, ino, birth: (-5, 999_999_999) };
        let find = |prefix: &str, ino: u64| {
            let name = format!("{prefix}{ino}");
            nodes.hand_out_file(NodeId::ROOT, name.as_bytes(), &branch, key(ino), false).unwrap().id
        };
        let ids: Vec<NodeId> = (0..20_000).map(|ino| find("first", ino)).collect();
        let again = || (0..20_000).map(|ino| find("second", ino)).collect::<Vec<_>>();
        assert_eq!(again(), ids);
        // Most are forgotten, so that the tables shrink.
        ids.iter().skip(100).for_each(|&id| nodes.forget(id, 2, |_| {}));
        assert_eq!((0..100).map(|ino| find("third", ino)).collect::<Vec<_>>(), ids[..100]);
        assert_eq!(nodes.len(), 101);
    }
}
