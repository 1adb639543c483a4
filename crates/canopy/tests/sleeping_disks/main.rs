//! Disks that sleep: what must not wake them, and who is named when one was woken.

#![forbid(unsafe_code)]

mod look_outs;
mod opens;
mod rig;
mod wakes;
