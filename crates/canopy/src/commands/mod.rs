//! The commands, one file each.

pub mod branches;
pub mod doctor;
pub mod explain;
pub mod get;
pub mod list;
pub mod mount;
pub use canopy_setup::commands::options;
pub mod probe;
pub mod remount;
pub mod set;
pub mod status;
pub mod sync;
pub mod umount;
pub mod upgrade;
pub mod verify;
