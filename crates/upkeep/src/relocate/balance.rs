//! `canopy balance`: evens out how full the branches are.

use super::job::MoveCandidate;
use super::layout::NO_ROOM;
use super::several::collect;
use super::{Bound, RulesArgs, Run, RunArgs, Told, file, layout, placement};
use crate::error::Result;
use crate::output::report_lossy;
use crate::pool_link::PoolLink;
use canopy_policy::layout::Layout;
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
    let placement = placement(&pool)?;
    let job = collect(&run, &placement, std::slice::from_ref(&args.below), &gives)?;
    let found: Vec<&MoveCandidate> = job.found.iter().collect();
    report_lossy(&pool, job.found.iter().map(MoveCandidate::first));
    let mut layout = layout(&pool, args.rules.heeded(&placement))?;
    layout.hold(job.found.iter().map(|found| file(&pool, found)).collect());
    let mut open = layout.is_bound().then(|| layout.unbound());
    let plan = layout.balance(args.to / 100.0);
    let reached = apart(&layout);
    let note = open.as_mut().and_then(|open| {
        open.balance(args.to / 100.0);
        let possible = apart(open);
        let falls_short = reached > possible && reached as f64 > args.to;
        falls_short.then(|| {
            format!(
                "rules and tiers keep the used shares {reached}% apart, and not {possible}% (--against-rules)"
            )
        })
    });
    let Told { tasks, .. } = Told::of(&plan, &found, &pool, NO_ROOM);
    // What cannot move was not asked to; the shares tell how far it got.
    run.carry_out_within("balance", &tasks, &[], &Bound { note, ..Bound::default() })
}

/// Returns how many per cent the used shares of all disks differ.
fn apart(layout: &Layout<'_>) -> u64 {
    (layout.spread_of_shares() * 100.0).round() as u64
}
