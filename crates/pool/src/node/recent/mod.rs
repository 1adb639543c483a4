//! What threads and files have just done, remembered for a moment.

pub(crate) mod last_opens;
pub(crate) mod pending_cow;
pub(crate) mod removers;
pub(crate) mod replaced;
pub(crate) mod unreadable;
