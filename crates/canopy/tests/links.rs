//! Options that make symlinks, see through them, or open what the branch refuses, on real mounts.
//!
//! Root is needed.

#![forbid(unsafe_code)]

mod links {
    mod exdev;
    mod follow;
    mod nfsopenhack;
    mod rig;
}
