//! The modes that the pool shows if the kernel checks permissions by mode alone, and branches have ACLs.

use crate::dir::symlinks::Symlinks;
use crate::pool::{Op, Pool};
use canopy_branch::branch::Branch;
use canopy_branch::fs::acl::{ACCESS, PermissionCheck, rights_of_all};
use canopy_branch::fs::stat::Attr;
use canopy_branch::fs::xattr;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// The file whose mode is shown.
#[derive(Clone, Copy)]
pub(crate) enum At<'a> {
    Opened(BorrowedFd<'a>),
    Directory(BorrowedFd<'a>),
    Named(Symlinks, BorrowedFd<'a>, &'a [u8]),
}

/// Sets how permissions are checked. Must be called before the first request.
pub fn set_permission_check(pool: &Pool, check: PermissionCheck) {
    pool.acls.by_mode.store(check == PermissionCheck::Mode, Ordering::Relaxed);
    pool.acls.by_acl.store(check == PermissionCheck::Acl, Ordering::Relaxed);
}

/// Returns true if a file has been found with an ACL that the kernel ignores, because it checks the mode alone.
pub fn has_unheeded_acls(pool: &Pool) -> bool {
    pool.acls.unheeded.load(Ordering::Relaxed)
}

/// Returns true if the kernel reads ACLs and checks permissions by them.
pub(crate) fn kernel_checks_acls(op: &Op<'_>) -> bool {
    op.acls.by_acl.load(Ordering::Relaxed)
}

/// Reduces a mode to what the file's ACL grants to every user, if the kernel checks permissions by mode alone.
pub(crate) fn mask_mode(op: &Op<'_>, branch: &Branch, attr: &mut Attr, at: At<'_>) {
    const OTHERS: u32 = 0o077;
    let needs_mask = op.acls.by_mode.load(Ordering::Relaxed) && attr.mode & OTHERS != 0;
    let never_has_acl = attr.is_symlink() || !branch.has_acls && attr.dev == branch.dev;
    if !needs_mask || never_has_acl {
        return;
    }
    let mut buffer = [0; 1024];
    let longer;
    let list = match read(at, &mut buffer) {
        Ok(length) => &buffer[..length],
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return,
        Err(Errno::RANGE) => {
            let mut all = vec![0; 65536];
            let length = read(at, &mut all).unwrap_or_default();
            all.truncate(length);
            longer = all;
            &longer[..]
        }
        // If the ACL cannot be read, the mode grants nothing to group and others.
        Err(_) => &[],
    };
    let (group, others) = rights_of_all(list).unwrap_or_default();
    attr.mode &= !OTHERS | group << 3 | others;
    op.acls.unheeded.store(true, Ordering::Relaxed);
}

fn read(at: At<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    match at {
        At::Opened(fd) => xattr::get(fd, ACCESS, buffer),
        At::Directory(fd) => xattr::get_at(fd, b".", ACCESS, buffer),
        At::Named(follow, dir, name) if follow.is_plain() => xattr::get_at(dir, name, ACCESS, buffer),
        At::Named(follow, dir, name) => read(At::Opened(follow.pin(dir, name)?.as_fd()), buffer),
    }
}
