//! How the data of open files travels, in every combination of `passthrough.io`, `cache.files` and
//! `cache.writeback`: never an error that the branch would not give, never stale, never lost.
//!
//! Real mounts over ext4 and tmpfs, so root is needed; `scripts/setup.sh test` installs fio, sqlite3 and xfs_io.

#![forbid(unsafe_code)]

mod datapath {
    mod beside_mapping;
    mod checks;
    mod direct;
    mod fallbacks;
    mod files;
    mod like_branch;
    mod locks;
    mod mapped;
    mod matrix;
    mod options;
    mod overwriting;
    mod rig;
    mod spliced;
    mod times;
    mod unlinked;
}
