//! Unmounting, with errors that name the mend.

use crate::error::Error;
use canopy_fuse::mount::unmount_path;
use rustix::io::Errno;
use std::path::Path;

/// Ends the mount at this place (the topmost, if there are several). Lazy: it disappears at once,
/// and ends when nobody uses it any more. Without the privilege, fusermount3 is asked.
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<(), Error> {
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
