//! Finds slots by their values' keys, which it does not store: four bytes and one for each slot.

use super::slab::Slot;
use hashbrown::HashTable;

/// Each grows by itself, so that no request waits until all slots are hashed again.
const SHARDS: usize = 64;

pub(crate) struct Index(Box<[HashTable<Slot>]>);

impl Default for Index {
    fn default() -> Self {
        Index((0..SHARDS).map(|_| HashTable::new()).collect())
    }
}

impl Index {
    /// Returns the slot whose key has this hash, and which `is` recognizes.
    pub(crate) fn find(&self, hash: u64, is: impl Fn(Slot) -> bool) -> Option<Slot> {
        self.0[shard(hash)].find(hash, |&slot| is(slot)).copied()
    }

    /// Adds a slot. `rehash` returns the hash of a slot's key.
    pub(crate) fn insert(&mut self, hash: u64, slot: Slot, rehash: impl Fn(Slot) -> u64) {
        self.0[shard(hash)].insert_unique(hash, slot, |&slot| rehash(slot));
    }

    pub(crate) fn remove(
        &mut self,
        hash: u64,
        is: impl Fn(Slot) -> bool,
        rehash: impl Fn(Slot) -> u64,
    ) -> Option<Slot> {
        let shard = &mut self.0[shard(hash)];
        let (removed, _) = shard.find_entry(hash, |&slot| is(slot)).ok()?.remove();
        shrink(shard, |&slot| rehash(slot));
        Some(removed)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(HashTable::len).sum()
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.0.iter().flatten().copied()
    }
}

/// The table itself uses the lowest and the highest bits.
fn shard(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

/// As [`canopy_base::hash::shrink`].
pub(super) fn shrink<T>(table: &mut HashTable<T>, rehash: impl Fn(&T) -> u64) {
    const SMALL: usize = 32;
    if table.capacity() > SMALL && table.len() * 8 < table.capacity() {
        table.shrink_to(table.len() * 2, rehash);
    }
}
