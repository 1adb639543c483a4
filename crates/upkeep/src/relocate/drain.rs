//! `canopy drain`: empties a branch before its disk is taken out.

use super::belongs::KeptByRule;
use super::job::{Disks, Found, Job, Stays, look_through};
use super::mode::{NoCreation, without};
use super::mover::{Outcome, Step};
use super::several;
use super::{Borders, Bound, RulesArgs, Run, RunArgs, placement, steps};
use crate::consent::{Consent, says_yes};
use crate::error::{Error, Result};
use crate::output::{print, report_lossy, shown};
use crate::plan::distribute;
use crate::pool_link::{BranchLink, PoolLink};
use crate::survey::FileCopy;
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
    let borders = Borders::new(&pool, &placement, args.rules);
    let state = if empty(&run, branch, &placement, &borders, &mut kept)? {
        "is empty"
    } else {
        "holds only what belongs to its disk"
    };
    if run.stop.is_set() || args.run.consent.dry_run || !run.filter.is_open() {
        return Ok(());
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
        say(&run, &format!("{} {state}; canopy drain --remove removes it from the pool\n", shown(path)));
    }
    Ok(())
}

fn say(run: &Run<'_>, text: &str) {
    if !run.args.manners.quiet && !run.args.manners.json {
        print(text);
    }
}

const NO_ROOM: &str = "no branch has room";
const NO_ROOM_FOR_ALL: &str = "no branch has room that can store its owner and mode (--lossy)";

/// Moves everything off a branch that does not belong to its disk, on which nothing is created from then on. Returns whether
/// nothing else is there.
///
/// # Errors
/// If something stays.
fn empty<'p>(
    run: &Run<'p>,
    branch: usize,
    placement: &Placement,
    borders: &Borders<'_>,
    kept: &mut Option<NoCreation<'p>>,
) -> Result<bool> {
    let summary = run.summary_of("drain");
    let mut total = Outcome::default();
    let mut planned: Vec<Step> = Vec::new();
    let mut stays: Vec<Stays> = Vec::new();
    let mut bound = Bound::default();
    for round in 0..=ROUNDS {
        let mut seen = look(run, branch, placement, borders)?;
        if round == 0 {
            report_lossy(run.pool, seen.left.iter());
            summary.before(&seen.steps);
            if run.agrees(&seen.steps)? && kept.is_none() {
                *kept = Some(NoCreation::on(run.pool, &run.pool.branches[branch].path)?);
                // What was made there while the question was open goes, too.
                seen = look(run, branch, placement, borders)?;
            }
        }
        let Look { job, disks, steps, .. } = seen;
        bound.kept = seen.kept;
        bound.belongs = job.belongs;
        stays = job.stays.into_iter().chain(seen.homeless).collect();
        if round == ROUNDS {
            let late = |step: &Step| Stays {
                path: run.pool.mountpoint.join(&step.names[0]),
                why: "it appeared in the meantime".into(),
            };
            stays.extend(steps.iter().map(late));
            break;
        }
        let outcome = if kept.is_some() { run.mover().run(&steps)? } else { Outcome::default() };
        let moved = outcome.moved.files;
        // What stayed may go in the next round, and then counts there.
        total = total.followed_by(outcome);
        planned.extend(steps);
        if kept.is_some() && !run.stop.is_set() && run.filter.is_open() {
            stays.extend(empty_dirs(run, &job.dirs, branch, &disks)?);
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
    disks: Disks,
    steps: Vec<Step>,
    /// What no branch has room for, and copies that cannot go.
    homeless: Vec<Stays>,
    /// What no branch has room for on which rules and tiers want it.
    kept: Vec<KeptByRule>,
    /// What only branches have room for that cannot store all of every file.
    left: Vec<FileCopy>,
}

fn look(run: &Run<'_>, branch: usize, placement: &Placement, borders: &Borders<'_>) -> Result<Look> {
    let mut job =
        look_through(run.pool, &[PathBuf::new()], &|index| index == branch, &run.filter, &run.stop)?;
    let disks = Disks::of(run.pool, &|index| index != branch && run.pool.branches[index].is_whole())?;
    let last = Disks::of(run.pool, &|index| index != branch)?;
    let Plan { mut steps, mut homeless, kept, left } = plan(&job, [&disks, &last], borders, run.pool);
    let (leaving, shared) = several::leave(run.pool, branch, placement, std::mem::take(&mut job.shared))?;
    steps.extend(leaving);
    homeless.extend(shared);
    Ok(Look { job, disks, steps, homeless, kept, left })
}

struct Plan {
    steps: Vec<Step>,
    /// What no branch has room for.
    homeless: Vec<Stays>,
    /// What no branch has room for on which rules and tiers want it.
    kept: Vec<KeptByRule>,
    left: Vec<FileCopy>,
}

/// The second disks are those that cannot store all of every file, too: they get what the first have no room for, and what
/// loses nothing there.
fn plan(job: &Job, [disks, last]: [&Disks; 2], borders: &Borders<'_>, pool: &PoolLink) -> Plan {
    let mut found: Vec<&Found> = job.found.iter().collect();
    // The largest first: the small ones fill what is left.
    found.sort_by_key(|found| std::cmp::Reverse(found.copy.used()));
    let (items, classes) = borders.items(&found, disks, false);
    let (moves, left) = distribute(&disks.list, &items, &classes);
    let mut steps = steps(&moves, &found);
    let left: Vec<&Found> = left.into_iter().map(|index| found[index]).collect();
    let (items, classes) = borders.items(&left, last, false);
    let (moves, none) = distribute(&last.list, &items, &classes);
    steps.extend(super::steps(&moves, &left));
    let (mut homeless, mut kept) = (Vec::new(), Vec::new());
    for found in none.into_iter().map(|index| left[index]) {
        match borders.keeps(found) {
            Some(bound) => kept.push(bound),
            None => {
                let why = if pool.losing(&found.copy.stat).is_empty() { NO_ROOM } else { NO_ROOM_FOR_ALL };
                homeless.push(Stays { path: pool.mountpoint.join(&found.names[0]), why: why.into() });
            }
        }
    }
    let left = left.iter().map(|found| found.copy).collect();
    Plan { steps, homeless, kept, left }
}

/// Removes empty directories from the branch, from the bottom. The last copy of one is cloned first.
fn empty_dirs(
    run: &Run<'_>,
    dirs: &[(PathBuf, Vec<usize>)],
    branch: usize,
    disks: &Disks,
) -> Result<Vec<Stays>> {
    let takers = (0..disks.list.len()).filter_map(|disk| Some((disks.taker(disk)?, disks.list[disk].free)));
    let Some((to, _)) = takers.max_by_key(|(_, free)| *free) else { return Ok(Vec::new()) };
    let here = dirs.iter().rev().filter(|(_, held)| held.contains(&branch));
    let steps: Vec<Step> = here.map(|(path, _)| Step::whole(vec![path.clone()], branch, to, 0)).collect();
    let outcome = run.silent_mover().run(&steps)?;
    // A directory that holds something that stays is no news.
    Ok(outcome.stays.into_iter().filter(|stay| stay.why != super::mover::NOT_EMPTY).collect())
}

/// Asks whether to remove the branch.
fn asks_to_remove(run: &Run<'_>, branch: &Path, state: &str) -> bool {
    let (branch, pool) = (shown(branch), shown(&run.pool.mountpoint));
    let question = format!("{branch} {state}. Remove it from {pool} and its config file?");
    says_yes(&question, &run.stop).unwrap_or(false)
}
