//! Node ids from which a file is found again after the kernel has forgotten it, and after a restart: what NFS handles are
//! made of.
//!
//! A handle is a node's id and generation as the kernel was given them (fs/fuse/inode.c, `fuse_encode_fh`). When it knows
//! the node no more it looks up `.` in that id, and compares the generation of the answer with the handle's. So the id
//! says where to look, and both together prove that what is found there is the same file:
//!
//! * id: a mark, then a hash of the branch's path, the inode number on the branch, and a hash of what tells the file
//!   from others that have had its number;
//! * generation: another hash of branch, inode number and birth time.
//!
//! Both are functions of the file alone, so nothing is stored, and a lookup pays for no system call. A directory of the
//! pool takes the id of its oldest copy, which stays what it is when others are made or branches change their order.
//!
//! Other nodes are numbered as they come, and their handles last for as long as the kernel or the pool knows them: files on
//! filesystems whose inode numbers do not last or that tell no birth time, files of another filesystem that is mounted
//! below a branch, and those whose id is taken.

mod find;
mod inode_search;
mod node_id;
mod tick_guard;

pub(crate) use find::{Found, find, reopen};
pub(crate) use inode_search::InodeSearch;
pub(crate) use node_id::{StableId, StableTarget};
pub(crate) use tick_guard::TickGuard;
