//! The command line: errors and their messages, how a daemon starts and ends, the program's names, `canopy fsck`, and
//! `scripts/install.sh` and `release.sh`. Needs root.

#![forbid(unsafe_code)]

mod completions;
mod daemon;
mod fsck;
mod install;
mod program_names;
mod release;
mod rig;
mod unprivileged;
mod usage;
