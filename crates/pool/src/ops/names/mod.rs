//! Operations on names: lookup, creation, links, renames and removal.

pub mod brake;
pub mod create;
pub(crate) mod exdev;
pub(crate) mod export;
pub(crate) mod keep;
pub(crate) mod known;
pub(crate) mod left;
pub mod link;
pub mod locate;
pub mod lookup;
pub mod missing;
pub mod remove;
pub mod rename;
pub(crate) mod rename_copies;
pub mod replay_rename;
