//! The end of a mount, and whom a path belongs to.

use crate::error::Error;
use canopy_fuse::mount::unmount_path;
use canopy_sys::mountinfo::{Mounted, holding_in, list};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The mount that a path lies on, which must be resolved.
pub fn holding(path: &Path) -> Result<Option<Mounted>, Error> {
    let listed = list().map_err(Error::system("cannot read /proc/self/mountinfo"))?;
    Ok(holding_in(&listed, path).cloned())
}

/// Why nothing can be said of a path: what the system says, or that the server of its pool has ended.
pub fn unasked(path: &Path, why: io::Error) -> Error {
    let ended =
        matches!(Errno::from_io_error(&why), Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED));
    // Nothing can be resolved on a dead mount, so it is found by the path as it was typed.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match holding(&path).ok().flatten().filter(|mounted| ended && mounted.is_pool()) {
        Some(pool) => Error::PoolDead(pool.mountpoint),
        None => Error::Explain { path, why: why.to_string() },
    }
}

/// Ends the mount at this place (the topmost, if there are several). Lazy: it disappears at once,
/// and ends when nobody uses it any more. Without the privilege, fusermount3 is asked.
pub fn end(mountpoint: &Path, lazy: bool) -> Result<(), Error> {
    let failed = |why: String| Error::Unmount { path: mountpoint.to_owned(), why };
    unmount_path(mountpoint, lazy).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => Error::Busy(mountpoint.to_owned()),
        Some(Errno::INVAL) => Error::NotMounted(mountpoint.to_owned()),
        Some(Errno::PERM) => failed("only root or whoever mounted it can do that".into()),
        Some(errno) => failed(errno.to_string()),
        None => match error.to_string() {
            text if text.contains("busy") => Error::Busy(mountpoint.to_owned()),
            text => failed(text),
        },
    })
}

/// Is there a program of this name to be run?
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    std::env::split_paths(&path)
        .filter(|dir| dir != OsStr::from_bytes(b""))
        .any(|dir| rustix::fs::access(dir.join(program), rustix::fs::Access::EXEC_OK).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_up_in_path() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program-anywhere"));
    }
}
