//! Operations on names: lookup, creation, links, renames and removal.

pub(crate) mod create;
mod exdev;
pub(crate) mod explain;
mod export;
mod link;
pub(crate) mod locate;
pub(crate) mod lookup;
mod remove;
pub(crate) mod rename;
mod rename_copies;
pub(crate) mod replay_rename;
