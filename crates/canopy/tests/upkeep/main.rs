//! The commands that keep a pool in shape, on real pools. Needs root.

#![forbid(unsafe_code)]

mod acceptance;
mod busy;
mod consent;
mod dedup;
mod drain;
mod dup;
mod fsck;
mod kills;
mod leased;
mod look;
mod moves;
mod names;
mod rig;
mod share;
mod tools;
mod verify;
