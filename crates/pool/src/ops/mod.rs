//! The operations of a pool.

pub mod adopt;
pub mod aggregate;
pub mod attrs;
pub mod branch_deadlines;
pub mod data;
pub mod explain;
pub mod external_changes;
pub(crate) mod freed;
pub(crate) mod moves;
pub mod names;
pub mod owed;
pub mod read_cache;
pub mod readdir;
pub(crate) mod reserve;
pub mod resolve;
pub mod settings;
pub mod tally;
pub mod trash;
