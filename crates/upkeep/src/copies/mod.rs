//! Copies of files, and what they hold: `canopy dup`, `dedup` and `verify`.

mod aside;
mod checksum;
mod dedup;
mod dup;
mod held;
mod verify;

pub use dedup::{DedupArgs, dedup};
pub use dup::{DupArgs, dup};
pub use verify::{VerifyArgs, verify};
