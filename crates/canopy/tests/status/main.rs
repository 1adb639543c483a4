//! `canopy status` and `canopy explain` on real pools.

#![forbid(unsafe_code)]

mod explain;
mod hung_branch;
mod output;
mod rig;
mod warnings;
