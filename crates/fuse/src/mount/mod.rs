//! Putting a connection into the tree, and taking it out again.
//!
//! A mount in the tree is known by its mount id, not by its path: something else can be mounted at the same place
//! later, and that is not ours to unmount.

mod error;
mod flags;
mod fusermount;
mod id;
mod mounted;
mod remount;
mod replace;
mod spec;
mod unmount;

pub use error::MountError;
pub use flags::{ATIME_FLAGS, MountFlags};
pub use id::unique_mount_id;
pub use mounted::{Mounted, Placement, mount};
pub use remount::remount;
pub use spec::MountSpec;
pub use unmount::{is_dead, unmount_dead, unmount_path};
