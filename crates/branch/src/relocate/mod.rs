//! Bringing files and directories to another branch: the parents of a new entry, or a whole file.
//!
//! Everything is built under a temporary name that clients do not see, and takes its own name once it is complete.
//! For a file, a journal entry in the root of the target branch records the work until it is done, so that the next
//! mount finds whatever a crash leaves behind.
//!
//! This module does not know policies: the caller has chosen the branch.

pub mod aside;
mod chattr;
mod clone_dirs;
pub mod closed;
pub mod copy;
pub mod file;
pub mod journal;
mod kept_times;
pub mod lease;
pub mod links;
mod metadata;
pub mod moved;
mod recovery;
pub mod replica;
mod symlink;

pub use clone_dirs::{Cloned, clone_dirs};
pub use copy::STEP as COPIED_AT_ONCE;
pub(crate) use copy::copy_data;
pub use kept_times::with_times_kept;
pub use metadata::{
    Losses, copy_metadata, copy_owner_mode_and_xattrs, is_xfs_acl_alias, level_metadata, set_times,
};
pub use recovery::{Reach, recover, remove_leftovers};
pub use recovery::{Unfinished, recover_all};
pub use symlink::move_symlink;
