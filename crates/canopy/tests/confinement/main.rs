//! The privileges that the daemon drops, and that it still serves every request.

#![forbid(unsafe_code)]

mod landlock;
mod privileges;
mod rig;
