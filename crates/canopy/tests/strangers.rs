//! Operations that take long hold up nobody but those who wait for them.

#![forbid(unsafe_code)]

#[path = "strangers/copies.rs"]
mod copies;
#[path = "strangers/long.rs"]
mod long;
#[path = "strangers/rig.rs"]
mod rig;
#[path = "strangers/workers.rs"]
mod workers;
