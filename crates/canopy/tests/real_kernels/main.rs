//! What needs a kernel with device mapper, other filesystems and an NFS server: disks that lag, hang or fail.
//!
//! These tests are ignored elsewhere. `scripts/test.sh --kernel` runs them in a virtual machine of their own, whose
//! kernel's other parts they may use as they like.

#![forbid(unsafe_code)]

mod isolation;
mod rig;
