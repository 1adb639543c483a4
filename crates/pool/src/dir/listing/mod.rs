//! The parts of a directory listing, which merges the names of all branches.

pub(crate) mod cursor;
pub(crate) mod parked;
pub(crate) mod position;
pub(crate) mod sorted;
pub(crate) mod source;
