//! Data of open files in every combination of `passthrough.io`, `cache.files` and `cache.writeback`: the pool never
//! returns an error that the branch would not, never returns stale data, and never loses a write.
//!
//! The tests mount pools over ext4 and tmpfs and need root; `scripts/setup.sh test` installs fio, sqlite3 and xfs_io.

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
mod write_flags;
