//! Fixtures for Canopy's tests: filesystems on loop devices, mounted pools, a reference model, exact comparison of
//! directory trees, a generator of realistic trees, and checks that a test leaves nothing behind.
//!
//! Everything that changes the machine is a guard: dropping it undoes the change, and panics if that fails. While a
//! test is already failing, a guard reports to stderr instead and still cleans up as far as it can.
//!
//! Most guards need root. [`require_root`] fails the test with a clear message instead of skipping it.

#![forbid(unsafe_code)]

pub mod bystander;
mod cli_bed;
pub mod cmd;
mod faulty;
pub mod files;
pub mod kernel;
mod leak_check;
mod loopfs;
pub mod model;
mod paused;
mod pool;
mod pool_bed;
mod populate;
pub mod proc;
mod rng;
mod root;
mod scratch;
mod submount;
pub mod tree;
mod user;
pub mod xattr;

pub use canopy_fuse::Opcode;
pub use cli_bed::CliBed;
pub use cmd::PATIENCE;
pub use faulty::{Fault, FaultyFs, SpaceReport};
pub use leak_check::LeakCheck;
pub use loopfs::{Branches, Kind, LoopFs, Medium, Throttle, branch_disk, lag};
pub use paused::Paused;
pub use pool::{MountFailed, Pool, PoolBuilder, pool_status, program_under_test, transports};
pub use pool_bed::{DirBed, PoolBed};
pub use populate::{TreeSpec, populate};
pub use rng::Rng;
pub use root::require_root;
pub use scratch::ScratchDir;
pub use submount::Submount;
pub use tree::{Fields, Tree};
pub use user::{User, as_user};
