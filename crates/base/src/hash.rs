//! Hash tables that shrink after use.

use rapidhash::fast::RandomState;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::LazyLock;

/// A hash map with a seed of its own, since users choose the keys (names and numbers).
pub type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;

/// Shrinks the table once less than an eighth of its capacity is used, so that a walk through a large tree does not
/// keep memory until the pool is unmounted. Returns true if it did.
pub fn shrink<K: Eq + Hash, V, S: BuildHasher>(map: &mut std::collections::HashMap<K, V, S>) -> bool {
    const SMALL: usize = 1024;
    let wide = map.capacity() > SMALL && map.len() * 8 < map.capacity();
    if wide {
        map.shrink_to(map.len() * 2);
    }
    wide
}

/// Returns a hash with a seed of the process, for tables that do not store their keys.
pub fn of(key: &(impl Hash + ?Sized)) -> u64 {
    static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    SEED.hash_one(key)
}

/// Returns a hash that is the same in all processes, and versions of the program, that know the key. Who does not know it
/// cannot choose bytes that have a certain hash.
#[must_use]
pub fn keyed(key: u64, bytes: &[u8]) -> u64 {
    rapidhash_v3_seeded(bytes, &RapidSecrets::seed_cpp(key))
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
pub struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only whole hashes are hashed")
    }
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
