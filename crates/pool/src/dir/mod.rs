//! Directories of the pool: merged over the branches, remembered, and listed.

pub(crate) mod cache;
pub(crate) mod listing;
pub(crate) mod merged;
pub(crate) mod symlinks;
