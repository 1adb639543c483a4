//! Moving files to another branch, because one is full or on request, and replacing a hard link by a copy.

mod break_link;
pub(crate) mod hold_still;
mod relocate;
pub(crate) mod spill;
mod take_off;
