//! Copying metadata: owner, mode, extended attributes, ACLs, flags, times.

use super::chattr::{self, Moment};
use crate::fs::stat::{self, Attr};
use crate::fs::{acl, pinned, xattr};
use canopy_base::error::{is_full, is_illness};
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, Mode, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

/// Copies the metadata of a directory, without its times. Leaves out what the target's filesystem does not support.
///
/// Errors: also those of a disk that fails, or has no room for an ACL. Without its ACL, or with one that it inherits, a directory
/// would admit others.
pub fn copy_metadata(source: BorrowedFd<'_>, target: BorrowedFd<'_>, attr: &Attr) -> Result<(), Errno> {
    copy_owner(target, attr)?;
    match copy_xattrs(source, target) {
        Err(errno) if is_illness(errno) => return Err(errno),
        Err(errno) if is_full(errno) => {
            for acl in [acl::ACCESS, acl::DEFAULT] {
                copy_xattr(source, target, acl)
                    .or_else(|why| if is_full(why) { Err(why) } else { Ok(()) })?;
            }
        }
        // The filesystem takes not all of them.
        Ok(()) | Err(_) => {}
    }
    copy_mode_and_flags(source, target, attr)
}

/// As [`copy_metadata`], without flags of chattr(1): nothing could be put into an immutable directory.
pub fn copy_owner_mode_and_xattrs(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    attr: &Attr,
) -> Result<(), Errno> {
    copy_owner(target, attr)?;
    let _ = copy_xattrs(source, target);
    pinned::chmod(target, Mode::from_raw_mode(attr.mode & 0o7777))
}

/// What becomes of a file of which the target's filesystem cannot store everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Losses {
    /// It stays where it is (`EOPNOTSUPP`).
    Refused,
    /// It moves, and loses that.
    Accepted,
}

impl Losses {
    fn judge(self, result: Result<(), Errno>) -> Result<(), Errno> {
        match (self, result) {
            (Losses::Accepted, Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL)) => Ok(()),
            (_, other) => other,
        }
    }
}

/// Copies the metadata of a file, with its times. Fails if the target's filesystem does not keep an attribute, unless that
/// is accepted: a file that would lose something stays where it is. Flags of chattr(1) that the target does not support are
/// left out: each filesystem has its own.
pub(crate) fn copy_file_metadata(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    attr: &Attr,
    losses: Losses,
) -> Result<(), Errno> {
    keep_owner(target, attr, losses)?;
    losses.judge(copy_xattrs(source, target))?;
    losses.judge(copy_mode_and_flags(source, target, attr))?;
    // Some filesystems say yes and change nothing.
    if losses == Losses::Refused && (stat::of(target)?.mode ^ attr.mode) & 0o7777 != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    losses.judge(set_times(target, attr))
}

/// Gives a copy of a file the metadata that the file has now, but for one attribute. Changes nothing that is the same already.
pub fn level_metadata(source: BorrowedFd<'_>, target: BorrowedFd<'_>, except: &[u8]) -> Result<(), Errno> {
    let attr = stat::of(source)?;
    keep_owner(target, &attr, Losses::Refused)?;
    let wanted = list_xattrs(source)?;
    for surplus in list_xattrs(target)? {
        if belongs_to_file(&surplus) && surplus != except && !wanted.contains(&surplus) {
            xattr::remove(target, &surplus)?;
        }
    }
    for name in wanted.iter().filter(|name| belongs_to_file(name) && *name != except) {
        if xattr::value(target, name).ok() != Some(xattr::value(source, name)?) {
            copy_xattr(source, target, name)?;
        }
    }
    if (stat::of(target)?.mode ^ attr.mode) & 0o7777 != 0 {
        pinned::chmod(target, Mode::from_raw_mode(attr.mode & 0o7777))?;
    }
    chattr::copy(source, target, false, Moment::Last);
    let now = stat::of(target)?;
    if (now.mode ^ attr.mode) & 0o7777 != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if now.mtime == attr.mtime { Ok(()) } else { set_times(target, &attr) }
}

/// Copies the metadata of a symlink, with its times. Fails as for a file.
pub(crate) fn copy_link_metadata(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    attr: &Attr,
    losses: Losses,
) -> Result<(), Errno> {
    keep_owner(target, attr, losses)?;
    losses.judge(copy_xattrs(source, target))?;
    losses.judge(set_times(target, attr))
}

/// Gives a new, private file what it must have before its data are copied: the flags that say how these are stored, and its
/// owner. Finds out whether the filesystem keeps owners and modes: so a large file that has to stay is not copied first.
pub(crate) fn prepare_for_data(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    attr: &Attr,
    losses: Losses,
) -> Result<(), Errno> {
    chattr::copy(source, target, false, Moment::BeforeData);
    keep_owner(target, attr, losses)?;
    let mode = stat::of(target)?.mode & 0o7777;
    // It was created with 0600, of which a default ACL may take something away.
    let has_own_idea = mode & !0o600 != 0;
    if losses == Losses::Refused && has_own_idea && mode != attr.mode & 0o7777 {
        Err(Errno::OPNOTSUPP)
    } else {
        Ok(())
    }
}

/// Copies the owner of a new file, and looks whether that has worked.
fn keep_owner(target: BorrowedFd<'_>, attr: &Attr, losses: Losses) -> Result<(), Errno> {
    let copied = copy_owner(target, attr);
    if losses == Losses::Accepted {
        return losses.judge(copied);
    }
    copied?;
    let now = stat::of(target)?;
    if (now.uid, now.gid) == (attr.uid, attr.gid) { Ok(()) } else { Err(Errno::OPNOTSUPP) }
}

fn copy_owner(target: BorrowedFd<'_>, attr: &Attr) -> Result<(), Errno> {
    let now = stat::of(target)?;
    if (now.uid, now.gid) == (attr.uid, attr.gid) {
        return Ok(());
    }
    let owner = (rustix::fs::Uid::from_raw(attr.uid), rustix::fs::Gid::from_raw(attr.gid));
    rustix::fs::chownat(target, c"", Some(owner.0), Some(owner.1), AtFlags::EMPTY_PATH)
}

fn copy_mode_and_flags(source: BorrowedFd<'_>, target: BorrowedFd<'_>, attr: &Attr) -> Result<(), Errno> {
    // After the owner, because chown clears setgid, and after the ACL, which contains the group's bits.
    pinned::chmod(target, Mode::from_raw_mode(attr.mode & 0o7777))?;
    chattr::copy(source, target, attr.is_dir(), Moment::Last);
    Ok(())
}

/// Tries all attributes; returns the first failure.
fn copy_xattrs(source: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), Errno> {
    let wanted = list_xattrs(source)?;
    let mut result = Ok(());
    // A new file inherits the default ACL of its directory, whether the original has one or not.
    for inherited in list_xattrs(target)? {
        if belongs_to_file(&inherited) && !wanted.contains(&inherited) {
            result = result.and(xattr::remove(target, &inherited));
        }
    }
    for name in wanted {
        let copied = copy_xattr(source, target, &name);
        if belongs_to_file(&name) {
            result = result.and(copied);
        }
    }
    result
}

fn copy_xattr(source: BorrowedFd<'_>, target: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let value = xattr::value(source, name)?.ok_or(Errno::NODATA)?;
    xattr::set(target, name, &value, XattrFlags::empty())
}

/// Labels of security modules belong to the machine: it may refuse them, or have set its own. What btrfs calls properties, such
/// as compression, is a flag of chattr(1) by another name, and no other filesystem takes it.
fn belongs_to_file(name: &[u8]) -> bool {
    !(name.starts_with(b"security.") || name.starts_with(b"btrfs.")) || name == b"security.capability"
}

/// XFS lists ACLs a second time under names of its own. A program that compares attributes with those of another disk
/// removes these as surplus (rsync -X does), and on that branch the ACL goes with them.
pub fn is_xfs_acl_alias(name: &[u8]) -> bool {
    name.starts_with(b"trusted.SGI_ACL_")
}

fn list_xattrs(file: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    // Most files have none. The kernel allocates as much as it is given.
    let mut names = match xattr::list(file, &mut []) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Ok(_) => vec![0; xattr::MAX],
        Err(errno) => return Err(errno),
    };
    let len = xattr::list(file, &mut names)?;
    let names = names[..len].split(|&b| b == 0);
    Ok(names.filter(|name| !name.is_empty() && !is_xfs_acl_alias(name)).map(<[u8]>::to_vec).collect())
}

pub fn set_times(fd: BorrowedFd<'_>, attr: &Attr) -> Result<(), Errno> {
    let spec = |t: stat::Time| Timespec { tv_sec: t.sec, tv_nsec: i64::from(t.nsec) as _ };
    let times = Timestamps { last_access: spec(attr.atime), last_modification: spec(attr.mtime) };
    pinned::set_times(fd, &times)
}
