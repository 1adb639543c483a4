//! External suites against a mounted pool: pjdfstest, fsx and stress-ng's filesystem class.
//!
//! Each is run on plain ext4 too, in the same test, so that a failure is the pool's and not the machine's.
//! Install the tools with `scripts/setup.sh test`. All of it needs root.

#![forbid(unsafe_code)]

mod fsx;
mod pjdfstest;
mod stress_ng;
mod tools;
