//! Names that the pool reserves for itself on its branches.

use canopy_base::error::Error;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// The prefix of files and directories under construction, and of those that a crash left behind. They are never
/// shown.
pub const UNDER_CONSTRUCTION: &[u8] = b".canopy-clone.";

/// The log in the root of a branch of what others are owed ([`journal`](crate::journal)).
pub const JOURNAL: &[u8] = b".canopy-journal";

/// The directory in the root of a branch for what has given way there while it was brought up to date.
pub const ASIDE: &[u8] = b".canopy-aside";

/// The directory in the root of a branch for what clients have removed ([`trash`](crate::trash)).
pub const TRASH: &[u8] = b".canopy-trash";

/// The directory, in that of a cache, for copies that make reading faster ([`cached`](crate::cached)).
pub const CACHED: &[u8] = b".canopy-cache";

/// All names that are reserved as they are.
const NAMES: [&[u8]; 4] = [JOURNAL, ASIDE, TRASH, CACHED];

/// Returns true for names that the pool reserves: to clients they do not exist.
pub fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(UNDER_CONSTRUCTION) || NAMES.contains(&name)
}

/// Fails with `Invalid` for a name that clients must not use.
pub fn check_not_reserved(name: &[u8]) -> Result<(), Error> {
    if is_reserved(name) { Err(Error::Invalid) } else { Ok(()) }
}

/// Returns a unique reserved name for something under construction.
pub fn temporary_name() -> Vec<u8> {
    [UNDER_CONSTRUCTION, unique().as_bytes()].concat()
}

/// Tells this process from all earlier ones: in a container they may all have the same process id.
static PROCESS: LazyLock<String> = LazyLock::new(|| {
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", std::process::id(), started.as_nanos())
});

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// Returns a unique text: the process, a dot, and a number.
pub fn unique() -> String {
    format!("{}.{:x}", *PROCESS, COUNTER.fetch_add(1, Ordering::Relaxed))
}
