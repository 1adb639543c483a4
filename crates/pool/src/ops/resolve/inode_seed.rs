//! What takes part in the inode number that a file shows.

use crate::branch::Branch;
use crate::branch::nested::apart;
use crate::fs::stat;
use crate::inode_number::BranchSeed;
use crate::node::Node;
use crate::pool::Pool;
use rustix::fd::{AsFd, OwnedFd};

impl Pool {
    /// The share of the branch in the inode numbers of its files on this device; `find` gives something there.
    pub(crate) fn seed(
        &self,
        branch: &Branch,
        dev: u64,
        find: impl FnOnce() -> Option<OwnedFd>,
    ) -> BranchSeed {
        match dev == branch.dev {
            true => branch.seed,
            false => branch.seed.within(self.share(dev, find)),
        }
    }

    #[cold]
    fn share(&self, dev: u64, find: impl FnOnce() -> Option<OwnedFd>) -> u64 {
        if let Some(share) = self.nested.get(dev) {
            return share;
        }
        let found = find().filter(|fd| stat::of(fd.as_fd()).is_ok_and(|attr| attr.dev == dev));
        match found.and_then(|fd| rustix::fs::fstatvfs(fd).ok()) {
            Some(told) => self.nested.put(dev, told.f_fsid),
            // It has gone meanwhile. The device tells it apart, until somebody can say more.
            None => apart(0, dev),
        }
    }

    /// Something on the filesystem of a node's file: the file itself.
    pub(crate) fn some_fd(&self, node: &Node, branch: &Branch) -> Option<OwnedFd> {
        let dup = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 0).ok();
        if let Some(open) = node.open.try_lock().and_then(|slot| slot.upgrade()) {
            return dup(&open.location().fd);
        }
        if let Some(orphan) = node.orphan.lock().clone() {
            return dup(&orphan.fd);
        }
        let key = node.key()?;
        self.nodes.names(node.id).find_map(|(dir, name)| {
            let (dir, _) = self.follow().dir(branch.root(), &dir).ok()?;
            let fd = self.follow().pin(dir, &name).ok()?;
            stat::of(fd.as_fd()).is_ok_and(|attr| attr.key() == key).then_some(fd)
        })
    }
}
