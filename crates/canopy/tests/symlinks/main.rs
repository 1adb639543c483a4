//! Options that make symlinks, show them or see through them, or keep what the kernel has forgotten, on real
//! mounts.
//!
//! Root is needed.

#![forbid(unsafe_code)]

mod exdev;
mod follow_symlinks;
mod never_forget_nodes;
mod rig;
mod symlinkify;
