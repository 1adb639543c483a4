//! What needs a kernel with device mapper, other filesystems and an NFS server: disks that lag, hang or fail.
//!
//! These tests are ignored elsewhere. `scripts/test.sh --kernel` runs them in a virtual machine of their own, and they use
//! the whole machine: its module parameters, its NFS server, its caches.

#![forbid(unsafe_code)]

mod failing;
mod filesystems;
mod hanging;
mod isolation;
mod rig;
