//! The parts of a directory listing that is read from all branches.

pub(crate) mod cursor;
pub(crate) mod parked;
pub(crate) mod position;
pub(crate) mod source;
