//! The commands that keep a pool in shape: where files are (`which`, `ls`, `du`), moving them between branches, their
//! copies, copies that differ (`fsck`), what was removed (`trash`), and what is read from a fast disk (`cache`).
//!
//! They look at the branches directly, in the order in which the pool lists them, and leave changes to the daemon
//! (`canopy_sys::ioctl::relocate`), except that `dedup` removes copies that
//! nobody has open, `verify` stores checksums and fixes, and `fsck` repairs. So a command keeps no state:
//! stopped anywhere and run again, it looks at the branches and goes on.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod cache;
mod columns;
mod consent;
mod copies;
#[cfg(test)]
mod double;
mod error;
mod filter;
mod fsck;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod held;
mod keep;
mod look;
mod manners;
mod only_there;
mod output;
mod pace;
mod pool_link;
mod progress;
mod relocate;
mod stop;
mod survey;
#[cfg(test)]
mod tests;
mod tools;
mod trash;

pub use cache::{CacheArgs, cache};
pub use consent::ConsentArgs;
pub use copies::{CopiesArgs, DedupArgs, DupArgs, VerifyArgs, copies, dedup, dup, verify};
pub use error::{Error, Result};
pub use filter::{Filter, FilterArgs};
pub use fsck::{FixSource, FsckArgs, fsck};
pub use look::{DuArgs, ForgetArgs, LostArgs, LsArgs, WhichArgs, du, forget, lost, ls, which};
pub use manners::ThrottleArgs;
pub use only_there::{OnlyThere, only_there};
pub use relocate::{
    BalanceArgs, BranchSpace, ConsolidateArgs, DrainArgs, MoveArgs, Remove, TierArgs, TierStatus, balance,
    consolidate, drain, move_files, preview, tier,
};
pub use tools::{OldFix, OldFsck, Tool, ToolCommand, parse_tool, run_tool};
pub use trash::{TrashArgs, trash};
