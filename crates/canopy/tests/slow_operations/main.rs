//! A slow operation delays only the requests that depend on it.

#![forbid(unsafe_code)]

mod copy_file_range;
mod floods;
mod local_disk;
mod other_clients;
mod rig;
mod unknown_files;
mod waits;
mod waits_for_leases;
mod waits_that_end;
mod worker_threads;
