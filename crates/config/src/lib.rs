//! What a mount is told: the values, and where they come from.
//!
//! `options` declares each option once, with its setter; `values` parses and renders each type of value. `source`
//! reads options from a command line, a file of lines or TOML, finds the files of named pools, and writes a change of
//! a running pool back. `model` is what they fill in, and `resolve` turns it into what is mounted. `overlap` and
//! `pool_loops` say which directories cannot be branches of a pool. `control_api` holds the words of the control
//! interface, for the server that speaks them and for programs that ask.
#![forbid(unsafe_code)]

pub mod control_api;
pub mod error;
mod model;
pub mod options;
pub mod overlap;
pub mod pool_loops;
pub mod program_name;
pub mod resolve;
pub mod source;
pub mod text;
pub mod values;

pub use error::Error;
pub use model::{
    AttrOverrides, BranchesWait, Config, FileState, Kernel, MAX_WORKERS, Mount, Threads, Timeouts,
};
