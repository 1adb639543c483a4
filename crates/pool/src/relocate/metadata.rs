//! Copying metadata: owner, mode, extended attributes, ACLs, flags, times.

use crate::fs::beneath::{self, ProcPath};
use crate::fs::stat::{self, Attr};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

/// Copies the metadata of a directory, without its times. Leaves out what the target's filesystem does not support.
pub(crate) fn copy_metadata(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    attr: &Attr,
) -> Result<(), Errno> {
    copy_owner(target, attr)?;
    let _ = copy_xattrs(source, target);
    copy_mode_and_flags(source, target, attr)
}

/// Copies the metadata of a file, with its times. Fails if the target's filesystem does not support an attribute: a
/// file that would lose something stays where it is. Flags of chattr(1) that the target does not support are left out:
/// each filesystem has its own.
pub(crate) fn copy_file_metadata(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    attr: &Attr,
) -> Result<(), Errno> {
    copy_owner(target, attr)?;
    copy_xattrs(source, target)?;
    copy_mode_and_flags(source, target, attr)?;
    set_times(target, attr)
}

/// Copies the metadata of a symlink, with its times. Fails if the target's filesystem does not support an attribute.
pub(crate) fn copy_link_metadata(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    attr: &Attr,
) -> Result<(), Errno> {
    copy_owner(target, attr)?;
    copy_xattrs(source, target)?;
    set_times(target, attr)
}

fn copy_owner(target: BorrowedFd<'_>, attr: &Attr) -> Result<(), Errno> {
    let owner = (rustix::fs::Uid::from_raw(attr.uid), rustix::fs::Gid::from_raw(attr.gid));
    let owned = rustix::fs::chownat(target, c"", Some(owner.0), Some(owner.1), AtFlags::EMPTY_PATH);
    let now = stat::of(target)?;
    if (now.uid, now.gid) != (attr.uid, attr.gid) {
        owned?;
    }
    Ok(())
}

fn copy_mode_and_flags(source: BorrowedFd<'_>, target: BorrowedFd<'_>, attr: &Attr) -> Result<(), Errno> {
    // After the owner, because chown clears setgid, and after the ACL, which contains the group's bits.
    rustix::fs::chmod(ProcPath::of(target).as_bytes(), Mode::from_raw_mode(attr.mode & 0o7777))?;
    copy_flags(source, target, attr);
    Ok(())
}

/// Tries all attributes; returns the first failure.
fn copy_xattrs(source: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), Errno> {
    let (source, target) = (ProcPath::of(source), ProcPath::of(target));
    let (source, target) = (source.as_bytes(), target.as_bytes());
    let wanted = list_xattrs(source)?;
    let mut result = Ok(());
    // A new file inherits the default ACL of its directory, whether the original has one or not.
    for inherited in list_xattrs(target)? {
        if belongs_to_file(&inherited) && !wanted.contains(&inherited) {
            result = result.and(rustix::fs::removexattr(target, inherited.as_slice()));
        }
    }
    let mut value = vec![0u8; 65536];
    for name in wanted {
        let copied = match rustix::fs::getxattr(source, name.as_slice(), value.as_mut_slice()) {
            Ok(len) => rustix::fs::setxattr(target, name.as_slice(), &value[..len], XattrFlags::empty()),
            Err(errno) => Err(errno),
        };
        if belongs_to_file(&name) {
            result = result.and(copied);
        }
    }
    result
}

/// Labels of security modules belong to the machine: it may refuse them, or have set its own.
fn belongs_to_file(name: &[u8]) -> bool {
    !name.starts_with(b"security.") || name == b"security.capability"
}

/// XFS lists ACLs a second time under names of its own. A program that compares attributes with those of another disk
/// removes these as surplus (rsync -X does), and on that branch the ACL goes with them.
pub(crate) fn is_xfs_acl_alias(name: &[u8]) -> bool {
    name.starts_with(b"trusted.SGI_ACL_")
}

fn list_xattrs(path: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = vec![0u8; 65536];
    let len = match rustix::fs::listxattr(path, names.as_mut_slice()) {
        Err(Errno::OPNOTSUPP) => 0,
        other => other?,
    };
    let names = names[..len].split(|&b| b == 0);
    Ok(names.filter(|name| !name.is_empty() && !is_xfs_acl_alias(name)).map(<[u8]>::to_vec).collect())
}

/// Copies the chattr flags, except for the two that forbid further changes of the copy.
fn copy_flags(source: BorrowedFd<'_>, target: BorrowedFd<'_>, attr: &Attr) {
    use canopy_sys::ioctl::inode_flags::{FS_APPEND_FL, FS_IMMUTABLE_FL, FlagIoctl, flag_ioctl};
    let kind = if attr.is_dir() { OFlags::DIRECTORY } else { OFlags::empty() };
    let open = |fd| beneath::reopen(fd, OFlags::RDONLY | OFlags::NONBLOCK | kind);
    let (Ok(source), Ok(target)) = (open(source), open(target)) else { return };
    let (mut wanted, mut present) = ([0u8; 28], [0u8; 28]);
    if flag_ioctl(source.as_fd(), FlagIoctl::GetFlags, &mut wanted).is_err()
        || flag_ioctl(target.as_fd(), FlagIoctl::GetFlags, &mut present).is_err()
    {
        return;
    }
    // The flags that chattr(1) lets a user change (FS_FL_USER_MODIFIABLE in include/uapi/linux/fs.h). The others,
    // such as ext4's extents flag, describe the file's own layout.
    const MODIFIABLE: u32 = 0x0003_80ff;
    let word = |buffer: &[u8; 28]| u32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
    let chosen = word(&wanted) & MODIFIABLE & !(FS_IMMUTABLE_FL | FS_APPEND_FL);
    let kept = word(&present) & !MODIFIABLE;
    let put = |flags: u32| {
        let mut buffer = present;
        buffer[..4].copy_from_slice(&flags.to_ne_bytes());
        flag_ioctl(target.as_fd(), FlagIoctl::SetFlags, &mut buffer)
    };
    if kept | chosen == word(&present) || put(kept | chosen).is_ok() {
        return;
    }
    // The target's filesystem lacks one of the flags: set those that it supports.
    let mut flags = kept;
    for bit in (0..u32::BITS).map(|shift| 1 << shift).filter(|bit| chosen & bit != 0) {
        if put(flags | bit).is_ok() {
            flags |= bit;
        }
    }
}

pub(crate) fn set_times(fd: BorrowedFd<'_>, attr: &Attr) -> Result<(), Errno> {
    let spec = |t: stat::Time| Timespec { tv_sec: t.sec, tv_nsec: i64::from(t.nsec) as _ };
    let times = Timestamps { last_access: spec(attr.atime), last_modification: spec(attr.mtime) };
    rustix::fs::utimensat(rustix::fs::CWD, ProcPath::of(fd).as_bytes(), &times, AtFlags::empty())
}

/// Runs `change` and restores the directory's times: the change concerns names that the pool does not show.
pub(crate) fn with_times_kept<T>(
    dir: BorrowedFd<'_>,
    change: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let before = stat::of(dir)?;
    let changed = change();
    let _ = set_times(dir, &before);
    changed
}
