//! Copies of files, and what they hold: `canopy copies`, `dup`, `dedup` and `verify`.

mod aside;
mod dedup;
mod dup;
mod share;
mod verify;

pub use aside::{CopiesArgs, copies};
pub use dedup::DedupArgs;
pub(crate) use dedup::{Ignore, Old};
pub use dup::{DupArgs, dup};
#[cfg(any(test, fuzzing))]
pub(crate) use verify::fuzz;
pub use verify::{VerifyArgs, verify};

use crate::error::Result;

/// Runs `canopy dedup`.
pub fn dedup(args: &DedupArgs) -> Result<()> {
    match args.link {
        None => dedup::dedup(args),
        Some(link) => share::share(args, link),
    }
}
