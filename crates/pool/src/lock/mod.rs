//! Locks that operations share, and the order in which they are taken.

// First, for its macro.
#[macro_use]
pub mod ranked;

pub(crate) mod clones;
mod held;
pub(crate) mod paths;
pub mod rank;
pub mod sharded;
