//! Directories of the pool: merged from the branches, cached, and listed.

pub(crate) mod cache;
pub(crate) mod listing;
pub(crate) mod merged;
pub(crate) mod symlinks;
