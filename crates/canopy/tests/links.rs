//! Options that make symlinks, or see through them, on real mounts.
//!
//! Root is needed.

#![forbid(unsafe_code)]

mod links {
    mod exdev;
    mod follow;
    mod rig;
}
