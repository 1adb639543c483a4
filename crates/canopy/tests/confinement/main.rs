//! The privileges that the daemon drops, that it still serves every request, and whom it lets change a pool.

#![forbid(unsafe_code)]

mod door;
mod landlock;
mod privileges;
mod rig;
