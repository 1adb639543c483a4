//! Changing the mode of a branch for a while.

use crate::error::{Error, Result};
use crate::output::complain;
use crate::pool_link::PoolLink;
use canopy_branch::branch::{BranchList, Mode};
use canopy_config::{Config, source};
use canopy_sys::shown::Show as _;
use rustix::io::Errno;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const BRANCHES: &str = "branches";

/// A branch on which nothing new is created. Dropping this gives it its mode back.
pub(super) struct NoCreation<'p> {
    pool: &'p PoolLink,
    branch: PathBuf,
    before: Mode,
}

/// Reads the branches as the option has them now: others may change them meanwhile.
fn list(pool: &PoolLink) -> Result<BranchList> {
    let failed = |errno: Errno| Error::SetBranches { pool: pool.mountpoint.clone(), why: errno.into() };
    let value = pool.daemon.get(BRANCHES).map_err(failed)?;
    let mut config = Config::default();
    source::set(&mut config, BRANCHES, &value).map_err(canopy_config::Error::from)?;
    Ok(config.branches)
}

/// Gives a branch a mode, if it has the mode `from`.
fn change(pool: &PoolLink, branch: &Path, from: Mode, to: Mode) -> Result<()> {
    let mut changed = false;
    let list: BranchList = list(pool)?
        .iter()
        .cloned()
        .map(|mut spec| {
            if spec.path == branch && spec.mode == from {
                changed = true;
                spec.mode = to;
            }
            spec
        })
        .collect();
    if !changed {
        return Ok(());
    }
    let value = list.to_os_string();
    pool.daemon.set(BRANCHES, &value).map_err(|errno| match errno {
        Errno::ACCESS | Errno::PERM => Error::NotOwner(pool.mountpoint.clone()),
        errno => Error::SetBranches { pool: pool.mountpoint.clone(), why: errno.into() },
    })
}

/// Returns the value of the option `branches` without a branch.
pub(super) fn without(pool: &PoolLink, branch: &Path) -> Result<OsString> {
    let rest: BranchList = list(pool)?.iter().filter(|spec| spec.path != branch).cloned().collect();
    Ok(rest.to_os_string())
}

impl<'p> NoCreation<'p> {
    pub(super) fn on(pool: &'p PoolLink, branch: &Path) -> Result<NoCreation<'p>> {
        let found = list(pool)?.iter().find(|spec| spec.path == branch).map(|spec| spec.mode);
        let before = found
            .ok_or_else(|| Error::NoBranch { branch: branch.to_owned(), pool: pool.mountpoint.clone() })?;
        change(pool, branch, before, Mode::Nc)?;
        Ok(NoCreation { pool, branch: branch.to_owned(), before })
    }
}

impl Drop for NoCreation<'_> {
    fn drop(&mut self) {
        if let Err(why) = change(self.pool, &self.branch, Mode::Nc, self.before) {
            complain(&format!("{why}; branch {} keeps the mode NC", self.branch.shown()));
        }
    }
}
