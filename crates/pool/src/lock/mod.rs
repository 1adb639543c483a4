//! Locks that operations share.

pub(crate) mod clones;
pub mod sharded;
pub(crate) mod tree;
