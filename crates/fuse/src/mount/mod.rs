//! Mounting and unmounting.
//!
//! A mount is identified by its mount id instead of its path: another filesystem can be mounted at the same path later,
//! and must not be unmounted by mistake.

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
pub use replace::mount_detached;
pub use spec::MountSpec;
pub use unmount::{is_dead, sync_served, unmount_dead, unmount_path, unmount_served};
