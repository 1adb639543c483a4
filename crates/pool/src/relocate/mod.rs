//! Bringing onto a branch what it lacks: the directories above a new entry, or a whole file.
//!
//! Whatever is brought is made aside, under a name that nobody is shown, and takes its own name once it is
//! complete. Files are also noted in a journal in the root of the branch until that is done, so that a crash
//! leaves nothing that the next mount does not find.
//!
//! Nothing here knows of policies: who calls has chosen the branch.

mod clone_dirs;
mod copy;
pub(crate) mod file;
pub(crate) mod journal;
pub(crate) mod links;
mod metadata;
mod recovery;
pub(crate) mod replica;

pub(crate) use clone_dirs::clone_dirs;
pub(crate) use metadata::is_shadow;
pub(crate) use recovery::{recover, sweep};

use crate::error::Error;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

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
/// A pool does not show what has such a name.
pub fn name_aside() -> Vec<u8> {
    [UNDER_CONSTRUCTION, unique().as_bytes()].concat()
}

/// Which process this is, told apart from all before it: in a container each has the same number.
static PROCESS: LazyLock<String> = LazyLock::new(|| {
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", std::process::id(), started.as_nanos())
});
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// The process, a dot, and a number.
fn unique() -> String {
    format!("{}.{:x}", *PROCESS, COUNTER.fetch_add(1, Ordering::Relaxed))
}
