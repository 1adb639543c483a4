//! Modes as they are shown where the kernel judges by them alone.

use crate::branch::Branch;
use crate::dir::symlinks::Symlinks;
use crate::fs::acl::{ACCESS, PermissionCheck, of_entry, rights_of_all};
use crate::fs::beneath::ProcPath;
use crate::fs::stat::Attr;
use crate::pool::Pool;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// Where the file is whose mode is shown.
#[derive(Clone, Copy)]
pub(crate) enum At<'a> {
    Opened(BorrowedFd<'a>),
    Directory(BorrowedFd<'a>),
    Named(Symlinks, BorrowedFd<'a>, &'a [u8]),
}

impl Pool {
    /// To be told before there are callers.
    pub fn set_permission_check(&self, judge: PermissionCheck) {
        self.acls.by_mode.store(judge == PermissionCheck::Mode, Ordering::Relaxed);
        self.acls.by_acl.store(judge == PermissionCheck::Acl, Ordering::Relaxed);
    }

    /// Has an ACL been met though the kernel goes by modes?
    pub fn has_unheeded_acls(&self) -> bool {
        self.acls.unheeded.load(Ordering::Relaxed)
    }

    /// Does the kernel ask for ACLs, to judge by them?
    pub(crate) fn kernel_checks_acls(&self) -> bool {
        self.acls.by_acl.load(Ordering::Relaxed)
    }

    /// Leaves of a mode what an ACL grants to everybody, where the kernel goes by the mode.
    pub(crate) fn mask_mode(&self, branch: &Branch, attr: &mut Attr, at: At<'_>) {
        const OTHERS: u32 = 0o077;
        let judged = self.acls.by_mode.load(Ordering::Relaxed) && attr.mode & OTHERS != 0;
        let never = attr.is_symlink() || !branch.has_acls && attr.dev == branch.dev;
        if !judged || never {
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
            // What cannot be told is granted to nobody.
            Err(_) => &[],
        };
        let (group, others) = rights_of_all(list).unwrap_or_default();
        attr.mode &= !OTHERS | group << 3 | others;
        self.acls.unheeded.store(true, Ordering::Relaxed);
    }
}

fn read(at: At<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    match at {
        At::Opened(fd) => match rustix::fs::fgetxattr(fd, ACCESS, &mut *buffer) {
            // Pinned only.
            Err(Errno::BADF) => rustix::fs::getxattr(ProcPath::of(fd).as_bytes(), ACCESS, buffer),
            other => other,
        },
        At::Directory(fd) => of_entry(fd, b".", ACCESS, buffer),
        At::Named(follow, dir, name) if follow.is_plain() => of_entry(dir, name, ACCESS, buffer),
        At::Named(follow, dir, name) => read(At::Opened(follow.pin(dir, name)?.as_fd()), buffer),
    }
}
