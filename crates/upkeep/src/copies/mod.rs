//! Files of which several branches hold a copy: `canopy dedup`.

mod dedup;
mod held;

pub use dedup::{DedupArgs, dedup};
