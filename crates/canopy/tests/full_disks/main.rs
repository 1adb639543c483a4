//! Full disks on real mounts: files that move to another branch, and files that are copied.
//!
//! These tests need root.

#![forbid(unsafe_code)]

mod attributes;
mod auto_passthrough;
mod crash;
mod fstrim;
mod link_cow;
mod moveonenospc;
mod page_cache;
mod passthrough_writers;
mod quota;
mod reserve;
mod rig;
