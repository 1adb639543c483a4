//! The union filesystem: many directories ("branches") as one tree.
//!
//! Knows nothing of the FUSE wire; its operations run on plain directories, without a mount.
//! [`Pool`] is the filesystem; its operations are in `ops/`, one file per group.
#![forbid(unsafe_code)]

mod acl;
pub mod aggregate;
mod below;
mod beneath;
pub mod branch;
mod caller;
mod cloning;
pub mod config;
mod dirs;
pub mod disk;
pub mod error;
mod export;
mod follow;
mod handle;
mod headroom;
pub mod health;
pub mod ids;
pub mod inode;
pub mod kernel;
mod memory;
mod node;
mod ops;
mod overtaken;
pub mod policy;
mod pool;
mod relocate;
mod resolve;
pub mod shards;
pub mod shrink;
mod silence;
pub mod size;
pub mod space;
mod stat;
pub mod times;
mod tree;
mod walk;

/// Keys are names and numbers that users choose, so each table has a seed of its own.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, rapidhash::fast::RandomState>;

pub use acl::Judge;
pub use beneath::pretend_no_openat2;
pub use error::{Error, Result};
pub use handle::Travel;
pub use ids::{Caller, HandleId, NodeId};
pub use node::known::{Known, KnownTree};
pub use ops::attr::{SetAttr, SetTime};
pub use ops::explain::Explained;
pub use ops::io::{Via, Whence, WriteKind};
pub use ops::ioctl::IoctlAnswer;
pub use ops::locate::Located;
pub use ops::lookup::Entry;
pub use ops::open::Opened;
pub use ops::readdir::DirEntry;
pub use ops::rename::RenameKind;
pub use pool::Pool;
pub use relocate::name_aside;
pub use stat::{Attr, Time};
