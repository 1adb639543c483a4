//! Locks with ranks, and the order in which they are taken.

// First, for its macro.
#[macro_use]
pub mod ranked;

mod held;
pub mod rank;
pub mod sharded;
