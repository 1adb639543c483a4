//! Who may do what, and whose the result is: the same table is run on plain ext4 and on pools, and every cell must be
//! alike. Real mounts, so root is needed.

#![forbid(unsafe_code)]

mod acl;
mod branch_acls;
mod denials;
mod inode_flags;
mod mergerfs_defects;
mod new_entries;
mod rig;
mod setid_clearing;
mod unprivileged_mounts;
mod unwritable_files;
mod xattrs;
