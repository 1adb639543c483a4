//! Other flags for what is mounted.

use std::path::Path;

use rustix::io::Errno;

use super::flags::{ATIME_FLAGS, MountFlags, bits};

/// Gives what is mounted at `path`, topmost, these flags and no others, and so its filesystem. What can only be said at
/// the mount stays as it is (`dirsync`).
///
/// # Errors
/// `EBUSY` when it is to be read-only and something is open for writing; `EPERM`.
pub fn remount(path: &Path, flags: MountFlags) -> Result<(), Errno> {
    // Without any of them the kernel keeps what it has.
    let flags = if flags.intersects(ATIME_FLAGS) { flags } else { flags | MountFlags::RELATIME };
    rustix::mount::mount_remount(path, bits(flags), c"")
}
