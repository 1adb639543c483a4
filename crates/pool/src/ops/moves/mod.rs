//! Files that change their place: to another branch, or from under a shared name.

mod break_link;
pub(crate) mod hold_still;
pub(crate) mod spill;
