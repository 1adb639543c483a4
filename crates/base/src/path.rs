//! Paths in the pool.

use smallvec::SmallVec;

/// A path in the pool: bytes without a leading slash; the root is empty.
pub type PoolPath = SmallVec<[u8; 128]>;

/// One component of a path.
pub type FileName = SmallVec<[u8; 64]>;

/// Joins two paths: `parent/name`.
pub fn join(parent: &[u8], name: &[u8]) -> PoolPath {
    let mut path = PoolPath::with_capacity(parent.len() + 1 + name.len());
    path.extend_from_slice(parent);
    if !parent.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Splits a path into its directory and its last component.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}
