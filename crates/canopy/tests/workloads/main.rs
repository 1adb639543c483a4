//! Everyday work on mounted pools: whole trees copied, git, cargo, sqlite, walks beside renames, many processes at
//! once, hundreds of mounts. Real mounts over ext4, xfs, btrfs and tmpfs, so root is needed.

#![forbid(unsafe_code)]

mod builds;
mod concurrency;
mod executables;
mod fsync;
mod git;
mod mount_cycles;
mod nested_filesystems;
mod rig;
mod sqlite;
mod tree_copies;
mod tree_walks;
