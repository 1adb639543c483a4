//! Operations on attributes, extended attributes and the filesystem as a whole.

pub mod ioctl;
pub mod setattr;
pub mod statfs;
pub mod xattr;
