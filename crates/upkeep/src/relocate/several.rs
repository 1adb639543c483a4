//! Files of which a rule wants several copies. One of them moves: another branch gets a copy first, then this one goes.

use super::Run;
use super::job::{Job, MoveCandidate, SEVERAL, Stays, look_through};
use super::mover::Task;
use super::tier::copies::{CopyPlan, CopyPlanner};
use crate::error::Result;
use crate::pool_link::PoolLink;
use crate::survey::{Entry, FileCopy, disks_of, up_to_date};
use canopy_policy::layout::{Layout, Step};
use canopy_policy::placement::Placement;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Looks through some files and trees of a pool as [`job::collect`](collect) does, and takes up files of which a rule wants
/// several copies.
pub(crate) fn collect(
    run: &Run<'_>,
    placement: &Placement,
    starts: &[PathBuf],
    from: &dyn Fn(usize) -> bool,
) -> Result<Job> {
    let mut job = look_through(run.pool, starts, from, &run.filter, &run.stop)?;
    let (found, stays) = movable(run.pool, placement, std::mem::take(&mut job.shared));
    job.found.extend(found);
    job.stays.extend(stays);
    Ok(job)
}

/// Returns the files of which a copy may move, and what stays.
fn movable(pool: &PoolLink, placement: &Placement, shared: Vec<Entry>) -> (Vec<MoveCandidate>, Vec<Stays>) {
    let (mut found, mut stays) = (Vec::new(), Vec::new());
    for File { names, copies, wanted } in files(placement, shared) {
        let held = up_to_date(pool, &names[0], &copies);
        let why = match disks_of(pool, &held).len() {
            _ if wanted < 2 => SEVERAL,
            disks if disks < wanted => "it has fewer copies than its rule wants (canopy tier makes them)",
            _ => {
                found.push(MoveCandidate { names, copies: held, wanted });
                continue;
            }
        };
        stays.extend(stay(pool, names, why));
    }
    (found, stays)
}

/// A file that several branches hold.
struct File {
    /// All names that were met: of a file with hard links, they move together.
    names: Vec<PathBuf>,
    /// Those of the first name.
    copies: Vec<FileCopy>,
    /// How many copies a rule wants, for any of the names.
    wanted: usize,
}

fn files(placement: &Placement, entries: Vec<Entry>) -> Vec<File> {
    let mut files = Vec::<File>::new();
    let mut linked: HashMap<(u64, u64), usize> = HashMap::new();
    for Entry { path, copies } in entries {
        let wanted = placement.copies(path.as_os_str().as_bytes());
        if let Some(known) = copies.iter().find_map(|copy| linked.get(&copy.key())) {
            let known = &mut files[*known];
            known.names.push(path);
            known.wanted = wanted.max(known.wanted);
            continue;
        }
        let links = copies.iter().filter(|copy| copy.stat.st_nlink > 1);
        linked.extend(links.map(|copy| (copy.key(), files.len())));
        files.push(File { names: vec![path], copies, wanted });
    }
    files
}

fn stay(pool: &PoolLink, names: Vec<PathBuf>, why: &str) -> impl Iterator<Item = Stays> {
    names.into_iter().map(move |name| Stays { path: pool.mountpoint.join(name), why: why.into() })
}

/// Returns how all copies leave a branch, and what stays: what gets too few copies without it, and what no rule wants copies of.
pub(super) fn leave(
    pool: &PoolLink,
    branch: usize,
    (placement, layout): (&Placement, &mut Layout<'_>),
    shared: Vec<Entry>,
) -> (Vec<Task>, Vec<Stays>) {
    let mut planner = CopyPlanner::new(pool, placement, layout).without(branch);
    for entry in &shared {
        planner.consider(entry, &|_| true);
    }
    let CopyPlan { tasks: copies, stays: lacks, .. } = planner.plan;
    let short: HashMap<PathBuf, String> = lacks.into_iter().map(|lack| (lack.path, lack.why)).collect();
    let mut made: HashMap<&Path, Vec<&Task>> = HashMap::new();
    for task in &copies {
        made.entry(task.names[0].as_path()).or_default().push(task);
    }
    let (mut tasks, mut stays) = (Vec::new(), Vec::new());
    for File { names, copies, wanted } in files(placement, shared) {
        let lacks = names.iter().find_map(|name| short.get(&pool.mountpoint.join(name)));
        if wanted < 2 || lacks.is_some() {
            stays.extend(stay(pool, names, lacks.map_or(SEVERAL, String::as_str)));
            continue;
        }
        let made = names.iter().find_map(|name| made.get(name.as_path())).map_or(&[][..], Vec::as_slice);
        let there = copies.iter().map(|copy| copy.branch).find(|it| *it != branch);
        let Some(to) = made.first().map(|task| task.to).or(there) else { continue };
        // What is there already takes no bytes.
        let bytes = made.iter().map(|task| task.bytes).sum();
        let copies = made.iter().map(|task| Step::Copy { from: branch, to: task.to });
        let steps = copies.chain([Step::Drop { from: branch }]).collect();
        tasks.push(Task { names, steps, wanted, from: branch, to, bytes, comes_after: false });
    }
    (tasks, stays)
}
