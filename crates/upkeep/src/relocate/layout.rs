//! The pool as a planner sees it, and what a plan means for it.

use super::job::{MoveCandidate, Stays};
use super::mover::Task;
use crate::error::{Error, Result};
use crate::pool_link::{BranchLink, PoolLink};
use canopy_branch::fs::filesystem_id::FilesystemId;
use canopy_policy::layout::{CopyAt, Disk, File, Layout, LayoutBranch, Plan, Takes, Use, Why};
use canopy_policy::placement::Placement;
use clap::Args;
use rustix::io::Errno;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

/// The option of the commands that heed rules and tiers.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct RulesArgs {
    /// Also where rules and tiers do not want files
    #[arg(long)]
    pub against_rules: bool,
}

impl RulesArgs {
    pub(crate) fn heeded(self, placement: &Placement) -> Option<&Placement> {
        Some(placement).filter(|_| !self.against_rules)
    }
}

/// A file that stays because of a rule or tier.
#[derive(Clone, Debug)]
pub(crate) struct KeptByRule {
    pub(crate) path: PathBuf,
    /// Such as `rule films/**`.
    pub(crate) by: String,
    pub(crate) bytes: u64,
}

/// What rules and tiers keep a command from.
#[derive(Debug, Default)]
pub(crate) struct Bound {
    pub(crate) kept: Vec<KeptByRule>,
    /// What belongs to its disk, where users expect it to go.
    pub(crate) belongs: Vec<PathBuf>,
    /// What else there is to say.
    pub(crate) note: Option<String>,
}

/// The rules and tiers of a pool; none of a daemon that knows none.
pub(crate) fn placement(pool: &PoolLink) -> Result<Placement> {
    match pool.placement() {
        Err(Error::NoTiers(_)) => Ok(Placement::default()),
        other => other,
    }
}

/// Asks the branches for their space. Without a placement, rules and tiers do not count.
pub(crate) fn layout<'p>(pool: &PoolLink, placement: Option<&'p Placement>) -> Result<Layout<'p>> {
    let (mut disks, mut filesystems): (Vec<Disk>, Vec<u64>) = (Vec::new(), Vec::new());
    let mut disk_of = |branch: &BranchLink| -> Result<Option<usize>> {
        let Ok(root) = branch.root() else { return Ok(None) };
        let failed = |errno: Errno| Error::Path { path: branch.path.clone(), why: errno.into() };
        let filesystem = FilesystemId::of(root).filesystem;
        if let Some(disk) = filesystems.iter().position(|known| *known == filesystem) {
            return Ok(Some(disk));
        }
        let space = rustix::fs::fstatvfs(root).map_err(failed)?;
        let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
        disks.push(Disk::new(bytes(space.f_blocks), bytes(space.f_bavail)));
        filesystems.push(filesystem);
        Ok(Some(filesystems.len() - 1))
    };
    let takes = |branch: &BranchLink| match branch {
        branch if !branch.takes() => Takes::Nothing,
        branch if branch.is_whole() => Takes::All,
        _ => Takes::Sparingly,
    };
    let branch = |branch: &BranchLink| {
        Ok(LayoutBranch {
            path: branch.path.clone(),
            disk: disk_of(branch)?,
            gives: branch.gives(),
            takes: takes(branch),
            reserve: branch.min_free,
        })
    };
    let branches = pool.branches.iter().map(branch).collect::<Result<Vec<_>>>()?;
    Ok(Layout::new(branches, disks, placement))
}

/// Returns a file as it is found, for a plan.
pub(crate) fn file<'f>(pool: &PoolLink, found: &'f MoveCandidate) -> File<'f> {
    let copy = |copy: &crate::survey::FileCopy| CopyAt { branch: copy.branch, bytes: copy.used() };
    let stat = &found.first().stat;
    let touched = u64::try_from(stat.st_atime.max(stat.st_mtime)).unwrap_or(0);
    File {
        names: &found.names,
        copies: found.copies.iter().map(copy).collect(),
        wanted: found.wanted,
        size: found.first().size(),
        used: Use { touched: UNIX_EPOCH + Duration::from_secs(touched), stuck: false },
        losing: pool.losing(stat),
    }
}

/// Why a file stays that nothing bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoRoom<'w> {
    pub(crate) why: &'w str,
    /// For a file that would lose something on some branch.
    pub(crate) of_whole: &'w str,
}

pub(crate) const NO_ROOM: NoRoom<'_> = NoRoom {
    why: "no branch has room",
    of_whole: "no branch has room that can store its owner and mode (--lossy)",
};

/// What a plan means, with the files that it is about.
pub(crate) struct Told {
    pub(crate) tasks: Vec<Task>,
    pub(crate) stays: Vec<Stays>,
    pub(crate) kept: Vec<KeptByRule>,
}

impl Told {
    pub(crate) fn of(
        plan: &Plan<'_>,
        found: &[&MoveCandidate],
        pool: &PoolLink,
        no_room: NoRoom<'_>,
    ) -> Told {
        let tasks = plan.going.iter().map(|going| Task::of(found[going.file], &going.steps)).collect();
        let mut told = Told { tasks, stays: Vec::new(), kept: Vec::new() };
        for (file, why) in &plan.staying {
            let found = found[*file];
            let path = pool.mountpoint.join(&found.names[0]);
            match why {
                Why::NoRoom => {
                    let is_whole = pool.losing(&found.first().stat).is_empty();
                    let why = if is_whole { no_room.why } else { no_room.of_whole };
                    told.stays.push(Stays { path, why: why.to_owned() });
                }
                Why::Bound(ground) => {
                    let (by, bytes) = (ground.to_string(), found.first().used());
                    told.kept.push(KeptByRule { path, by, bytes });
                }
            }
        }
        told
    }
}
