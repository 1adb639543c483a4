//! `mergerfs.consolidate`: for each directory by itself, its files go to the branch with the most free space.

use super::{eager, start};
use crate::consent::ConsentArgs;
use crate::error::Result;
use crate::filter::{Filter, FilterArgs, size};
use crate::relocate::{
    Borders, Bound, Disks, Found, Job, RulesArgs, Run, RunArgs, Step, collect_with_copies, placement,
};
use clap::Parser;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Bring the files of each directory together on one branch (canopy consolidate)
#[derive(Parser, Debug)]
#[command(name = "mergerfs.consolidate")]
pub struct OldConsolidate {
    /// Starting directory
    dir: PathBuf,
    /// Skip directories with more files
    #[arg(short, long, default_value_t = 256)]
    max_files: usize,
    /// Skip directories whose files add up to more
    #[arg(short = 'M', long, default_value = "16G", value_parser = size)]
    max_size: u64,
    /// Only directories whose paths match
    #[arg(short = 'I', long)]
    include_path: Vec<String>,
    /// No directories whose paths match
    #[arg(short = 'E', long)]
    exclude_path: Vec<String>,
    /// Move the files, instead of printing what would move
    #[arg(short, long)]
    execute: bool,
}

pub(super) fn run(args: &OldConsolidate) -> Result<()> {
    let (pool, below) = start(&args.dir)?;
    let consent = ConsentArgs::executing(args.execute);
    let run_args = RunArgs { consent, lossy: false, manners: eager(FilterArgs::default()) };
    let run = Run::new(&pool, &run_args)?;
    let dirs = Filter::new(&FilterArgs {
        include_paths: args.include_path.clone(),
        exclude_paths: args.exclude_path.clone(),
        ..FilterArgs::default()
    })?;
    let gives = |branch: usize| pool.branches[branch].gives();
    let placement = placement(&pool)?;
    let job: Job = collect_with_copies(&run, &placement, &[below], &gives, &mut |held| {
        held.iter().find(|copy| gives(copy.branch)).copied()
    })?;
    let mut disks = Disks::of(&pool, &|_| true)?;
    let mut by_dir: BTreeMap<&Path, Vec<&Found>> = BTreeMap::new();
    for found in &job.found {
        let dir = found.names[0].parent().unwrap_or(Path::new(""));
        by_dir.entry(dir).or_default().push(found);
    }
    let borders = Borders::new(&pool, &placement, RulesArgs::default());
    let (mut steps, mut bound) = (Vec::new(), Bound::default());
    for (dir, files) in by_dir {
        let bytes: u64 = files.iter().map(|found| found.copy.size()).sum();
        let skipped = files.len() < 2 || files.len() > args.max_files || bytes >= args.max_size;
        if skipped || !dirs.admits_path(&pool.mountpoint, dir) {
            continue;
        }
        let (items, classes) = borders.items(&files, &disks, false);
        // The disk must be one that rules and tiers allow most of them.
        let may = |disk: usize| items.iter().filter(|item| classes[item.class].taker(disk).is_some()).count();
        let takers = (0..disks.list.len()).filter(|disk| disks.taker(*disk).is_some());
        let Some(disk) = takers.max_by_key(|disk| (may(*disk), disks.list[*disk].free)) else { continue };
        for (found, item) in files.into_iter().zip(&items) {
            if found.is_on(disk, &disks) {
                continue;
            }
            match classes[item.class].taker(disk) {
                Some(to) => {
                    disks.list[disk].free = disks.list[disk].free.saturating_sub(item.bytes);
                    disks.list[item.disk].free += item.bytes;
                    steps.push(Step::of(found, to));
                }
                None => bound.kept.extend(borders.keeps(found)),
            }
        }
    }
    run.carry_out_within("consolidate", &steps, &[], &bound)
}
