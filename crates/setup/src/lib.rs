//! Setting up pools on a machine.
//!
//! `machine` looks at what is mounted. From that and fstab(5), `proposal` says what a
//! pool could consist of, and what would hurt; `pool_file` writes its description, and `at_boot` what mounts it. `migrate`
//! turns what mergerfs was configured with into lines for Canopy; `unit` knows the syntax of systemd's units. `expected`
//! lists the pools that should be there, and `doctor` finds what is wrong in what `examine` gathers. `commands` has `canopy
//! init` and `canopy migrate`. Files that belong to the system are changed by `system_file` only. What judges and proposes
//! neither asks the system nor changes it.
//! `complete` finishes command lines for the shells.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod at_boot;
pub mod commands;
pub mod complete;
pub mod doctor;
mod error;
pub mod examine;
pub mod expected;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod machine;
pub mod migrate;
pub mod pool_file;
pub mod program;
pub mod proposal;
pub mod system_file;
pub mod unit;
pub mod unused_disks;

pub use error::Error;
