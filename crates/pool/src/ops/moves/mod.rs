//! Moving files to another branch, because one is full or on request, and replacing a hard link by a copy.

mod break_link;
mod drop_copy;
pub(crate) mod freeze;
pub(crate) mod make_room;
mod relocate;
