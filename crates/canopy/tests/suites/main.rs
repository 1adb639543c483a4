//! External suites against a mounted pool: pjdfstest, fsx and stress-ng's filesystem class.
//!
//! Each test also runs its suite on plain ext4, which tells failures of the pool from failures of the machine. Install
//! the tools with `scripts/setup.sh test`. Needs root.

#![forbid(unsafe_code)]

mod fsx;
mod pjdfstest;
mod stress_ng;
mod tools;
