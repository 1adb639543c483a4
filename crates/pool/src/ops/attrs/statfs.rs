//! Free space of the whole pool.

use crate::branch::health::OpKind;
use crate::config::StatfsMode;
use crate::error::Result;
use crate::fs::stat;
use crate::ids::NodeId;
use crate::ops::aggregate::{self, BranchStat, Figures};
use crate::path::split;
use crate::pool::Pool;
use rustix::fd::AsFd;
use rustix::fs::StatVfsMountFlags;

impl Pool {
    /// Returns the figures of statvfs(3), summed over the filesystems of the branches. A branch that fails is left out.
    pub fn statfs(&self, id: NodeId) -> Result<Figures> {
        let _held = self.tree.shared();
        let branches = self.branches.load();
        let path = match self.config().statfs {
            StatfsMode::Base => None,
            StatfsMode::Full => self.nodes.locate(id)?.1,
        };
        let follow = self.follow();
        let mut stats: Vec<BranchStat> = Vec::with_capacity(branches.len());
        for branch in branches.iter() {
            let opened;
            let fd = match &path {
                None => branch.root(),
                Some(path) if path.is_empty() => branch.root(),
                Some(path) => {
                    let (dir, name) = split(path);
                    match follow.dir(branch.root(), dir).and_then(|(dir, _)| follow.pin(dir, name)) {
                        Ok(fd) => {
                            opened = fd;
                            opened.as_fd()
                        }
                        Err(errno) => {
                            branch.record_error(errno, OpKind::Read);
                            continue;
                        }
                    }
                }
            };
            let queried = stat::of(fd).and_then(|attr| Ok((attr, rustix::fs::fstatvfs(fd)?)));
            let (attr, vfs) = match queried {
                Ok(figures) => figures,
                Err(errno) => {
                    branch.record_error(errno, OpKind::Read);
                    continue;
                }
            };
            stats.push(BranchStat {
                dev: attr.dev,
                mode: branch.mode,
                readonly: vfs.f_flag.contains(StatVfsMountFlags::RDONLY),
                figures: Figures {
                    bsize: vfs.f_bsize,
                    frsize: vfs.f_frsize,
                    blocks: vfs.f_blocks,
                    bfree: vfs.f_bfree,
                    bavail: vfs.f_bavail,
                    files: vfs.f_files,
                    ffree: vfs.f_ffree,
                    favail: vfs.f_favail,
                    namemax: vfs.f_namemax,
                },
            });
        }
        Ok(aggregate::statfs(&stats, self.config().statfs_ignore))
    }
}
