//! Runs the tool on small workspaces and compares what it prints.

mod circles;
mod crates;
mod floors;
mod imports;
mod limits;
mod methods;
mod rig;
mod unsafe_code;
