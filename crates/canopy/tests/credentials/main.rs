//! Permissions, and ownership of new entries: the tests run the same table of operations on plain ext4 and on pools and
//! compare every cell. They mount filesystems and need root.

#![forbid(unsafe_code)]

mod acl;
mod branch_acls;
mod denials;
mod door;
mod inode_flags;
mod mergerfs_defects;
mod new_entries;
mod rig;
mod setid_clearing;
mod unprivileged_mounts;
mod unwritable_files;
mod xattrs;
