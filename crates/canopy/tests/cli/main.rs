//! The command line: mistakes and their messages, the start and the end of a daemon, the names of the program, `canopy
//! fsck`, and `scripts/install.sh`. Needs root.

#![forbid(unsafe_code)]

mod daemon;
mod fsck;
mod install;
mod program_names;
mod rig;
mod unprivileged;
mod usage;
