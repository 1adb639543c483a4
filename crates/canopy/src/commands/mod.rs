//! One file a command.

pub mod bench;
pub mod get;
pub mod list;
pub mod mount;
pub mod options;
pub mod set;
pub mod umount;
