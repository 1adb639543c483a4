//! Locks that operations share, and the order in which they are taken.

// First, for its macro.
#[macro_use]
pub mod ranked;

pub(crate) mod clones;
mod held;
pub mod rank;
pub mod sharded;
pub(crate) mod tree;
