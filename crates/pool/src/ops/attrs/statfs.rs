//! Free space of the whole pool.

use crate::config::StatfsMode;
use crate::ops::aggregate::{self, BranchStat, Figures};
use crate::ops::{self, resolve};
use crate::paths::Uses;
use crate::pool::{Op, Pool};
use canopy_base::error::Result;
use canopy_base::ids::NodeId;
use canopy_base::path::split;
use canopy_branch::branch::{Branch, Branches};
use canopy_branch::fs::filesystem_id::FilesystemId;
use canopy_branch::fs::stat;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;

/// Returns the figures of statvfs(3), summed over the filesystems of the branches. A branch that fails is left out.
///
/// With `statfs=base`, they may miss what other programs have changed on the branches during the last 10 ms.
pub fn statfs(pool: &Pool, id: NodeId) -> Result<Figures> {
    let op = &mut Op::begin(pool);
    let _held = op.using(Uses::node(id));
    let ignore = op.config.statfs_ignore;
    Ok(match op.config.statfs {
        StatfsMode::Base => op.figures.get(&op.branches, || {
            let stats = with_trash(op, of_roots(&op.branches));
            let complete = (stats.len() == op.branches.len()).then_some(());
            (aggregate::statfs(&stats, ignore), complete)
        }),
        StatfsMode::Full => {
            let path = op.nodes.locate(id)?.1.unwrap_or_default();
            aggregate::statfs(&with_trash(op, of_paths(op, &path)), ignore)
        }
    })
}

/// Asks the filesystems that hold a path on the branches.
fn of_paths(op: &Op<'_>, path: &[u8]) -> Vec<BranchStat> {
    let follow = resolve::dirs::follow(op);
    let ask = |branch: &Branch| -> Result<BranchStat, Errno> {
        if path.is_empty() {
            return of(branch, branch.filesystem, branch.root());
        }
        let (dir, name) = split(path);
        let (dir, _) = follow.dir(branch.root(), dir)?;
        let found = follow.pin(&dir, name)?;
        let attr = stat::of(found.as_fd())?;
        let filesystem = match attr.dev == branch.dev {
            true => branch.filesystem,
            false if attr.is_dir() => FilesystemId::of(found.as_fd()),
            false => FilesystemId::of(dir.as_fd()),
        };
        of(branch, filesystem, found.as_fd())
    };
    op.branches.iter().filter_map(|branch| branch.reads(|| ask(branch)).ok()).collect()
}

/// Asks the filesystems of the branches' roots, each once per mount: whether it is read-only belongs to the mount.
fn of_roots(branches: &Branches) -> Vec<BranchStat> {
    let mut stats: Vec<BranchStat> = Vec::with_capacity(branches.len());
    let mut asked: Vec<(u64, FilesystemId, u64, usize)> = Vec::new();
    for branch in branches.iter() {
        let own = branch.mount.map(|mount| (branch.dev, branch.filesystem, mount));
        let same = |(dev, filesystem, mount, _): &&(u64, FilesystemId, u64, usize)| {
            Some((*dev, *filesystem, *mount)) == own
        };
        if let Some(known) = asked.iter().find(same).and_then(|(.., at)| stats.get(*at).copied()) {
            stats.push(BranchStat { mode: branch.mode, ..known });
            continue;
        }
        if let Ok(stat) = branch.reads(|| of(branch, branch.filesystem, branch.root())) {
            asked.extend(own.map(|(dev, filesystem, mount)| (dev, filesystem, mount, stats.len())));
            stats.push(stat);
        }
    }
    stats
}

/// Counts what is in the trash as free: a program that needs the room gets it. The trash of all branches of a filesystem counts.
fn with_trash(op: &Op<'_>, mut stats: Vec<BranchStat>) -> Vec<BranchStat> {
    for branch in op.branches.iter() {
        let bytes = ops::trash::bytes_that_go(op, branch);
        let on_same =
            |stat: &&mut BranchStat| stat.filesystem == branch.filesystem && stat.figures.frsize > 0;
        for stat in stats.iter_mut().filter(|_| bytes > 0).filter(on_same) {
            let blocks = bytes / stat.figures.frsize;
            let used = stat.figures.blocks.saturating_sub(stat.figures.bfree);
            stat.figures.bfree += blocks.min(used);
            stat.figures.bavail += blocks.min(used);
        }
    }
    stats
}

fn of(branch: &Branch, filesystem: FilesystemId, fd: BorrowedFd<'_>) -> Result<BranchStat, Errno> {
    let vfs = rustix::fs::fstatvfs(fd)?;
    let readonly = vfs.f_flag.contains(StatVfsMountFlags::RDONLY);
    Ok(BranchStat { filesystem, mode: branch.mode, readonly, figures: Figures::from(&vfs) })
}
