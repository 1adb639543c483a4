//! Tables that grow with use, and do not keep the room that they once needed.

use std::hash::{BuildHasher, Hash};

/// Keys are names and numbers that users choose, so each table has a seed of its own.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, rapidhash::fast::RandomState>;

/// Gives room back once less than an eighth of it is used, so that what a walk through a large tree has filled is not
/// kept for ever. True if it did.
pub(crate) fn shrink<K: Eq + Hash, V, S: BuildHasher>(map: &mut std::collections::HashMap<K, V, S>) -> bool {
    const SMALL: usize = 1024;
    let wide = map.capacity() > SMALL && map.len() * 8 < map.capacity();
    if wide {
        map.shrink_to(map.len() * 2);
    }
    wide
}
