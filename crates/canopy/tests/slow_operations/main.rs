//! Operations that take long hold up nobody but those who wait for them.

#![forbid(unsafe_code)]

mod copy_file_range;
mod other_clients;
mod rig;
mod worker_threads;
