//! Options that make symlinks, show them or see through them, or keep what the kernel has forgotten, on real
//! mounts.
//!
//! Root is needed.

#![forbid(unsafe_code)]

mod links {
    mod exdev;
    mod follow;
    mod forgetting;
    mod rig;
    mod symlinkify;
}
