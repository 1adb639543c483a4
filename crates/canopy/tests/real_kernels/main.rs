//! What needs a kernel with device mapper, scsi_debug and other filesystems: disks that lag, hang or fail.
//!
//! These tests are ignored elsewhere. `scripts/test.sh --kernel` runs them in a virtual machine of their own, and they use
//! the whole machine: its modules, their parameters, its caches.

#![forbid(unsafe_code)]

mod failing;
mod filesystems;
mod hanging;
mod isolation;
mod network;
mod rig;
