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
#[path = "control/fixed.rs"]
mod fixed;
#[path = "control/funcs.rs"]
mod funcs;
#[path = "control/keys.rs"]
mod keys;
#[path = "control/load.rs"]
mod load;
#[path = "control/nfsopenhack.rs"]
mod nfsopenhack;
#[path = "control/readdir.rs"]
mod readdir;
#[path = "control/rig.rs"]
mod rig;
#[path = "control/suites.rs"]
mod suites;
#[path = "control/table.rs"]
mod table;
#[path = "control/trace.rs"]
mod trace;
#[path = "control/words.rs"]
mod words;
