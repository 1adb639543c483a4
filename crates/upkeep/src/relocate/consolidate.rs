//! `canopy consolidate`: brings the files of a directory together on one branch.

use super::job::{Disks, Found};
use super::mover::Step;
use super::several::collect;
use super::{Borders, Bound, RulesArgs, Run, RunArgs, placement};
use crate::error::{Error, Result};
use crate::output::report_lossy;
use crate::plan::gather;
use crate::pool_link::PoolLink;
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
    let borders = Borders::new(&pool, &placement, args.rules);
    let (mut steps, mut stays, mut bound) = (Vec::new(), Vec::new(), Bound::default());
    let mut disks = Disks::of(&pool, &|branch| chosen.is_none_or(|chosen| branch == chosen))?;
    for dir in &args.dirs {
        let start = pool.inside(dir)?;
        let job = collect(&run, &placement, &[start], &gives, &mut |held| {
            let is_there = chosen.is_some_and(|to| held.iter().any(|copy| copy.branch == to));
            held.iter().find(|copy| !is_there && gives(copy.branch)).copied()
        })?;
        stays.extend(job.stays);
        let found: Vec<&Found> = job.found.iter().collect();
        report_lossy(&pool, found.iter().map(|found| &found.copy));
        // A branch that was named is asked for by name: then only rules count.
        let (mut items, classes) = match chosen {
            Some(_) => Borders::open(&pool).items(&found, &disks, false),
            None => borders.items(&found, &disks, false),
        };
        // Any copy of a file is enough where most of the others are.
        let home = (0..disks.list.len()).max_by_key(|disk| held(&found, *disk, &disks));
        for (found, item) in found.iter().zip(&mut items) {
            item.disk = home.filter(|disk| found.is_on(*disk, &disks)).unwrap_or(item.disk);
        }
        let disk = gather(&disks.list, &items, &classes).ok_or_else(|| Error::NoRoom(dir.clone()))?;
        for (found, item) in found.into_iter().zip(&items) {
            // Files on another branch of the same disk count as being there, unless a branch was named.
            let is_there = match chosen {
                Some(chosen) => found.copy.branch == chosen,
                None => found.is_on(disk, &disks),
            };
            if is_there {
                continue;
            }
            let (forbidden, taker) = match chosen {
                Some(to) => (borders.forbid(found, to), Some(to)),
                None => (None, classes[item.class].taker(disk)),
            };
            match (forbidden, taker) {
                (None, Some(to)) => {
                    let taken = if item.disk == disk { 0 } else { item.bytes };
                    disks.list[disk].free = disks.list[disk].free.saturating_sub(taken);
                    steps.push(Step::of(found, to));
                }
                (forbidden, _) => bound.kept.extend(forbidden.or_else(|| borders.keeps(found))),
            }
        }
    }
    run.carry_out_within("consolidate", &steps, &stays, &bound)
}

/// Returns how many bytes of some files a disk holds, in any of their copies.
fn held(found: &[&Found], disk: usize, disks: &Disks) -> u64 {
    found.iter().filter(|found| found.is_on(disk, disks)).map(|found| found.copy.used()).sum()
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
