//! Unmounting, by umount2(2) or fusermount.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use canopy_sys::process::child;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::fusermount;

/// Unmounts the topmost mount at `path` with umount2(2), or with fusermount if that is not permitted.
///
/// # Errors
/// `EINVAL` when nothing is mounted there, `EBUSY` when it is in use and `lazy` is not set, `EPERM`.
pub fn unmount_path(path: &Path, lazy: bool) -> io::Result<()> {
    match rustix::mount::unmount(path, flags(lazy)) {
        Err(Errno::PERM) => fusermount::unmount(path, lazy),
        other => Ok(other?),
    }
}

/// Unmounts as [`unmount_path`] does, but in a child process. For the process that serves the mount, which the kernel may
/// otherwise never let end ([`child`]).
///
/// # Errors
/// Those of [`unmount_path`].
pub fn unmount_served(path: &Path, lazy: bool) -> io::Result<()> {
    match child::unmount(&c_path(path)?, flags(lazy)) {
        Err(Errno::PERM) => fusermount::unmount(path, lazy),
        other => Ok(other?),
    }
}

/// Writes the dirty pages of a mount that this process serves to the server. In a child process, because the directory that
/// it opens may become the last user of the mount.
///
/// # Errors
/// Those of open(2) and syncfs(2).
pub fn sync_served(path: &Path) -> io::Result<()> {
    Ok(child::sync_filesystem(&c_path(path)?)?)
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn flags(lazy: bool) -> UnmountFlags {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazy);
    flags
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
