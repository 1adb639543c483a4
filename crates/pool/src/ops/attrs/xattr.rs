//! Extended attributes.

use crate::config::{Func, XattrMode};
use crate::dir::merged::Trust;
use crate::door::Act;
use crate::door::Caller;
use crate::node::Node;
use crate::ops::names;
use crate::ops::owed;
use crate::ops::read_cache;
use crate::ops::reserve;
use crate::ops::resolve;
use crate::ops::resolve::Place;
use crate::ops::resolve::places::{Purpose, Undo, no_undo};
use crate::paths::Uses;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_branch::fs::acl::{ACCESS, is_acl};
use canopy_branch::fs::stat::{self, S_ISGID};
use canopy_branch::fs::{generation, pinned, xattr};
use canopy_branch::relocate::{is_xfs_acl_alias, lease};
use canopy_policy::{self as policy, Category};
use canopy_sys::shown::Show as _;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Mode, XattrFlags};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::Arc;

/// Reads an attribute into `buffer`, or returns its size if the buffer is empty.
///
/// Errors: `ENODATA`, `ERANGE`, `EOPNOTSUPP` from the branch.
pub fn getxattr(pool: &Pool, id: NodeId, name: &[u8], buffer: &mut [u8]) -> Result<usize> {
    let op = &mut Op::begin(pool);
    // The kernel reads this ACL to check permissions.
    let kernel_checks = resolve::acl::kernel_checks_acls(op) && is_acl(name);
    match xattr_allowed(op, name) {
        // After ENOSYS, the kernel would never ask for an ACL again and would use the mask as the group's rights.
        Err(Error::Unsupported) if resolve::acl::kernel_checks_acls(op) && !kernel_checks => {
            return Err(Errno::OPNOTSUPP.into());
        }
        refused if !kernel_checks => refused?,
        _ => {}
    }
    match read_xattr(op, id, name, buffer) {
        // The branch's filesystem has no ACLs. On EOPNOTSUPP, the kernel would give access to the owner only.
        Err(Error::Branch(Errno::OPNOTSUPP)) if kernel_checks => Err(Error::NoAttribute),
        other => other,
    }
}

fn read_xattr(op: &mut Op<'_>, id: NodeId, name: &[u8], buffer: &mut [u8]) -> Result<usize> {
    if is_own(name) {
        return Err(Error::NoAttribute);
    }
    let node = op.nodes.get(id)?;
    let trust = resolve::places::trust_to_read(op, &node);
    let known = trust.or_else(|| names::known::trust(op));
    let _held = op.using(Uses::node(id));
    let common = [&b"user."[..], b"security.", b"trusted."].iter().any(|space| name.starts_with(space));
    if (common || is_acl(name)) && names::known::is_plain(op, &node, known) {
        return Err(Error::NoAttribute);
    }
    // An ACL comes from the same copy as the mode, whose group bits are the ACL's mask.
    let func = if is_acl(name) { Func::Getattr } else { Func::Getxattr };
    let mut is_plain = false;
    let answer = query(op, &node, trust, func, |of| {
        let answer = match of {
            Of::File(fd) => xattr::get(fd, name, buffer),
            Of::Entry(dir, entry) => xattr::get_at(dir, entry, name, buffer),
        };
        is_plain = op.catalogue.is_on() && answer == Err(Errno::NODATA) && has_none(&of);
        answer
    });
    if is_plain && same_for_all(op, &node) {
        names::known::learn_plain(op, &node);
    }
    answer
}

/// Returns whether a file has no attributes at all.
fn has_none(of: &Of<'_>) -> bool {
    let listed = match of {
        Of::File(fd) => xattr::list(*fd, &mut []),
        Of::Entry(dir, entry) => xattr::list_at(*dir, entry, &mut []),
    };
    listed == Ok(0)
}

/// Returns whether all attributes of a node are those of one copy.
fn same_for_all(op: &Op<'_>, node: &Node) -> bool {
    let first = |func| policy::first_only(op.config.policies.get(func), Category::Search);
    !node.is_dir() || [Func::Getattr, Func::Getxattr, Func::Listxattr].into_iter().all(first)
}

/// Writes the names, each with its terminating NUL, to `buffer`, or returns a sufficient size if it is empty.
///
/// `trusted.*` is listed only for callers that may read it (xattr(7)), because a program that copies a file fails
/// on a name that is listed but cannot be read. The kernel leaves this check to each filesystem.
pub fn listxattr(pool: &Pool, caller: &Caller, id: NodeId, buffer: &mut [u8]) -> Result<usize> {
    let op = &mut Op::begin(pool);
    match op.config.xattr {
        XattrMode::Passthrough => {}
        XattrMode::NoAttr => return Ok(0),
        XattrMode::NoSys => return Err(Error::Unsupported),
    }
    let node = op.nodes.get(id)?;
    let trust = resolve::places::trust_to_read(op, &node);
    let known = trust.or_else(|| names::known::trust(op));
    let _held = op.using(Uses::node(id));
    if names::known::is_plain(op, &node, known) {
        return Ok(0);
    }
    let mut is_plain = false;
    let answer = query(op, &node, trust, Func::Listxattr, |of| {
        let length = match of {
            Of::File(fd) => xattr::list(fd, buffer)?,
            Of::Entry(dir, entry) => xattr::list_at(dir, entry, buffer)?,
        };
        is_plain = length == 0;
        if buffer.is_empty() {
            return Ok(length);
        }
        let mut sees_trusted = None;
        Ok(retain(&mut buffer[..length], |name| {
            let hidden = name.starts_with(b"trusted.")
                && !*sees_trusted.get_or_insert_with(|| op.admits(caller, Act::SeeTrusted).is_ok());
            !hidden && !is_own(name)
        }))
    });
    if is_plain && same_for_all(op, &node) {
        names::known::learn_plain(op, &node);
    }
    answer
}

/// Sets an attribute on every copy. `flags` are those of setxattr(2). `kill_sgid` is set for an access ACL whose
/// caller may not keep setgid (`FUSE_SETXATTR_ACL_KILL_SGID`).
///
/// Errors: `EPERM` for `system.*` if the caller is neither the owner nor has `CAP_FOWNER`.
pub fn setxattr(
    pool: &Pool,
    caller: &Caller,
    id: NodeId,
    name: &[u8],
    value: &[u8],
    flags: u32,
    kill_sgid: bool,
) -> Result<()> {
    let op = &mut Op::begin(pool);
    let _changes = pool.figures.changes();
    xattr_allowed(op, name)?;
    if is_own(name) {
        // Copied from a disk of the pool. An ACL is also set under its own name.
        return Ok(());
    }
    let flags = XattrFlags::from_bits(flags).ok_or(Error::Invalid)?;
    let node = op.nodes.get(id)?;
    let trust = resolve::places::trust_to_change(op, &node);
    let _held = op.using(Uses::node(id));
    let mut on: SmallVec<[Option<usize>; 4]> = SmallVec::new();
    let change = |place: &Place| {
        on.push(place.index);
        may_write(caller, name, place)?;
        let fd = place.fd.as_fd();
        let nears = place.branch.nears_reserve(value.len() as u64);
        read_cache::following(
            op,
            &place.branch,
            Some(&place.attr),
            || lease::readable(fd),
            || {
                reserve::take_space(op, nears, || None, || Ok(xattr::set(fd, name, value, flags)?))
                    .map_err(Error::errno)
            },
        )?;
        // The kernel sends `kill_sgid` only if it checks ACLs, and the branch lets the daemon keep the bit.
        let unknown_to_kernel = name == ACCESS && !resolve::acl::kernel_checks_acls(op);
        if !kill_sgid && !unknown_to_kernel {
            return Ok(());
        }
        let attr = stat::of(fd)?;
        let keeps = || caller.is_in_group(attr.gid) || caller.keeps_set_id(&attr);
        if attr.mode & S_ISGID != 0 && (kill_sgid || !keeps()) {
            let mode = Mode::from_raw_mode(attr.mode & 0o7777 & !S_ISGID);
            pinned::chmod(fd, mode)?;
        }
        Ok(())
    };
    let what = (Func::Setxattr, purpose(name));
    resolve::places::on_copies(op, &node, trust, what, change, |place| undo_set(place, name))?;
    owed::note_attributes(op, &node, on);
    acl_changed(op, id, name);
    Ok(())
}

/// Returns what gives a place the value back that it has now. `None` if that cannot be read.
fn undo_set<'p>(place: &'p Place, name: &[u8]) -> Option<Undo<'p>> {
    let (name, before) = (name.to_vec(), xattr::value(place.fd.as_fd(), name).ok()?);
    Some(Box::new(move || {
        let fd = place.fd.as_fd();
        let undone = match &before {
            Some(value) => xattr::set(fd, &name, value, XattrFlags::empty()),
            None => xattr::remove(fd, &name),
        };
        let undone = undone.and_then(|()| {
            // What an ACL says of the group is in the mode.
            let mode = Mode::from_raw_mode(place.attr.mode & 0o7777);
            if is_acl(&name) { pinned::chmod(fd, mode) } else { Ok(()) }
        });
        if let Err(errno) = undone {
            let branch = place.branch.path.shown();
            tracing::warn!("{branch}: an attribute of a directory that is on some disks only: {errno}");
        }
    }))
}

/// Invalidates the node's attributes after a change of an ACL. An ACL also changes the mode, which the kernel
/// does not expect if it does not handle ACLs (`posix-acl=false`).
fn acl_changed(op: &Op<'_>, id: NodeId, name: &[u8]) {
    if is_acl(name) {
        op.kernel.load().invalidate_attr(id);
    }
}

/// Removes an attribute from every copy. Errors: as for `setxattr`.
pub fn removexattr(pool: &Pool, caller: &Caller, id: NodeId, name: &[u8]) -> Result<()> {
    let op = &mut Op::begin(pool);
    let _changes = pool.figures.changes();
    xattr_allowed(op, name)?;
    if is_own(name) {
        return Err(Error::NoAttribute);
    }
    let node = op.nodes.get(id)?;
    let trust = resolve::places::trust_to_change(op, &node);
    let _held = op.using(Uses::node(id));
    let mut on: SmallVec<[Option<usize>; 4]> = SmallVec::new();
    let change = |place: &Place| {
        on.push(place.index);
        may_write(caller, name, place)?;
        let fd = place.fd.as_fd();
        read_cache::following(
            op,
            &place.branch,
            Some(&place.attr),
            || lease::readable(fd),
            || xattr::remove(fd, name),
        )
    };
    // Each disk has room for less, so nothing is to be undone.
    let what = (Func::Removexattr, purpose(name));
    resolve::places::on_copies(op, &node, trust, what, change, no_undo)?;
    owed::note_attributes(op, &node, on);
    acl_changed(op, id, name);
    Ok(())
}

fn xattr_allowed(op: &Op<'_>, name: &[u8]) -> Result<()> {
    match op.config.xattr {
        XattrMode::Passthrough if name == b"security.capability" && !op.config.security_capability => {
            Err(Error::NoAttribute)
        }
        XattrMode::Passthrough => Ok(()),
        XattrMode::NoAttr => Err(Error::NoAttribute),
        XattrMode::NoSys => Err(Error::Unsupported),
    }
}

/// Runs a query about extended attributes on the copy of a node that a search function chooses.
fn query(
    op: &Op<'_>,
    node: &Arc<Node>,
    trust: Trust,
    func: Func,
    mut query: impl FnMut(Of<'_>) -> Result<usize, Errno>,
) -> Result<usize> {
    if node.is_dir() {
        return resolve::places::ask_dir(op, node, trust, func, |dir| query(Of::Entry(dir, b".")));
    }
    // The kernel sends this before the first write to a file. That file is usually open, so no name is needed.
    if let Some(open) = node.opened() {
        let file = open.location();
        return Ok(file.branch.reads(|| query(Of::File(file.fd.as_fd())))?);
    }
    let by_name = resolve::via_cached_parent(op, node, |_, branch, dir, name, key| {
        let answer = branch.reads(|| query(Of::Entry(dir, name)));
        // Afterwards: until here, the name may have come to lead to another file.
        stat::at(dir, name).ok().filter(|attr| attr.key() == key)?;
        Some(answer)
    });
    if let Some(answer) = by_name {
        return Ok(answer?);
    }
    let own = resolve::places::primary(op, node)?;
    Ok(own.branch.reads(|| query(Of::File(own.fd.as_fd())))?)
}

/// Returns whether an attribute belongs to a branch, so that clients have nothing to do with it. In a list, names end with NUL.
fn is_own(name: &[u8]) -> bool {
    is_xfs_acl_alias(name) || name.strip_suffix(&[0]).unwrap_or(name) == generation::ATTRIBUTE
}

/// What a query is about.
enum Of<'a> {
    File(BorrowedFd<'a>),
    /// A name in a directory.
    Entry(BorrowedFd<'a>, &'a [u8]),
}

/// Checks that the caller may write an attribute in `system.*`.
///
/// The kernel checks all other attributes. It leaves these to the filesystem (fs/xattr.c xattr_permission), and the
/// branch would check the daemon. All known attributes of this namespace, several kinds of ACLs and DOS attributes,
/// are the owner's to change.
///
/// Errors: `EPERM`; `EOPNOTSUPP` if the branch does not support the attribute at all.
fn may_write(caller: &Caller, name: &[u8], place: &Place) -> Result<(), Errno> {
    // Since Linux 6.2, the kernel does this check for ACLs.
    let checked = !name.starts_with(b"system.") || is_acl(name) && caller.is_checked();
    if checked || caller.owner_or_capable(&place.attr) {
        return Ok(());
    }
    match xattr::get(place.fd.as_fd(), name, &mut []) {
        Err(Errno::OPNOTSUPP) => Err(Errno::OPNOTSUPP),
        _ => Err(Errno::PERM),
    }
}

/// Returns what an operation that changes an attribute needs of the file. The kernel lets only regular files and
/// directories have attributes in `user.*` (fs/xattr.c xattr_permission), so opening one has no effect.
fn purpose(name: &[u8]) -> Purpose {
    if name.starts_with(b"user.") { Purpose::ExtendedAttribute } else { Purpose::Attributes }
}

/// Removes names from a list in place and returns its new length.
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
    fn attributes_of_a_branch_are_not_listed() {
        for (given, left) in [
            (&b""[..], &b""[..]),
            (b"user.a\0", b"user.a\0"),
            (b"trusted.SGI_ACL_FILE\0", b""),
            (b"user.canopy.generation\0user.canopy.blake3\0", b"user.canopy.blake3\0"),
            (b"user.a\0trusted.SGI_ACL_FILE\0user.b\0trusted.SGI_ACL_DEFAULT\0", b"user.a\0user.b\0"),
        ] {
            let mut list = given.to_vec();
            let length = retain(&mut list, |name| !is_own(name));
            assert_eq!(&list[..length], left);
        }
    }
}
