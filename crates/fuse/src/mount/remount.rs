//! Changing the flags of a mount.

use std::path::Path;

use rustix::io::Errno;

use super::flags::{ATIME_FLAGS, MountFlags, bits};

/// Sets the flags of the topmost mount at `path` and of its filesystem to exactly `flags`. Flags that can be set only when
/// mounting (`dirsync`) do not change.
///
/// # Errors
/// `EBUSY` when making it read-only while a file is open for writing; `EPERM`.
pub fn remount(path: &Path, flags: MountFlags) -> Result<(), Errno> {
    // Without any of these flags the kernel keeps the current one.
    let flags = if flags.intersects(ATIME_FLAGS) { flags } else { flags | MountFlags::RELATIME };
    rustix::mount::mount_remount(path, bits(flags), c"")
}
