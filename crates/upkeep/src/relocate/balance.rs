//! `canopy balance`: evens out how full the branches are.

use super::job::{Disks, Found};
use super::several::collect;
use super::{Borders, Bound, RulesArgs, Run, RunArgs, placement, steps};
use crate::error::Result;
use crate::output::report_lossy;
use crate::plan::{Disk, balance as plan, spread};
use crate::pool_link::PoolLink;
use crate::survey::FileCopy;
use clap::Args;
use std::path::PathBuf;

/// Even out how full the branches of a pool are
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct BalanceArgs {
    /// The pool's mountpoint or name
    pub pool: PathBuf,
    /// How far used shares may differ afterwards
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    pub to: f64,
    #[command(flatten)]
    pub rules: RulesArgs,
    #[command(flatten)]
    pub run: RunArgs,
    /// The directory whose files may move, relative to the root of the pool.
    #[arg(skip)]
    pub(crate) below: PathBuf,
}

const NOTES: &str = "\
Moves as little as possible. Files that belong to their disk stay, such as
lost+found and .snapraid.content, and whatever the pool's option keep names.

Example:
  canopy balance /mnt/pool --to 10% --bwlimit 50M";

/// Parses a share such as `5%`.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>();
    number.ok().filter(|number| (0.0..=100.0).contains(number)).ok_or("must be between 0% and 100%".into())
}

/// Runs the command.
pub fn balance(args: &BalanceArgs) -> Result<()> {
    let pool = PoolLink::named(&args.pool)?.accepting_losses(args.run.lossy);
    let run = Run::new(&pool, &args.run)?;
    let gives = |branch: usize| pool.branches[branch].gives();
    let disks = Disks::of(&pool, &|_| true)?;
    let placement = placement(&pool)?;
    // Of several copies, the one on the fullest disk, if those that were chosen before were gone.
    let mut left = disks.list.clone();
    let job = collect(&run, &placement, std::slice::from_ref(&args.below), &gives, &mut |held| {
        let on = |copy: &FileCopy| disks.of_branch(copy.branch);
        let movable =
            held.iter().filter(|copy| gives(copy.branch)).filter_map(|copy| Some((on(copy)?, copy)));
        let (disk, copy) = movable
            .max_by(|(one, _), (other, _)| left[*one].fullness().total_cmp(&left[*other].fullness()))?;
        left[disk].free = left[disk].free.saturating_add(copy.used()).min(left[disk].size);
        Some(*copy)
    })?;
    let borders = Borders::new(&pool, &placement, args.rules);
    let found: Vec<&Found> = job.found.iter().collect();
    report_lossy(&pool, found.iter().map(|found| &found.copy));
    let planned = |borders: &Borders<'_>| {
        let (items, classes) = borders.items(&found, &disks, true);
        let mut after = disks.list.clone();
        let groups = borders.groups(&disks);
        let moves =
            groups.iter().flat_map(|group| plan(&mut after, group, &items, &classes, args.to / 100.0));
        let moves: Vec<_> = moves.collect();
        (moves, apart(&after))
    };
    let (moves, reached) = planned(&borders);
    let note = (!borders.are_open()).then(|| planned(&Borders::open(&pool)).1).and_then(|possible| {
        let falls_short = reached > possible && reached as f64 > args.to;
        falls_short.then(|| {
            format!(
                "rules and tiers keep the used shares {reached}% apart, and not {possible}% (--against-rules)"
            )
        })
    });
    // What cannot move was not asked to; the shares tell how far it got.
    run.carry_out_within("balance", &steps(&moves, &found), &[], &Bound { note, ..Bound::default() })
}

/// Returns how many per cent the used shares of all disks differ.
fn apart(disks: &[Disk]) -> u64 {
    let all: Vec<usize> = (0..disks.len()).collect();
    (spread(disks, &all) * 100.0).round() as u64
}
