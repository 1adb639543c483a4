//! `canopy drain`: empties a branch before its disk is taken out.

use super::job::{Job, Stays, look_through};
use super::mode::{NoCreation, without};
use super::mover::{Outcome, Task};
use super::several;
use super::{Bound, NO_ROOM, RulesArgs, Run, RunArgs, Told, file, layout, placement};
use crate::consent::{Consent, says_yes};
use crate::error::{Error, Result};
use crate::output::{print, report_lossy, shown};
use crate::pool_link::{BranchLink, PoolLink};
use crate::survey::FileCopy;
use canopy_base::text::bytes;
use canopy_branch::trash::sweep::{Verdict, sweep};
use canopy_policy::layout::Going;
use canopy_policy::placement::Placement;
use clap::Args;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Empty a branch, so that its disk can be taken out
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct DrainArgs {
    /// The pool's mountpoint or name
    pub pool: PathBuf,
    /// The branch
    pub branch: PathBuf,
    /// Then remove it from the pool and its config file
    #[arg(long)]
    pub remove: bool,
    #[command(flatten)]
    pub rules: RulesArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

const NOTES: &str = "\
New files go elsewhere meanwhile. Files that belong to their disk stay, such as
.snapraid.content and whatever the pool's option keep names; they are listed.
Disks that lose owners and modes (NTFS, exFAT) get what no other disk has room
for, and only files that lose nothing there.

Example: canopy drain /mnt/pool /mnt/disk1";

/// How often the branch is looked through: what was open for writing may move the next time, and what clients have renamed.
const ROUNDS: usize = 3;

/// Sets the option `branches` of the pool at a mountpoint, in the pool and in its config file.
pub type Remove<'r> = &'r dyn Fn(&Path, &OsStr) -> Result<(), String>;

/// Runs the command.
pub fn drain(args: &DrainArgs, remove: Remove<'_>) -> Result<()> {
    let pool = PoolLink::named(&args.pool)?.accepting_losses(args.run.lossy);
    let branch = pool.branch(&args.branch)?;
    let path = &pool.branches[branch].path;
    let unusable = |why| Err(Error::Branch { branch: path.clone(), why });
    if pool.branches[branch].mode == "RO" {
        return unusable("its mode is RO, so nothing can move off it");
    }
    if !pool.branches[branch].gives() {
        return unusable("it is gone or failing (canopy status)");
    }
    let takes = |(index, other): (usize, &BranchLink)| index != branch && other.takes();
    if !pool.branches.iter().enumerate().any(takes) {
        return unusable("no other branch takes files (canopy get POOL branches shows their modes)");
    }
    let run = Run::new(&pool, &args.run)?;
    let placement = placement(&pool)?;
    let mut kept = run.consent.is_given().then(|| NoCreation::on(&pool, path)).transpose()?;
    let state = if empty(&run, branch, &placement, args.rules, &mut kept)? {
        "is empty"
    } else {
        "holds only what belongs to its disk"
    };
    if run.stop.is_set() || args.run.consent.dry_run || !run.filter.is_open() {
        return Ok(());
    }
    let trash = trash_of(&pool.branches[branch]);
    if trash > 0 {
        let (path, size) = (shown(path), bytes(trash));
        say(
            &run,
            &format!("{path} keeps its trash: {size} (canopy trash restore brings files back to the pool)\n"),
        );
    }
    let removes = match run.consent {
        Consent::Asked => asks_to_remove(&run, path, state),
        _ => args.remove,
    };
    if removes {
        let rest = without(&pool, path)?;
        let failed = |why| Error::Remove { branch: path.clone(), why };
        remove(&pool.mountpoint, &rest).map_err(failed)?;
        // The branch is gone from the list, so it gets no mode back.
        drop(kept);
        say(&run, &format!("{} is no longer a branch of {}\n", shown(path), shown(&pool.mountpoint)));
    } else {
        let (path, pool) = (shown(path), shown(&pool.mountpoint));
        say(&run, &format!("{path} {state}; to remove it from the pool: canopy remove {pool} {path}\n"));
    }
    Ok(())
}

/// Returns how many bytes of trash stay on a drained branch.
fn trash_of(branch: &BranchLink) -> u64 {
    let mut bytes = 0;
    if let Ok(root) = branch.root() {
        // Users who are not root cannot look into it.
        let _ = sweep(root, &mut |found| {
            bytes += found.attr.blocks * 512;
            Verdict::Stays
        });
    }
    bytes
}

fn say(run: &Run<'_>, text: &str) {
    if !run.args.manners.quiet && !run.args.manners.json {
        print(text);
    }
}

/// Moves everything off a branch that does not belong to its disk, on which nothing is created from then on. Returns whether
/// nothing else is there.
///
/// # Errors
/// If something stays.
fn empty<'p>(
    run: &Run<'p>,
    branch: usize,
    placement: &Placement,
    rules: RulesArgs,
    kept: &mut Option<NoCreation<'p>>,
) -> Result<bool> {
    let summary = run.summary_of("drain");
    let mut total = Outcome::default();
    let mut planned: Vec<Task> = Vec::new();
    let mut stays: Vec<Stays> = Vec::new();
    let mut bound = Bound::default();
    for round in 0..=ROUNDS {
        let mut seen = look(run, branch, placement, rules)?;
        if round == 0 {
            report_lossy(run.pool, seen.left.iter());
            summary.before(&seen.told.tasks);
            if run.agrees(&seen.told.tasks)? && kept.is_none() {
                *kept = Some(NoCreation::on(run.pool, &run.pool.branches[branch].path)?);
                // What was made there while the question was open goes, too.
                seen = look(run, branch, placement, rules)?;
            }
        }
        let Look { job, told, emptiest, .. } = seen;
        let tasks = told.tasks;
        bound.kept = told.kept;
        bound.belongs = job.belongs;
        stays = job.stays.into_iter().chain(told.stays).collect();
        if round == ROUNDS {
            let late = |task: &Task| Stays {
                path: run.pool.mountpoint.join(&task.names[0]),
                why: "it appeared in the meantime".into(),
            };
            stays.extend(tasks.iter().map(late));
            break;
        }
        let outcome = if kept.is_some() { run.mover().run(&tasks)? } else { Outcome::default() };
        let moved = outcome.moved.files;
        // What stayed may go in the next round, and then counts there.
        total = total.followed_by(outcome);
        planned.extend(tasks);
        if let Some(to) = emptiest.filter(|_| kept.is_some() && !run.stop.is_set() && run.filter.is_open()) {
            stays.extend(empty_dirs(run, &job.dirs, branch, to)?);
        }
        if kept.is_none() || run.stop.is_set() || moved == 0 {
            break;
        }
    }
    summary.after(&planned, &total, (&stays, &bound), run.stop.is_set())?;
    Ok(bound.belongs.is_empty())
}

/// What is on the branch, and what can go.
struct Look {
    job: Job,
    told: Told,
    /// What only branches have room for that cannot store all of every file.
    left: Vec<FileCopy>,
    /// The branch with the most free space.
    emptiest: Option<usize>,
}

fn look(run: &Run<'_>, branch: usize, placement: &Placement, rules: RulesArgs) -> Result<Look> {
    let pool = run.pool;
    let mut job = look_through(pool, &[PathBuf::new()], &|index| index == branch, &run.filter, &run.stop)?;
    let mut layout = layout(pool, rules.heeded(placement))?;
    layout.hold(job.found.iter().map(|found| file(pool, found)).collect());
    let plan = layout.drain(branch);
    let is_left = |going: &&Going| {
        let to = layout.files()[going.file].copies[0].branch;
        !pool.branches[to].is_whole()
    };
    let sparingly = plan.going.iter().filter(is_left).map(|going| going.file);
    let left = sparingly.chain(plan.staying.iter().map(|(file, _)| *file));
    let left = left.map(|file| *job.found[file].first()).collect();
    let mut told = Told::of(&plan, &job.found.iter().collect::<Vec<_>>(), pool, NO_ROOM);
    let shared = std::mem::take(&mut job.shared);
    let (leaving, stays) = several::leave(pool, branch, (placement, &mut layout), shared);
    told.tasks.extend(leaving);
    told.stays.extend(stays);
    let emptiest = layout.emptiest();
    Ok(Look { job, told, left, emptiest })
}

/// Removes empty directories from the branch, from the bottom. The last copy of one is cloned first.
fn empty_dirs(run: &Run<'_>, dirs: &[(PathBuf, Vec<usize>)], branch: usize, to: usize) -> Result<Vec<Stays>> {
    let here = dirs.iter().rev().filter(|(_, held)| held.contains(&branch));
    let tasks: Vec<Task> = here.map(|(path, _)| Task::moving_dir(path.clone(), branch, to)).collect();
    let outcome = run.silent_mover().run(&tasks)?;
    // A directory that holds something that stays is no news.
    Ok(outcome.stays.into_iter().filter(|stay| stay.why != super::mover::NOT_EMPTY).collect())
}

/// Asks whether to remove the branch.
fn asks_to_remove(run: &Run<'_>, branch: &Path, state: &str) -> bool {
    let (branch, pool) = (shown(branch), shown(&run.pool.mountpoint));
    let question = format!("{branch} {state}. Remove it from {pool} and its config file?");
    says_yes(&question, &run.stop).unwrap_or(false)
}
