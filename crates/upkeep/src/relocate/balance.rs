//! `canopy balance`: evens out how full the branches are.

use super::job::{Disks, collect};
use super::{Run, RunArgs, steps};
use crate::error::Result;
use crate::plan::{Item, balance as plan};
use crate::pool_link::PoolLink;
use clap::Args;
use std::path::PathBuf;

/// Even out how full the branches of a pool are
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct BalanceArgs {
    /// The pool's mountpoint or name
    pub pool: PathBuf,
    /// How far the used shares may differ then
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    pub to: f64,
    #[command(flatten)]
    pub run: RunArgs,
    /// The directory whose files may move, relative to the root of the pool.
    #[arg(skip)]
    pub(crate) below: PathBuf,
}

const NOTES: &str = "\
Moves as little as possible. Filters: --include, --exclude GLOB, --min-size,
--max-size SIZE, --older, --newer AGE, --owner USER (man canopy-balance).

Example:
  canopy balance /mnt/pool --to 10% --bwlimit 50M";

/// Parses a share such as `5%`.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>();
    number.ok().filter(|number| (0.0..=100.0).contains(number)).ok_or("must be between 0% and 100%".into())
}

/// Runs the command.
pub fn balance(args: &BalanceArgs) -> Result<()> {
    let pool = PoolLink::named(&args.pool)?;
    let run = Run::new(&pool, &args.run)?;
    let gives = |branch: usize| pool.branches[branch].gives();
    let job = collect(&pool, std::slice::from_ref(&args.below), &gives, &run.filter, &run.stop)?;
    let disks = Disks::of(&pool, &|_| true)?;
    let items: Vec<Item> = job.found.iter().map(|found| disks.item(found)).collect();
    let moves = plan(&disks.list, &items, args.to / 100.0);
    let steps = steps(&moves, &job.found, &disks);
    // What cannot move was not asked to; the shares tell how far it got.
    run.carry_out("balance", &steps, &[])
}
