//! Node ids that lead back to a file after the kernel has forgotten it, and after a restart. NFS handles are made of
//! them.
//!
//! An NFS handle holds a node's id and generation as the kernel got them from the pool (fs/fuse/inode.c,
//! `fuse_encode_fh`). If the kernel no longer knows the node, it looks up `.` in that id and compares the generation
//! of the reply with the handle's. So the id says where to look, and id and generation together prove that the file
//! found there is the same:
//!
//! * id: a marker bit, then a hash of the branch's path, the inode number on the branch, and a hash that tells the
//!   file from earlier files with the same number;
//! * generation: another hash of branch, inode number and birth time.
//!
//! Both depend on the file alone, so nothing is stored, and a lookup needs no extra system call. A directory of the
//! pool has the id of its oldest copy, which stays the same when further copies are made or branches are reordered.
//!
//! Other nodes get consecutive numbers, and their handles work as long as the kernel or the pool knows the node.
//! These are files on filesystems without stable inode numbers or birth times, files of another filesystem mounted
//! below a branch, and files whose id is taken.

mod find;
mod inode_search;
mod node_id;
mod tick_guard;

pub(crate) use find::{FoundById, find, known_path, reopen};
pub(crate) use inode_search::InodeSearch;
pub(crate) use node_id::{StableId, StableTarget};
pub(crate) use tick_guard::TickGuard;
