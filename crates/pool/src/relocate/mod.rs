//! Bringing onto a branch what it lacks: the directories above a new entry, or a whole file.
//!
//! Whatever is brought is made aside, under a name that nobody is shown, and takes its own name once it is
//! complete. Files are also noted in a journal in the root of the branch until that is done, so that a crash
//! leaves nothing that the next mount does not find.
//!
//! Nothing here knows of policies: who calls has chosen the branch.

mod clone_dirs;
mod copy;
pub(crate) mod file;
pub(crate) mod journal;
pub(crate) mod lease;
pub(crate) mod links;
mod metadata;
mod recovery;
pub(crate) mod replica;

pub(crate) use clone_dirs::clone_dirs;
pub(crate) use metadata::is_xfs_acl_alias;
pub(crate) use recovery::{recover, remove_leftovers};
