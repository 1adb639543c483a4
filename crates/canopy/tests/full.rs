//! Disks that are full: files that move to another branch, or that are copied, on real mounts.
//!
//! Root is needed.

#![forbid(unsafe_code)]

mod full {
    mod cow;
    mod crash;
    mod moving;
    mod passthrough;
    mod quota;
    mod rig;
    mod trim;
    mod writers;
}
