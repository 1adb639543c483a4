//! `canopy status`, `canopy metrics`, `canopy top` and `canopy explain` on real pools.

#![forbid(unsafe_code)]

mod disks;
mod explain;
mod hung_branch;
mod json;
mod metrics;
mod output;
mod rig;
mod top;
mod warnings;
