//! `canopy consolidate`: brings the files of a directory together on one branch.

use super::job::MoveCandidate;
use super::layout::NO_ROOM;
use super::several::collect;
use super::{Bound, RulesArgs, Run, RunArgs, Told, file, layout, placement};
use crate::error::{Error, Result};
use crate::output::report_lossy;
use crate::pool_link::PoolLink;
use canopy_policy::layout::Pick;
use clap::Args;
use std::path::PathBuf;

/// Bring the files of a directory together on one branch
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct ConsolidateArgs {
    /// The pool's mountpoint or name
    pub pool: PathBuf,
    /// Directories of the pool; each with everything below it
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// The branch, instead of the one that holds most of it
    #[arg(long, value_name = "BRANCH")]
    pub to: Option<PathBuf>,
    #[command(flatten)]
    pub rules: RulesArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

const NOTES: &str = "\
Example: canopy consolidate /mnt/pool /mnt/pool/albums/one";

/// Runs the command.
pub fn consolidate(args: &ConsolidateArgs) -> Result<()> {
    let mut pool = PoolLink::named(&args.pool)?.accepting_losses(args.run.lossy);
    let chosen = args.to.as_deref().map(|word| taking(&mut pool, word)).transpose()?;
    let run = Run::new(&pool, &args.run)?;
    let gives = |branch: usize| pool.branches[branch].gives();
    let placement = placement(&pool)?;
    let collect = |dir: &PathBuf| collect(&run, &placement, &[pool.inside(dir)?], &gives);
    let jobs = args.dirs.iter().map(collect).collect::<Result<Vec<_>>>()?;
    let mut layout = layout(&pool, args.rules.heeded(&placement))?;
    let (mut tasks, mut stays, mut bound) = (Vec::new(), Vec::new(), Bound::default());
    for (dir, job) in args.dirs.iter().zip(&jobs) {
        report_lossy(&pool, job.found.iter().map(MoveCandidate::first));
        layout.hold(job.found.iter().map(|found| file(&pool, found)).collect());
        let plan = match chosen {
            // A branch that was named is asked for by name: then only rules count.
            Some(to) => Some(layout.bring(to, true)).filter(|plan| plan.finds_room()),
            None => layout.gather(Pick::LeastMoves),
        };
        let plan = plan.ok_or_else(|| Error::NoRoom(dir.clone()))?;
        let found: Vec<&MoveCandidate> = job.found.iter().collect();
        let told = Told::of(&plan, &found, &pool, NO_ROOM);
        tasks.extend(told.tasks);
        stays.extend(job.stays.iter().cloned().chain(told.stays));
        bound.kept.extend(told.kept);
    }
    run.carry_out_within("consolidate", &tasks, &stays, &bound)
}

/// Finds a branch by its path, which must take files.
pub(super) fn taking(pool: &mut PoolLink, word: &std::path::Path) -> Result<usize> {
    let branch = pool.branch(word)?;
    pool.branches[branch].is_named = true;
    let why = match &pool.branches[branch] {
        link if link.takes() => return Ok(branch),
        link if !link.gives() && link.mode != "RO" => "it is gone or failing (canopy status)",
        link if link.mode == "RO" => "its mode is RO",
        _ => "its mode is NC, so it takes no new files",
    };
    Err(Error::Branch { branch: word.to_owned(), why })
}
