//! The operations of a pool.

mod adopt;
pub mod aggregate;
pub(crate) mod attrs;
pub(crate) mod branch_deadlines;
pub(crate) mod data;
mod external_changes;
pub(crate) mod moves;
pub(crate) mod names;
pub(crate) mod readdir;
mod reserve;
pub(crate) mod resolve;
mod settings;
pub(crate) mod tally;
