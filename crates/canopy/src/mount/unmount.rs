//! Unmounting, with errors that say how to fix them.

use crate::error::Error;
use canopy_fuse::mount::{unmount_path, unmount_served};
use rustix::io::Errno;
use std::io;
use std::path::Path;

/// Unmounts the topmost mount at this path. If `lazy`, it disappears at once and ends when it is no longer in use.
/// Without privileges, fusermount3 unmounts it.
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<(), Error> {
    explain(mountpoint, unmount_path(mountpoint, lazy))
}

/// Unmounts the pool that this process serves. A process of its own does it, so that this one can always end.
pub fn unmount_own(mountpoint: &Path, lazy: bool) -> Result<(), Error> {
    explain(mountpoint, unmount_served(mountpoint, lazy))
}

fn explain(mountpoint: &Path, unmounted: io::Result<()>) -> Result<(), Error> {
    let failed = |why: String| Error::Unmount { path: mountpoint.to_owned(), why };
    unmounted.map_err(|error| match Errno::from_io_error(&error) {
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
