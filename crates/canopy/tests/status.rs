//! `canopy status` and `canopy explain` on real pools.

#![forbid(unsafe_code)]

#[path = "status/explaining.rs"]
mod explaining;
#[path = "status/hanging.rs"]
mod hanging;
#[path = "status/rig.rs"]
mod rig;
#[path = "status/shape.rs"]
mod shape;
#[path = "status/warned.rs"]
mod warned;
