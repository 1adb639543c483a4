//! The runtime interface on real mounts: the control file, the keys of every file, and changes under load.

#![forbid(unsafe_code)]

#[path = "control/branches.rs"]
mod branches;
#[path = "control/commands.rs"]
mod commands;
#[path = "control/effects.rs"]
mod effects;
#[path = "control/files.rs"]
mod files;
#[path = "control/funcs.rs"]
mod funcs;
#[path = "control/keys.rs"]
mod keys;
#[path = "control/load.rs"]
mod load;
#[path = "control/rig.rs"]
mod rig;
#[path = "control/suites.rs"]
mod suites;
