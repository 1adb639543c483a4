//! A mount that is made outside of the tree, and takes a place in it when it can answer.
//!
//! So it can take the place of another without a moment in between: it is put beneath that one (Linux 6.5), which is
//! then detached. Who has something open in the other keeps it; whoever comes later finds this one.

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

/// Flags that belong to the one mount; the others belong to the filesystem.
const ATTRIBUTES: [(MountFlags, MountAttrFlags); 8] = [
    (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
    (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
    (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
    (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    (MountFlags::NODIRATIME, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
    // Of these three the kernel takes one; they come with the strongest last.
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

/// The device, and the mount.
pub(super) fn make(spec: &MountSpec, mode: u32) -> Result<(OwnedFd, OwnedFd), MountError> {
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

/// Puts a mount under the topmost one.
///
/// # Errors
/// `EINVAL` where that cannot be: the kernel is older, or the other mount is locked.
pub(super) fn put_beneath(tree: &OwnedFd, path: &Path) -> Result<(), Errno> {
    put(tree, path, MoveMountFlags::MOVE_MOUNT_BENEATH)
}

/// Puts a mount on top of whatever is there.
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
    fn one_way_of_keeping_times() {
        assert_eq!(
            attributes(MountFlags::RELATIME),
            MountAttrFlags::empty(),
            "it is what the kernel does anyway"
        );
        let both = attributes(MountFlags::RELATIME | MountFlags::NOATIME | MountFlags::NODEV);
        assert_eq!(both, MountAttrFlags::MOUNT_ATTR_NOATIME | MountAttrFlags::MOUNT_ATTR_NODEV);
        let all = attributes(MountFlags::NOATIME | MountFlags::STRICTATIME | MountFlags::NODIRATIME);
        assert_eq!(all, MountAttrFlags::MOUNT_ATTR_STRICTATIME | MountAttrFlags::MOUNT_ATTR_NODIRATIME);
    }
}
