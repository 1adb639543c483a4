//! Bringing onto a branch what it lacks: the directories above a new entry, or a whole file.
//!
//! Whatever is brought is made aside, under a name that nobody is shown, and takes its own name once it is
//! complete. Files are also noted in a journal in the root of the branch until that is done, so that a crash
//! leaves nothing that the next mount does not find.
//!
//! Nothing here knows of policies: who calls has chosen the branch.

mod copy;
mod dirs;
mod dress;
mod elsewhere;
mod file;
mod journal;
mod links;
mod own;
mod replica;
mod sweep;

pub(crate) use dirs::clone_dirs;
pub(crate) use dress::is_shadow;
pub(crate) use elsewhere::is_full;
pub(crate) use sweep::{recover, sweep};

use crate::Error;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names that begin so are things under construction, or what a crash left of one. Never shown.
const UNDER_CONSTRUCTION: &[u8] = b".canopy-clone.";

/// The pool keeps such names to itself: to its users they do not exist.
pub(crate) fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(UNDER_CONSTRUCTION)
}

/// Errors for a name that users must not give.
pub(crate) fn may_be_made(name: &[u8]) -> Result<(), Error> {
    if is_reserved(name) { Err(Error::Invalid) } else { Ok(()) }
}

/// A name for something under construction that nothing else has.
pub(crate) fn name_aside() -> Vec<u8> {
    [UNDER_CONSTRUCTION, unique().as_bytes()].concat()
}

static COUNTER: AtomicU64 = AtomicU64::new(0);

fn unique() -> String {
    format!("{:x}.{:x}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}
