//! Private copies of mounts: open_tree(2) and mount_setattr(2). rustix does not wrap the latter.

use std::ffi::c_uint;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use crate::errno::last_errno;
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, OpenTreeFlags, open_tree};

/// Returns a detached mount (Linux 5.12) with `dir` as its root, outside of every mount namespace. Of the access time
/// flags it has exactly `times`. Mounts below the directory, present and future, are not part of it. It keeps the
/// filesystem in use, but not the mount that the directory is on.
///
/// # Errors
/// `EPERM` without the right to mount; `EINVAL` for a mount of another namespace or a locked mount.
pub fn clone_with_atime(dir: BorrowedFd<'_>, times: MountAttrFlags) -> Result<OwnedFd, Errno> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let copy = open_tree(dir, c"", flags)?;
    let all = MountAttrFlags::MOUNT_ATTR__ATIME | MountAttrFlags::MOUNT_ATTR_NODIRATIME;
    let attr = libc::mount_attr {
        attr_set: (times & all).bits().into(),
        attr_clr: all.bits().into(),
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path is a C string, and the kernel reads `size_of::<mount_attr>()` bytes of the structure.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            copy.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH as c_uint,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    match done {
        0 => Ok(copy),
        _ => Err(last_errno()),
    }
}
