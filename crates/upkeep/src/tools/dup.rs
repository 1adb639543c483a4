//! `mergerfs.dup`: more copies of files. The old program overwrote copies that differ; these stay, and are told.

use super::{eager, start};
use crate::consent::ConsentArgs;
use crate::copies::{DedupArgs, DupArgs, Old, dedup, dup};
use crate::error::{Error, Result};
use crate::filter::FilterArgs;
use crate::relocate::RunArgs;
use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// Make copies of files on other branches (canopy dup)
#[derive(Parser, Debug)]
#[command(name = "mergerfs.dup")]
pub struct OldDup {
    /// Starting directory
    dir: PathBuf,
    /// How many copies there are to be
    #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    count: u16,
    /// What copy stays in any case
    #[arg(short, long, value_name = "POLICY")]
    dup: Option<Policy>,
    /// Remove copies above the number, too
    #[arg(short, long)]
    prune: bool,
    /// Only files whose names match
    #[arg(short = 'I', long)]
    include: Vec<String>,
    /// No files whose names match
    #[arg(short = 'E', long)]
    exclude: Vec<String>,
    /// Make the copies, instead of printing what would be done
    #[arg(short, long)]
    execute: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Policy {
    Newest,
    Oldest,
    Smallest,
    Largest,
    Mergerfs,
}

pub(super) fn run(args: &OldDup) -> Result<()> {
    let (pool, _) = start(&args.dir)?;
    let filter =
        FilterArgs { include: args.include.clone(), exclude: args.exclude.clone(), ..FilterArgs::default() };
    let consent = ConsentArgs::executing(args.execute);
    let run = RunArgs { consent, lossy: false, manners: eager(filter.clone()) };
    let paths = vec![args.dir.clone()];
    let copied =
        dup(&DupArgs { pool: pool.mountpoint.clone(), paths: paths.clone(), copies: args.count, run });
    if !args.prune || !matches!(copied, Ok(()) | Err(Error::NotCopied(_))) {
        return copied;
    }
    let keep = match args.dup {
        Some(Policy::Newest) => Some("newest"),
        Some(Policy::Oldest) => Some("oldest"),
        Some(Policy::Largest) => Some("largest"),
        Some(Policy::Smallest) => Some("smallest"),
        // What the pool shows.
        Some(Policy::Mergerfs) | None => None,
    };
    dedup(&DedupArgs {
        pool: pool.mountpoint,
        paths,
        keep: keep.map(PathBuf::from),
        copies: args.count,
        differing: false,
        link: None,
        consent,
        manners: eager(filter),
        old: Old::default(),
        only_totals: false,
    })
}
