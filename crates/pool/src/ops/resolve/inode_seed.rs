//! The seeds from which the inode numbers of files are computed.

use crate::node::Node;
use crate::ops::resolve;
use crate::pool::Op;
use canopy_base::inode_number::BranchSeed;
use canopy_branch::branch::Branch;
use canopy_branch::branch::nested::apart;
use canopy_branch::fs::stat;
use rustix::fd::{AsFd, OwnedFd};

/// Returns the seed for the inode numbers of files of a branch on the device `dev`. `find` opens a file there.
pub(crate) fn seed(
    op: &Op<'_>,
    branch: &Branch,
    dev: u64,
    find: impl FnOnce() -> Option<OwnedFd>,
) -> BranchSeed {
    if dev == branch.dev { branch.seed } else { branch.seed.within(share(op, dev, find)) }
}

/// Returns the number that stands for the filesystem on a device that a branch contains.
#[cold]
fn share(op: &Op<'_>, dev: u64, find: impl FnOnce() -> Option<OwnedFd>) -> u64 {
    if let Some(share) = op.nested.get(dev) {
        return share;
    }
    let found = find().filter(|fd| stat::of(fd.as_fd()).is_ok_and(|attr| attr.dev == dev));
    match found.and_then(|fd| rustix::fs::fstatvfs(fd).ok()) {
        Some(statvfs) => op.nested.put(dev, statvfs.f_fsid),
        // The file is gone. The device number stands in until a later call can read the filesystem id.
        None => apart(0, dev),
    }
}

/// Returns a descriptor of a node's file, to identify its filesystem.
pub(crate) fn some_fd(op: &Op<'_>, node: &Node, branch: &Branch) -> Option<OwnedFd> {
    let dup = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 0).ok();
    if let Some(open) = node.open_if_any().and_then(|slot| slot.try_lock()?.upgrade()) {
        return dup(&open.location().fd);
    }
    if let Some(orphan) = node.orphan() {
        return dup(&orphan.fd);
    }
    let key = node.key()?;
    op.nodes.names(node.id).find_map(|(dir, name)| {
        let (dir, _) = resolve::dirs::follow(op).dir(branch.root(), &dir).ok()?;
        let fd = resolve::dirs::follow(op).pin(dir, &name).ok()?;
        stat::of(fd.as_fd()).is_ok_and(|attr| attr.key() == key).then_some(fd)
    })
}
