//! Disks that are full: files that move to another branch, or that are copied, on real mounts.
//!
//! Root is needed.

#![forbid(unsafe_code)]

mod auto_passthrough;
mod crash;
mod fstrim;
mod link_cow;
mod moveonenospc;
mod passthrough_writers;
mod quota;
mod rig;
