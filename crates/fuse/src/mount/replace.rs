//! A detached mount, which is attached once its server can answer.
//!
//! It can replace another mount without a gap: it is moved beneath the other mount (Linux 6.5), which is then detached.
//! Files that are open on the other mount stay usable, and later lookups reach the new mount.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use canopy_sys::fuse::dev;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};

use super::error::MountError;
use super::flags::MountFlags;
use super::spec::{MountSpec, kernel_options};

/// Flags of the mount. The others are flags of the filesystem.
const ATTRIBUTES: [(MountFlags, MountAttrFlags); 8] = [
    (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
    (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
    (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
    (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    (MountFlags::NODIRATIME, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
    // The kernel accepts one of these three. The last one wins.
    (MountFlags::RELATIME, MountAttrFlags::MOUNT_ATTR_RELATIME),
    (MountFlags::NOATIME, MountAttrFlags::MOUNT_ATTR_NOATIME),
    (MountFlags::STRICTATIME, MountAttrFlags::MOUNT_ATTR_STRICTATIME),
];
const OF_FILESYSTEM: [(MountFlags, &str); 4] = [
    (MountFlags::RDONLY, "ro"),
    (MountFlags::SYNCHRONOUS, "sync"),
    (MountFlags::DIRSYNC, "dirsync"),
    (MountFlags::LAZYTIME, "lazytime"),
];

/// Creates a detached mount, and returns the device and the root of the mount, which is unmounted when that is closed. `mode`
/// has the type of the root. The mountpoint is not used.
///
/// # Errors
/// [`MountError::Device`]; [`MountError::Mount`] without the right to mount, or before Linux 5.2.
pub fn mount_detached(spec: &MountSpec, mode: u32) -> Result<(OwnedFd, OwnedFd), MountError> {
    let device = dev::open().map_err(MountError::Device)?;
    let tree = configure(spec, device.as_raw_fd(), mode)
        .map_err(|errno| MountError::Mount { path: spec.mountpoint.clone(), error: errno.into() })?;
    Ok((device, tree))
}

fn configure(spec: &MountSpec, device: i32, mode: u32) -> Result<OwnedFd, Errno> {
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", spec.fsname.as_str())?;
    fsconfig_set_string(&context, "subtype", spec.subtype.as_str())?;
    for option in kernel_options(spec, device, mode) {
        match option.split_once('=') {
            Some((name, value)) => fsconfig_set_string(&context, name, value)?,
            None => fsconfig_set_flag(&context, option.as_str())?,
        }
    }
    for (_, name) in OF_FILESYSTEM.iter().filter(|(flag, _)| spec.flags.contains(*flag)) {
        fsconfig_set_flag(&context, *name)?;
    }
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(spec.flags))
}

fn attributes(flags: MountFlags) -> MountAttrFlags {
    let times = MountAttrFlags::MOUNT_ATTR__ATIME;
    ATTRIBUTES.iter().filter(|(flag, _)| flags.contains(*flag)).fold(
        MountAttrFlags::empty(),
        |all, (_, bit)| {
            if times.intersects(*bit) { (all - times) | *bit } else { all | *bit }
        },
    )
}

/// Moves a mount beneath the topmost one.
///
/// # Errors
/// `EINVAL` when the kernel is older than 6.5 or the other mount is locked.
pub(super) fn put_beneath(tree: &OwnedFd, path: &Path) -> Result<(), Errno> {
    put(tree, path, MoveMountFlags::MOVE_MOUNT_BENEATH)
}

/// Moves a mount on top of the mount point.
pub(super) fn put_over(tree: &OwnedFd, path: &Path) -> Result<(), Errno> {
    put(tree, path, MoveMountFlags::empty())
}

fn put(tree: &OwnedFd, path: &Path, how: MoveMountFlags) -> Result<(), Errno> {
    move_mount(tree, c"", CWD, path, how | MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_access_time_attribute_is_set() {
        assert_eq!(
            attributes(MountFlags::RELATIME),
            MountAttrFlags::empty(),
            "relatime is the kernel's default"
        );
        let both = attributes(MountFlags::RELATIME | MountFlags::NOATIME | MountFlags::NODEV);
        assert_eq!(both, MountAttrFlags::MOUNT_ATTR_NOATIME | MountAttrFlags::MOUNT_ATTR_NODEV);
        let all = attributes(MountFlags::NOATIME | MountFlags::STRICTATIME | MountFlags::NODIRATIME);
        assert_eq!(all, MountAttrFlags::MOUNT_ATTR_STRICTATIME | MountAttrFlags::MOUNT_ATTR_NODIRATIME);
    }
}
