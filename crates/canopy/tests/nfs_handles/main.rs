//! Handles of files and directories, as an NFS server makes them (name_to_handle_at(2)): they lead to the same file after
//! the kernel has forgotten it and after the pool has been started again, or nowhere.
//!
//! Root is needed.

#![forbid(unsafe_code)]

mod persistent_handles;
mod rig;
mod stale_handles;
mod stress;
