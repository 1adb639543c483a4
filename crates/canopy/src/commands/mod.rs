//! One file a command.

pub mod mount;
pub mod options;
pub mod umount;
