//! Extended attributes.

use crate::branch::health::OpKind;
use crate::branch::{Branch, Branches};
use crate::config::{Func, XattrMode};
use crate::dir::merged::MergedDir;
use crate::error::{Error, Result};
use crate::fs::acl::{ACCESS, is_acl};
use crate::fs::beneath::ProcPath;
use crate::fs::stat::{S_ISGID, of};
use crate::ids::{Caller, NodeId};
use crate::node::Node;
use crate::pool::Pool;
use crate::relocate::is_xfs_acl_alias;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Mode, XattrFlags};
use rustix::io::Errno;
use std::sync::Arc;

impl Pool {
    /// Reads an attribute into `buffer`, or tells its size where the buffer is empty.
    ///
    /// Errors: `ENODATA`, `ERANGE`, `EOPNOTSUPP` from the branch.
    pub fn getxattr(&self, id: NodeId, name: &[u8], buffer: &mut [u8]) -> Result<usize> {
        // The kernel judges by what it reads.
        let judged = self.kernel_checks_acls() && is_acl(name);
        match self.xattr_allowed(name) {
            // After ENOSYS it would never ask for an ACL again, and take the mask for the group's rights.
            Err(Error::Unsupported) if self.kernel_checks_acls() && !judged => {
                return Err(Errno::OPNOTSUPP.into());
            }
            refused if !judged => refused?,
            _ => {}
        }
        match self.read_xattr(id, name, buffer) {
            // A filesystem without ACLs; the kernel would let nobody in but the owner.
            Err(Error::Branch(Errno::OPNOTSUPP)) if judged => Err(Error::NoAttribute),
            other => other,
        }
    }

    fn read_xattr(&self, id: NodeId, name: &[u8], buffer: &mut [u8]) -> Result<usize> {
        if is_xfs_acl_alias(name) {
            return Err(Error::NoAttribute);
        }
        let node = self.nodes.get(id)?;
        let _held = self.tree.shared();
        // The kernel asks before the first write to a file: mostly one that is open, and needs no way to it.
        if let Some(open) = node.opened() {
            let place = open.location();
            match get(&*place.fd, name, buffer) {
                // Pinned only.
                Err(Errno::BADF) => {}
                result => return Ok(result.map_err(|errno| place.branch.record_error(errno, OpKind::Read))?),
            }
        }
        let branches = self.branches.load();
        // An ACL goes with the mode, whose group's bits are its mask.
        let func = if is_acl(name) { Func::Getattr } else { Func::Getxattr };
        self.ask(&branches, &node, func, |fd| {
            let path = ProcPath::of(fd);
            match buffer.is_empty() {
                true => rustix::fs::getxattr_query(path.as_bytes(), name),
                false => rustix::fs::getxattr(path.as_bytes(), name, buffer),
            }
        })
    }

    /// The names, each with its terminating NUL, or room enough for them where the buffer is empty.
    ///
    /// `trusted.*` is listed for those alone who may read it (xattr(7)): who copies a file fails over a name that
    /// is listed and cannot be read. The kernel leaves that to each filesystem.
    pub fn listxattr(&self, caller: &Caller, id: NodeId, buffer: &mut [u8]) -> Result<usize> {
        match self.config().xattr {
            XattrMode::Passthrough => {}
            XattrMode::NoAttr => return Ok(0),
            XattrMode::NoSys => return Err(Error::Unsupported),
        }
        let _held = self.tree.shared();
        let branches = self.branches.load();
        self.ask(&branches, &self.nodes.get(id)?, Func::Listxattr, |fd| {
            let path = ProcPath::of(fd);
            if buffer.is_empty() {
                return rustix::fs::listxattr_query(path.as_bytes());
            }
            let length = rustix::fs::listxattr(path.as_bytes(), &mut *buffer)?;
            let mut sees_trusted = None;
            Ok(retain(&mut buffer[..length], |name| {
                let hidden = name.starts_with(b"trusted.")
                    && !*sees_trusted.get_or_insert_with(|| caller.may_read_trusted());
                !hidden && !is_xfs_acl_alias(name)
            }))
        })
    }

    /// Sets an attribute on every copy. `flags` are those of setxattr(2); `kill_sgid` comes with an access
    /// ACL by somebody who may not keep setgid (`FUSE_SETXATTR_ACL_KILL_SGID`).
    ///
    /// Errors: `EPERM` for `system.*` by anyone but the owner and who has `CAP_FOWNER`.
    pub fn setxattr(
        &self,
        caller: &Caller,
        id: NodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_sgid: bool,
    ) -> Result<()> {
        self.xattr_allowed(name)?;
        if is_xfs_acl_alias(name) {
            // Copied from an XFS disk; the list itself comes under its own name.
            return Ok(());
        }
        let flags = XattrFlags::from_bits(flags).ok_or(Error::Invalid)?;
        let _held = self.tree.shared();
        let branches = self.branches.load();
        self.on_copies(&branches, &self.nodes.get(id)?, Func::Setxattr, None, None, |fd| {
            may_write(caller, name, fd)?;
            let path = ProcPath::of(fd);
            rustix::fs::setxattr(path.as_bytes(), name, value, flags)?;
            // The kernel tells it where it heeds ACLs; the branch lets the daemon keep the bit.
            let unsaid = name == ACCESS && !self.kernel_checks_acls();
            if !kill_sgid && !unsaid {
                return Ok(());
            }
            let attr = of(fd)?;
            let keeps = || caller.is_in_group(attr.gid) || caller.keeps_set_id(&attr);
            if attr.mode & S_ISGID != 0 && (kill_sgid || !keeps()) {
                let mode = Mode::from_raw_mode(attr.mode & 0o7777 & !S_ISGID);
                rustix::fs::chmod(path.as_bytes(), mode)?;
            }
            Ok(())
        })?;
        self.acl_changed(id, name);
        Ok(())
    }

    /// An ACL changes the mode as well. Where the kernel does not know about ACLs (`posix-acl=false`) it
    /// does not expect that.
    fn acl_changed(&self, id: NodeId, name: &[u8]) {
        if is_acl(name) {
            self.kernel.load().invalidate_attr(id);
        }
    }

    /// Errors: as for [`Pool::setxattr`].
    pub fn removexattr(&self, caller: &Caller, id: NodeId, name: &[u8]) -> Result<()> {
        self.xattr_allowed(name)?;
        if is_xfs_acl_alias(name) {
            return Err(Error::NoAttribute);
        }
        let _held = self.tree.shared();
        let branches = self.branches.load();
        self.on_copies(&branches, &self.nodes.get(id)?, Func::Removexattr, None, None, |fd| {
            may_write(caller, name, fd)?;
            rustix::fs::removexattr(ProcPath::of(fd).as_bytes(), name)
        })?;
        self.acl_changed(id, name);
        Ok(())
    }

    fn xattr_allowed(&self, name: &[u8]) -> Result<()> {
        match self.config().xattr {
            XattrMode::Passthrough
                if name == b"security.capability" && !self.config().security_capability =>
            {
                Err(Error::NoAttribute)
            }
            XattrMode::Passthrough => Ok(()),
            XattrMode::NoAttr => Err(Error::NoAttribute),
            XattrMode::NoSys => Err(Error::Unsupported),
        }
    }

    /// Asks the copy of a node that a search function reads.
    pub(crate) fn ask<T>(
        &self,
        branches: &Branches,
        node: &Arc<Node>,
        func: Func,
        ask: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>,
    ) -> Result<T> {
        let asked =
            |branch: &Branch, fd| Ok(ask(fd).map_err(|errno| branch.record_error(errno, OpKind::Read))?);
        if !node.is_dir() {
            let primary = self.primary(branches, node)?;
            return asked(&primary.branch, primary.fd.as_fd());
        }
        let (_, Some(path)) = self.nodes.locate(node.id)? else {
            let orphan = node.orphan.lock().clone().ok_or(Error::Stale)?;
            return asked(&orphan.branch, orphan.fd.as_fd());
        };
        let dirs = MergedDir::open(self.follow(), branches, &path);
        let index = self.shown(func, branches, &dirs.own())?;
        asked(&branches[index], dirs.get(index).ok_or(Error::Absent)?)
    }
}

/// Who may write an attribute the kernel has checked, but for `system.*`: that it leaves to the filesystem
/// (fs/xattr.c xattr_permission), which would judge the daemon. All that is known under that name, access lists of
/// several kinds and attributes of DOS, is for the owner to change.
///
/// Errors: `EPERM`; `EOPNOTSUPP` if the branch has nothing of that name for anybody.
fn may_write(caller: &Caller, name: &[u8], fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // For ACLs the kernel has done the same since Linux 6.2.
    let checked = !name.starts_with(b"system.") || is_acl(name) && caller.is_checked();
    if checked || caller.owner_or_capable(&of(fd)?) {
        return Ok(());
    }
    match rustix::fs::getxattr_query(ProcPath::of(fd).as_bytes(), name) {
        Err(Errno::OPNOTSUPP) => Err(Errno::OPNOTSUPP),
        _ => Err(Errno::PERM),
    }
}

/// fgetxattr(2), or the size where the buffer is empty. Errors: `EBADF` for an `O_PATH` descriptor.
fn get(fd: impl AsFd, name: &[u8], buffer: &mut [u8]) -> Result<usize, Errno> {
    match buffer.is_empty() {
        true => rustix::fs::fgetxattr_query(fd, name),
        false => rustix::fs::fgetxattr(fd, name, buffer),
    }
}

/// Takes names out of a list in place; gives its length.
fn retain(list: &mut [u8], mut keeps: impl FnMut(&[u8]) -> bool) -> usize {
    let (mut from, mut to) = (0, 0);
    while from < list.len() {
        let length = list[from..].iter().position(|&byte| byte == 0).map_or(list.len() - from, |end| end + 1);
        if keeps(&list[from..from + length]) {
            list.copy_within(from..from + length, to);
            to += length;
        }
        from += length;
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xfs_aliases_of_acls_are_not_listed() {
        for (given, left) in [
            (&b""[..], &b""[..]),
            (b"user.a\0", b"user.a\0"),
            (b"trusted.SGI_ACL_FILE\0", b""),
            (b"user.a\0trusted.SGI_ACL_FILE\0user.b\0trusted.SGI_ACL_DEFAULT\0", b"user.a\0user.b\0"),
        ] {
            let mut list = given.to_vec();
            let length = retain(&mut list, |name| !is_xfs_acl_alias(name));
            assert_eq!(&list[..length], left);
        }
    }
}
