//! Unmounting, by umount2(2) or fusermount.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::fusermount;

/// Unmounts the topmost mount at `path` with umount2(2), or with fusermount if that is not permitted.
///
/// # Errors
/// `EINVAL` when nothing is mounted there, `EBUSY` when it is in use and `lazy` is not set, `EPERM`.
pub fn unmount_path(path: &Path, lazy: bool) -> io::Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazy);
    match rustix::mount::unmount(path, flags) {
        Err(Errno::PERM) => fusermount::unmount(path, lazy),
        other => Ok(other?),
    }
}

/// Returns whether a FUSE mount at `path` has lost its server. The kernel then returns `ENOTCONN`, or `ECANCELED` while it
/// closes the rings of a killed server.
#[must_use]
pub fn is_dead(path: &Path) -> bool {
    matches!(rustix::fs::stat(path), Err(Errno::NOTCONN | Errno::CANCELED))
}

/// Unmounts a FUSE mount that has lost its server. Returns whether there was one.
///
/// # Errors
/// Those of [`unmount_path`].
pub fn unmount_dead(path: &Path) -> io::Result<bool> {
    if !is_dead(path) {
        return Ok(false);
    }
    // The last component cannot be resolved while the mount is dead, but its parent can.
    unmount_path(&absolute(path)?, true)?;
    Ok(true)
}

fn absolute(path: &Path) -> io::Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Ok(parent.canonicalize()?.join(name))
        }
        _ => std::path::absolute(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_mount_is_not_unmounted_as_dead() {
        assert!(!is_dead(Path::new("/")));
        assert!(!unmount_dead(Path::new("/proc")).unwrap());
    }
}
