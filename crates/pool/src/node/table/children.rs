//! The known names in a directory, of which it stores neither name nor directory: eight bytes and one for each.

use super::index::shrink;
use super::slab::Slot;
use hashbrown::HashTable;

/// A node with a name in the directory.
struct Child {
    node: Slot,
    /// Part of the name's hash, from which the table can be rebuilt without a look at the names.
    hash: u32,
}

impl Child {
    fn spread(hash: u32) -> u64 {
        u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

#[derive(Default)]
pub(crate) struct Children(HashTable<Child>);

impl Children {
    /// Returns the node whose name has this hash, and which `has` recognizes.
    pub(crate) fn get(&self, hash: u64, has: impl Fn(Slot) -> bool) -> Option<Slot> {
        let hash = hash as u32;
        let found = self.0.find(Child::spread(hash), |child| child.hash == hash && has(child.node));
        found.map(|child| child.node)
    }

    pub(crate) fn insert(&mut self, hash: u64, node: Slot) {
        let hash = hash as u32;
        self.0.insert_unique(Child::spread(hash), Child { node, hash }, |child| Child::spread(child.hash));
    }

    pub(crate) fn remove(&mut self, hash: u64, has: impl Fn(Slot) -> bool) -> Option<Slot> {
        let hash = hash as u32;
        let found = self.0.find_entry(Child::spread(hash), |child| child.hash == hash && has(child.node));
        let (removed, _) = found.ok()?.remove();
        shrink(&mut self.0, |child| Child::spread(child.hash));
        Some(removed.node)
    }

    /// Returns the nodes, once for each of their names.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = Slot> {
        self.0.iter().map(|child| child.node)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
