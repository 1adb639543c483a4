//! Names that the pool keeps for itself on its branches.

use crate::error::Error;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Names that begin so are things under construction, or what a crash left of one. Never shown.
pub(crate) const UNDER_CONSTRUCTION: &[u8] = b".canopy-clone.";

/// The pool keeps such names to itself: to its users they do not exist.
pub(crate) fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(UNDER_CONSTRUCTION)
}

/// Errors for a name that users must not give.
pub(crate) fn check_not_reserved(name: &[u8]) -> Result<(), Error> {
    if is_reserved(name) { Err(Error::Invalid) } else { Ok(()) }
}

/// A name for something under construction that nothing else has.
/// A pool does not show what has such a name.
pub fn temporary_name() -> Vec<u8> {
    [UNDER_CONSTRUCTION, unique().as_bytes()].concat()
}

/// Which process this is, told apart from all before it: in a container each has the same number.
static PROCESS: LazyLock<String> = LazyLock::new(|| {
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", std::process::id(), started.as_nanos())
});

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// The process, a dot, and a number.
pub(crate) fn unique() -> String {
    format!("{}.{:x}", *PROCESS, COUNTER.fetch_add(1, Ordering::Relaxed))
}
