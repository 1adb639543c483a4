//! `canopy consolidate`: brings the files of a directory together on one branch.

use super::job::{Disks, collect};
use super::mover::Step;
use super::{Run, RunArgs};
use crate::error::{Error, Result};
use crate::plan::{Item, gather};
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
    pub run: RunArgs,
}

const NOTES: &str = "\
Filters: --include, --exclude GLOB, --min-size, --max-size SIZE, --older,
--newer AGE, --owner USER (man canopy-consolidate).
Example: canopy consolidate /mnt/pool /mnt/pool/albums/one";

/// Runs the command.
pub fn consolidate(args: &ConsolidateArgs) -> Result<()> {
    let pool = PoolLink::named(&args.pool)?;
    let run = Run::new(&pool, &args.run)?;
    let chosen = args.to.as_deref().map(|word| taking(&pool, word)).transpose()?;
    let gives = |branch: usize| pool.branches[branch].gives();
    let (mut steps, mut stays) = (Vec::new(), Vec::new());
    let mut disks = Disks::of(&pool, &|branch| chosen.is_none_or(|chosen| branch == chosen))?;
    for dir in &args.dirs {
        let start = pool.inside(dir)?;
        let job = collect(&pool, &[start], &gives, &run.filter, &run.stop)?;
        stays.extend(job.stays);
        let items: Vec<Item> = job.found.iter().map(|found| disks.item(found)).collect();
        let disk = gather(&disks.list, &items).ok_or_else(|| Error::NoRoom(dir.clone()))?;
        let Some(to) = disks.taker(disk) else { continue };
        for found in &job.found {
            // Files on another branch of the same disk count as being there, unless a branch was named.
            let is_there = match chosen {
                Some(chosen) => found.copy.branch == chosen,
                None => disks.item(found).disk == disk,
            };
            if !is_there {
                let item = disks.item(found);
                let taken = if item.disk == disk { 0 } else { item.bytes };
                disks.list[disk].free = disks.list[disk].free.saturating_sub(taken);
                steps.push(Step::of(found, to));
            }
        }
    }
    run.carry_out("consolidate", &steps, &stays)
}

/// Finds a branch by its path, which must take files.
pub(super) fn taking(pool: &PoolLink, word: &std::path::Path) -> Result<usize> {
    let branch = pool.branch(word)?;
    let why = match &pool.branches[branch] {
        link if link.takes() => return Ok(branch),
        link if !link.gives() && link.mode != "RO" => "the pool does not rely on it (canopy status)",
        link if link.mode == "RO" => "its mode is RO",
        _ => "its mode is NC, so it takes no new files",
    };
    Err(Error::Branch { branch: word.to_owned(), why })
}
