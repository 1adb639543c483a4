//! Configuration files: read at mount time, read again by a mounted pool, found by the pool's name, and edited by
//! `canopy set --persist`. Needs root.

#![forbid(unsafe_code)]

mod config_file;
mod named_pools;
mod persist;
