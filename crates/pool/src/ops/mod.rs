//! The operations of a pool.

pub mod aggregate;
pub(crate) mod attrs;
mod caller;
pub(crate) mod data;
mod invalidation;
pub(crate) mod moves;
pub(crate) mod names;
pub(crate) mod readdir;
pub(crate) mod resolve;
mod settings;
pub(crate) mod timeouts;
