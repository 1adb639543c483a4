//! One of several copies of a file leaves its branch. What goes, and in favour of which other one, is decided here; the daemon
//! compares and removes a copy that is up to date, with all its names, and its clients go on with the other one.

use crate::held::{CopyFate, HeldCopy, NotTouched};
use crate::output::{complain, shown};
use crate::pool_link::PoolLink;
use crate::survey::{FileCopy, current, disks_of, look, up_to_date};
use std::path::{Path, PathBuf};

/// Why a copy stays.
const FEWER: &str = "the other branches hold fewer copies than its rule wants";

/// What a copy is that may go.
pub(super) enum CopyState {
    /// Another branch holds one that is up to date, too.
    Surplus(usize),
    /// It is out of date.
    Old,
    /// There is none any more.
    Missing,
}

/// Fails if there would be too few copies without the one on a branch, also when others have got theirs:
/// those that get a copy before. So many are wanted.
pub(super) fn must_be_possible(
    pool: &PoolLink,
    path: &Path,
    branch: usize,
    (copies_to, wanted): (&[usize], usize),
) -> Result<(), NotTouched> {
    let (copies, _) = look(pool, path);
    let root = |to: &usize| pool.branches[*to].filesystem();
    let mut disks = disks_of(pool, &others(pool, path, &copies, branch));
    disks.extend(copies_to.iter().filter_map(root));
    if disks.len() < wanted { Err(NotTouched::Because(FEWER.into())) } else { Ok(()) }
}

/// Returns what the copy on a branch is.
///
/// # Errors
/// If others hold fewer than are wanted.
pub(super) fn what_goes(
    pool: &PoolLink,
    path: &Path,
    branch: usize,
    wanted: usize,
) -> Result<CopyState, NotTouched> {
    let (copies, _) = look(pool, path);
    if !copies.iter().any(|copy| copy.branch == branch) {
        return Ok(CopyState::Missing);
    }
    let others = others(pool, path, &copies, branch);
    let Some(first) = others.first().filter(|_| disks_of(pool, &others).len() >= wanted) else {
        return Err(NotTouched::Because(FEWER.into()));
    };
    let is_current = current(pool, path, &copies).contains(&branch);
    Ok(if is_current { CopyState::Surplus(first.branch) } else { CopyState::Old })
}

/// Removes an old copy from a branch, under each of these names.
pub(super) fn remove_old(pool: &PoolLink, names: &[PathBuf], branch: usize) -> Result<(), NotTouched> {
    for path in names {
        let (copies, _) = look(pool, path);
        let Some(goes) = copies.iter().find(|copy| copy.branch == branch) else { continue };
        let is_old = !current(pool, path, &copies).contains(&branch);
        let others = others(pool, path, &copies, branch);
        let Some(first) = others.first().filter(|_| is_old) else {
            return Err(NotTouched::Because("it changed in the meantime".into()));
        };
        let [stays, held] = HeldCopy::pair(pool, path, [first, goes], true)?;
        if held.remove_in_favour_of(&stays)? == CopyFate::SetAside {
            let path = pool.branches[branch].path.join(path);
            complain(&format!(
                "{} was changed apart from the other copies: it is in .canopy-aside of its branch (canopy copies)",
                shown(&path)
            ));
        }
    }
    Ok(())
}

/// Returns the copies on other branches that are up to date.
fn others(pool: &PoolLink, path: &Path, copies: &[FileCopy], branch: usize) -> Vec<FileCopy> {
    let mut found = up_to_date(pool, path, copies);
    found.retain(|copy| copy.branch != branch);
    found
}
