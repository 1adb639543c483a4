//! Moving a file to another branch, and replacing a hard link by a copy.

mod break_link;
pub(crate) mod hold_still;
pub(crate) mod spill;
