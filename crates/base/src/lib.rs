//! Plain values that every room above uses: ids, paths, hashes, numbers of inodes, sizes, errors; and the order of the locks.
//! None of it makes a system call.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

// First, for its macro.
#[macro_use]
pub mod lock;

pub mod difference;
pub mod error;
pub mod hash;
pub mod ids;
pub mod inode_number;
pub mod path;
pub mod separated;
pub mod size;
pub mod text;
