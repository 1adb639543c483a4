//! A missing disk is not an empty one: its names stay, and whoever mirrors the pool deletes nothing.
//!
//! These tests need root.

#![forbid(unsafe_code)]

mod known_again;
mod mirrors;
mod restarts;
mod rig;
mod shown;
