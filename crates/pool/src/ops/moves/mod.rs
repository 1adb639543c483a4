//! Moving files to another branch, because one is full or on request, and replacing a hard link by a copy.

pub(crate) mod break_link;
pub(crate) mod drop_copy;
pub(crate) mod freeze;
pub(crate) mod make_room;
pub(crate) mod relocate;
mod twin;
