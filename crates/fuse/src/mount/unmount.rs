//! Unmounting, by this process or by fusermount.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::fusermount;

/// Unmounts whatever is on top at `path`: by umount2(2), and through fusermount where that is not permitted.
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

/// Whether a FUSE mount at `path` has lost its server: `ENOTCONN`, and for the moment that the kernel takes to close the
/// rings of one that was killed, `ECANCELED`.
#[must_use]
pub fn is_dead(path: &Path) -> bool {
    matches!(rustix::fs::stat(path), Err(Errno::NOTCONN | Errno::CANCELED))
}

/// Unmounts a FUSE mount that has lost its server; true when there was one.
///
/// # Errors
/// As [`unmount_path`].
pub fn unmount_dead(path: &Path) -> io::Result<bool> {
    if !is_dead(path) {
        return Ok(false);
    }
    // The last component cannot be resolved while it is dead; what leads to it can.
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
    fn what_is_no_dead_mount_is_left_alone() {
        assert!(!is_dead(Path::new("/")));
        assert!(!unmount_dead(Path::new("/proc")).unwrap());
    }
}
