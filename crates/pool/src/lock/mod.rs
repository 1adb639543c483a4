//! Locks that operations share, and the order in which they are taken.

pub(crate) mod clones;
pub mod rank;
pub mod ranked;
pub mod sharded;
pub(crate) mod tree;
