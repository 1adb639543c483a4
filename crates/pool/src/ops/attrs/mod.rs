//! Operations on attributes, extended attributes and the filesystem as a whole.

pub(crate) mod ioctl;
pub(crate) mod setattr;
mod statfs;
mod xattr;
