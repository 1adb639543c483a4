//! Options that create, show or follow symlinks, and `never-forget-nodes`, on real mounts. Needs root.

#![forbid(unsafe_code)]

mod exdev;
mod follow_symlinks;
mod never_forget_nodes;
mod rig;
mod symlinkify;
