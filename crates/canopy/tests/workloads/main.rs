//! Everyday work on mounted pools: copies of whole trees, git, cargo, sqlite, tree walks during renames, many
//! concurrent processes, hundreds of mounts. Needs root: the tests mount pools over ext4, xfs, btrfs and tmpfs.

#![forbid(unsafe_code)]

mod builds;
mod concurrency;
mod executables;
mod fsync;
mod git;
mod memory;
mod mount_cycles;
mod nested_filesystems;
mod rig;
mod sqlite;
mod tree_copies;
mod tree_walks;
