//! Unmounting, with errors that say how to fix them.

use crate::error::Error;
use canopy_fuse::mount::unmount_path;
use rustix::io::Errno;
use std::path::Path;

/// Unmounts the topmost mount at this path. If `lazy`, it disappears at once and ends when it is no longer in use.
/// Without privileges, fusermount3 unmounts it.
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<(), Error> {
    let failed = |why: String| Error::Unmount { path: mountpoint.to_owned(), why };
    unmount_path(mountpoint, lazy).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => Error::Busy(mountpoint.to_owned()),
        Some(Errno::INVAL) => Error::NotMounted(mountpoint.to_owned()),
        Some(Errno::PERM) => failed("only root and the user who mounted it can do that".into()),
        Some(errno) => failed(errno.to_string()),
        None => match error.to_string() {
            text if text.contains("busy") => Error::Busy(mountpoint.to_owned()),
            text => failed(text),
        },
    })
}
