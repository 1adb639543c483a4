//! Branches that fail, turn read-only or disappear: the pool works without them, and takes them back when they recover.
//!
//! These tests need root.

#![forbid(unsafe_code)]

mod dead_disks;
mod detached_disks;
mod failing_filesystems;
mod lost_servers;
mod rig;
