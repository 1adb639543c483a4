//! Moving files to another branch, because one is full or on request, replacing a hard link by a copy, and leaving a
//! copy that cannot be read.

pub(crate) mod break_link;
pub(crate) mod drop_copy;
pub(crate) mod freeze;
pub(crate) mod heal;
pub(crate) mod lead;
pub(crate) mod make_room;
pub(crate) mod relocate;
mod twin;
