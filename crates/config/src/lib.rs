//! The configuration of a pool.
//!
//! `options` declares each option, and `values` parses and renders each type of value. `source` reads options from
//! command lines and config files, finds the files of named pools, and saves changes of a running pool. They fill in the
//! `Config` of `model`, and `resolve` completes it for the mount. `placement` reads and writes tiers and
//! rules, `trash` what the trash keeps. `overlap` and `pool_loops` refuse directories that
//! cannot be branches. `fstab` reads and writes lines of fstab(5), and finds disks that should be mounted.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod error;
pub mod fstab;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod lossy;
mod model;
pub mod options;
pub mod overlap;
pub mod placement;
pub mod placement_report;
pub mod pool_loops;
pub mod program_name;
pub mod read_cache;
pub mod resolve;
pub mod source;
pub mod state;
pub mod trash;
pub mod units;
pub mod values;

pub use error::Error;
pub use model::{
    AttrOverrides, BranchesWait, Config, FileState, Kernel, MAX_WORKERS, Mount, Threads, Timeouts,
};
