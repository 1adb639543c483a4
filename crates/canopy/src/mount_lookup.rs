//! Finds the mount that a path is on.

use crate::error::Error;
use canopy_sys::mountinfo::{MountEntry, holding_in, list};
use rustix::io::Errno;
use std::io;
use std::path::Path;

/// Returns the mount that a path is on. The path must have no symlinks.
pub fn mount_of(path: &Path) -> Result<Option<MountEntry>, Error> {
    let listed = list().map_err(Error::system("cannot read /proc/self/mountinfo"))?;
    Ok(holding_in(&listed, path).cloned())
}

/// Returns the error for a path that cannot be looked up. A pool whose server has ended gets its own error.
pub fn lookup_error(path: &Path, why: io::Error) -> Error {
    let ended =
        matches!(Errno::from_io_error(&why), Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED));
    // Paths on a dead mount cannot be resolved, so use the path as given.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match mount_of(&path).ok().flatten().filter(|mounted| ended && mounted.is_pool()) {
        Some(pool) => Error::PoolDead(pool.mountpoint),
        None => Error::Explain { path, why: why.to_string() },
    }
}
