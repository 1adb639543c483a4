//! A pool with `survive=true` while the processes that serve it are killed.

#![forbid(unsafe_code)]

mod deaths;
mod faults;
mod held_dirs;
mod held_files;
mod inode_numbers;
mod loads;
mod mirrors;
mod moves;
mod parked;
mod pauses;
mod rig;
mod storm;
mod upgrades;
