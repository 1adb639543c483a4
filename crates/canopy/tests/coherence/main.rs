//! Changes made directly on the branches, as they show through the pool.

#![forbid(unsafe_code)]

mod aliased_directories;
mod cached_listings;
mod catalogue;
mod change_kinds;
mod changed_before;
mod changed_copies;
mod free_space;
mod limits;
mod own_disks;
mod partial_listings;
mod partly_watched;
mod random_changes;
mod rig;
mod uncached_names;
mod warm_walks;
mod written_files;
