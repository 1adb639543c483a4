//! Operations on names: finding, making, linking, renaming and removing them.

pub(crate) mod entries;
mod exdev;
pub(crate) mod explain;
mod export;
mod link;
pub(crate) mod locate;
pub(crate) mod lookup;
pub(crate) mod rename;
