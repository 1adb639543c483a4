//! What the daemon gives up, and that it serves all the same.

#![forbid(unsafe_code)]

mod landlock;
mod privileges;
mod rig;
