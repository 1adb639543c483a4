//! Everyday work on mounted pools: whole trees copied, git, cargo, sqlite, walks beside renames, many processes at
//! once, hundreds of mounts. Real mounts over ext4, xfs, btrfs and tmpfs, so root is needed.

#![forbid(unsafe_code)]

mod work {
    mod below;
    mod building;
    mod copying;
    mod crowd;
    mod cycles;
    mod executing;
    mod git;
    mod rig;
    mod sqlite;
    mod syncing;
    mod walking;
}
