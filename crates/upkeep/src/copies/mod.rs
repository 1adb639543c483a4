//! Files of which several branches hold a copy: `canopy dedup`.

mod dedup;
mod dup;
mod held;

pub use dedup::{DedupArgs, dedup};
pub use dup::{DupArgs, dup};
