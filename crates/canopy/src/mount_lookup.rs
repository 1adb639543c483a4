//! Which mount a path lies on.

use crate::error::Error;
use canopy_sys::mountinfo::{MountEntry, holding_in, list};
use rustix::io::Errno;
use std::io;
use std::path::Path;

/// The mount that a path lies on, which must be resolved.
pub fn mount_of(path: &Path) -> Result<Option<MountEntry>, Error> {
    let listed = list().map_err(Error::system("cannot read /proc/self/mountinfo"))?;
    Ok(holding_in(&listed, path).cloned())
}

/// Why nothing can be said of a path: what the system says, or that the server of its pool has ended.
pub fn lookup_error(path: &Path, why: io::Error) -> Error {
    let ended =
        matches!(Errno::from_io_error(&why), Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED));
    // Nothing can be resolved on a dead mount, so it is found by the path as it was typed.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match mount_of(&path).ok().flatten().filter(|mounted| ended && mounted.is_pool()) {
        Some(pool) => Error::PoolDead(pool.mountpoint),
        None => Error::Explain { path, why: why.to_string() },
    }
}
