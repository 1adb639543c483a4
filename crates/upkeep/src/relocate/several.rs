//! Files of which a rule wants several copies. One of them moves: another branch gets a copy first, then this one goes.

use super::Run;
use super::job::{Found, Job, Others, SEVERAL, Stays, look_through};
use super::mover::Step;
use super::take_off::Leaving;
use super::tier::copies::{CopyPlan, CopyPlanner};
use crate::error::Result;
use crate::pool_link::PoolLink;
use crate::survey::{Entry, FileCopy, current, disks_of};
use canopy_pool::policy::placement::Placement;
use rustix::fs::FileType;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Looks through some files and trees of a pool as [`job::collect`](collect) does, and takes up one copy of each file of which
/// a rule wants several.
pub(crate) fn collect(
    run: &Run<'_>,
    placement: &Placement,
    starts: &[PathBuf],
    from: &dyn Fn(usize) -> bool,
    choose: &mut dyn FnMut(&[FileCopy]) -> Option<FileCopy>,
) -> Result<Job> {
    let mut job = look_through(run.pool, starts, from, &run.filter, &run.stop)?;
    let (found, stays) = movable(run.pool, placement, std::mem::take(&mut job.shared), choose);
    job.found.extend(found);
    job.stays.extend(stays);
    Ok(job)
}

/// Returns of each file the copy that is to move, chosen from those that are up to date, and what stays. If none is chosen,
/// there is nothing to do.
fn movable(
    pool: &PoolLink,
    placement: &Placement,
    shared: Vec<Entry>,
    choose: &mut dyn FnMut(&[FileCopy]) -> Option<FileCopy>,
) -> (Vec<Found>, Vec<Stays>) {
    let (mut found, mut stays) = (Vec::<Found>::new(), Vec::new());
    let mut linked: HashMap<(u64, u64), usize> = HashMap::new();
    for entry in shared {
        // All names of a file move together.
        if let Some(index) = entry.copies.iter().find_map(|copy| linked.get(&copy.key())) {
            found[*index].names.push(entry.path);
            continue;
        }
        let mut stay = |why: &str| {
            stays.push(Stays { path: pool.mountpoint.join(&entry.path), why: why.into() });
        };
        let wanted = wanted(placement, &entry.path);
        if wanted < 2 {
            stay(SEVERAL);
            continue;
        }
        let up_to_date = current(pool, &entry.path, &entry.copies);
        let counts = |copy: &&FileCopy| {
            copy.kind() == FileType::RegularFile
                && up_to_date.contains(&copy.branch)
                && pool.branches[copy.branch].is_well
        };
        let held: Vec<FileCopy> = entry.copies.iter().filter(counts).copied().collect();
        if disks_of(&held).len() < wanted {
            stay("it has fewer copies than its rule wants (canopy tier makes them)");
            continue;
        }
        if let Some(copy) = choose(&held) {
            if copy.stat.st_nlink > 1 {
                linked.insert(copy.key(), found.len());
            }
            let others = held.iter().map(|other| other.branch);
            let branches = others.filter(|other| *other != copy.branch).collect();
            found.push(Found { names: vec![entry.path], copy, others: Some(Others { branches, wanted }) });
        }
    }
    (found, stays)
}

fn wanted(placement: &Placement, path: &Path) -> usize {
    placement.copies(path.as_os_str().as_bytes())
}

/// Returns how all copies leave a branch, and what stays: what gets too few copies without it, and what no rule wants copies of.
pub(super) fn leave(
    pool: &PoolLink,
    branch: usize,
    placement: &Placement,
    shared: Vec<Entry>,
) -> Result<(Vec<Step>, Vec<Stays>)> {
    let (entries, others): (Vec<_>, Vec<_>) =
        shared.into_iter().partition(|entry| wanted(placement, &entry.path) > 1);
    let stay = |entry: Entry| Stays { path: pool.mountpoint.join(entry.path), why: SEVERAL.into() };
    let mut stays: Vec<Stays> = others.into_iter().map(stay).collect();
    let mut planner = CopyPlanner::new(pool, placement)?.without(branch);
    for entry in &entries {
        planner.consider(entry, &|_| true);
    }
    let CopyPlan { steps: copies, stays: lacks, .. } = planner.plan;
    let short: BTreeMap<PathBuf, String> = lacks.into_iter().map(|lack| (lack.path, lack.why)).collect();
    let mut made: HashMap<&Path, Vec<&Step>> = HashMap::new();
    for step in &copies {
        made.entry(step.names[0].as_path()).or_default().push(step);
    }
    let mut steps = Vec::<Step>::new();
    let mut linked: HashMap<(u64, u64), usize> = HashMap::new();
    for entry in entries {
        let own = entry.copies.iter().find(|copy| copy.branch == branch && copy.stat.st_nlink > 1);
        if let Some(index) = own.and_then(|own| linked.get(&own.key())) {
            steps[*index].names.push(entry.path);
            continue;
        }
        let path = pool.mountpoint.join(&entry.path);
        if let Some(why) = short.get(&path) {
            stays.push(Stays { path, why: why.clone() });
            continue;
        }
        let made = made.get(entry.path.as_path()).map_or(&[][..], Vec::as_slice);
        let copies: Vec<usize> = made.iter().map(|step| step.to).collect();
        let there = entry.copies.iter().map(|copy| copy.branch).find(|it| *it != branch);
        let Some(to) = copies.first().copied().or(there) else { continue };
        // What is there already takes no bytes.
        let bytes = made.iter().map(|step| step.bytes).sum();
        if let Some(own) = own {
            linked.insert(own.key(), steps.len());
        }
        let leaving = Leaving { copies, wanted: wanted(placement, &entry.path) };
        let whole = Step::whole(vec![entry.path], branch, to, bytes);
        steps.push(Step { leaving: Some(leaving), ..whole });
    }
    Ok((steps, stays))
}
