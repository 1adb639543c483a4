//! What is known of the branches, and whether it is still so.

pub mod catalogue;
pub mod changes;
