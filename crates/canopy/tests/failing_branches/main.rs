//! Branches that fail, turn read-only, or fall off: the pool goes on without them, and takes them back.
//!
//! Root is needed.

#![forbid(unsafe_code)]

mod dead_disks;
mod detached_disks;
mod failing_filesystems;
mod rig;
