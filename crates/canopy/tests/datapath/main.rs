//! How the data of open files travels, in every combination of `passthrough.io`, `cache.files` and
//! `cache.writeback`: never an error that the branch would not give, never stale, never lost.
//!
//! Real mounts over ext4 and tmpfs, so root is needed; `scripts/setup.sh test` installs fio, sqlite3 and xfs_io.

#![forbid(unsafe_code)]

mod allocation;
mod atime;
mod checks;
mod direct_io;
mod files;
mod locks;
mod matrix;
mod mmap;
mod options;
mod overwrite;
mod passthrough_fallback;
mod rig;
mod sendfile;
mod unlinked;
