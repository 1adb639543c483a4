//! The union filesystem: many directories ("branches") as one tree.
//!
//! It does not know the FUSE protocol; its operations run on plain directories, without a mount. [`Pool`] is the
//! filesystem; `ops/` has its operations, one file per group.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod coherence;
pub mod config;
mod dir;
pub mod door;
mod export;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod kernel;
mod node;
pub mod ops;
mod paths;
mod pool;

pub use dir::listing::cursor::{DirEntry, NamesRead};
pub use door::Caller;
pub use node::handles::records::{HandleRecords, RECORD as HANDLE_RECORD_WORDS};
pub use node::known_tree::KnownTree;
pub use node::passthrough::OpenFlags;
pub use node::read_cache::{CacheFigures, CachedFile};
pub use node::table::dir_numbers::{DIR_NUMBER_WORDS, DIR_NUMBERS_HEAD, DirNumbers};
pub use ops::aggregate;
pub use ops::attrs::ioctl::IoctlAnswer;
pub use ops::attrs::setattr::{SetAttr, SetTime};
pub use ops::data::io::{Via, Whence, WriteKind};
pub use ops::data::open::Opened;
pub use ops::explain::{Explained, Placed, PlacedSet, SetAnswer};
pub use ops::names::locate::Located;
pub use ops::names::lookup::Entry;
pub use ops::names::rename::RenameKind;
pub use ops::names::replay_rename::{RENAME_INTENT_WORDS, RenameIntent};
pub use ops::tally::PoolTally;
pub use pool::Pool;
