//! `canopy move`: moves files to a branch.

use super::consolidate::taking;
use super::job::{MoveCandidate, Stays};
use super::layout::NoRoom;
use super::several::collect;
use super::{Bound, RulesArgs, Run, RunArgs, Told, file, layout, placement};
use crate::error::Result;
use crate::output::shown;
use crate::pool_link::PoolLink;
use clap::Args;
use std::path::PathBuf;

/// Move files of a pool to a branch
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct MoveArgs {
    /// The pool's mountpoint or name
    pub pool: PathBuf,
    /// Files and directories of the pool; the latter with all below
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// The branch
    #[arg(long, value_name = "BRANCH")]
    pub to: PathBuf,
    #[command(flatten)]
    pub rules: RulesArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

const NOTES: &str = "\
The paths in the pool do not change.
Example: canopy move /mnt/pool /mnt/pool/films --to /mnt/disk3";

/// Runs the command.
pub fn move_files(args: &MoveArgs) -> Result<()> {
    let mut pool = PoolLink::named(&args.pool)?.accepting_losses(args.run.lossy);
    let to = taking(&mut pool, &args.to)?;
    let run = Run::new(&pool, &args.run)?;
    let apart = apart(&pool, &args.paths)?;
    let from = |branch: usize| branch != to && pool.branches[branch].gives();
    let placement = placement(&pool)?;
    let job = collect(&run, &placement, &apart, &from)?;
    let mut layout = layout(&pool, args.rules.heeded(&placement))?;
    layout.hold(job.found.iter().map(|found| file(&pool, found)).collect());
    // Who names a branch may fill it.
    let plan = layout.bring(to, false);
    let found: Vec<&MoveCandidate> = job.found.iter().collect();
    let no_room = format!("{} has no room", shown(&pool.branches[to].path));
    let Told { tasks, stays, kept } =
        Told::of(&plan, &found, &pool, NoRoom { why: &no_room, of_whole: &no_room });
    let stays: Vec<Stays> = job.stays.iter().cloned().chain(stays).collect();
    run.carry_out_within("move", &tasks, &stays, &Bound { kept, belongs: job.belongs, ..Bound::default() })
}

/// Returns the places of paths in the pool, without those that are within another.
pub(crate) fn apart(pool: &PoolLink, paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut starts = paths.iter().map(|path| pool.inside(path)).collect::<Result<Vec<_>>>()?;
    starts.sort();
    starts.dedup();
    // Sorted, what is within another start comes after it.
    let mut apart: Vec<PathBuf> = Vec::new();
    for start in starts {
        if !apart.iter().any(|above| start.starts_with(above)) {
            apart.push(start);
        }
    }
    Ok(apart)
}
