//! `mergerfs.consolidate`: for each directory by itself, its files go to the branch with the most free space.

use super::{eager, start};
use crate::consent::ConsentArgs;
use crate::error::Result;
use crate::filter::{Filter, FilterArgs, size};
use crate::relocate::{
    Bound, MoveCandidate, NO_ROOM, Run, RunArgs, Told, collect_with_copies, file, layout, placement,
};
use canopy_policy::layout::Pick;
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
    let job = collect_with_copies(&run, &placement, &[below], &gives)?;
    let mut layout = layout(&pool, Some(&placement))?;
    let mut by_dir: BTreeMap<&Path, Vec<&MoveCandidate>> = BTreeMap::new();
    for found in &job.found {
        let dir = found.names[0].parent().unwrap_or(Path::new(""));
        by_dir.entry(dir).or_default().push(found);
    }
    let (mut tasks, mut stays, mut bound) = (Vec::new(), Vec::new(), Bound::default());
    for (dir, files) in by_dir {
        let bytes: u64 = files.iter().map(|found| found.first().size()).sum();
        let skipped = files.len() < 2 || files.len() > args.max_files || bytes >= args.max_size;
        if skipped || !dirs.admits_path(&pool.mountpoint, dir) {
            continue;
        }
        layout.hold(files.iter().map(|found| file(&pool, found)).collect());
        let Some(plan) = layout.gather(Pick::MostFree) else { continue };
        let told = Told::of(&plan, &files, &pool, NO_ROOM);
        tasks.extend(told.tasks);
        stays.extend(told.stays);
        bound.kept.extend(told.kept);
    }
    run.carry_out_within("consolidate", &tasks, &stays, &bound)
}
