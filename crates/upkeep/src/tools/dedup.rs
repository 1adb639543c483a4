//! `mergerfs.dedup`: of each file, one copy stays. The old program removed copies that differ as well; these stay.

use super::{eager, start};
use crate::copies::{DedupArgs, dedup};
use crate::error::Result;
use crate::filter::FilterArgs;
use clap::{ArgAction, Parser, ValueEnum};
use std::path::PathBuf;

/// Remove surplus copies of files (canopy dedup)
#[derive(Parser, Debug)]
#[command(name = "mergerfs.dedup")]
pub struct OldDedup {
    /// Starting directory
    dir: PathBuf,
    /// Print each copy that goes
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// Leave files alone whose copies have the same size
    #[arg(short, long, action = ArgAction::Count)]
    ignore: u8,
    /// What copy to keep
    #[arg(short, long, value_name = "POLICY")]
    dedup: Option<Policy>,
    /// Remove copies, instead of printing what would be removed
    #[arg(short, long)]
    execute: bool,
}

/// The policies of the old program, except `manual`, which asked for each file.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Policy {
    Newest,
    Largest,
    #[value(name = "mostfreespace")]
    MostFreeSpace,
}

pub(super) fn run(args: &OldDedup) -> Result<()> {
    let (pool, _) = start(&args.dir)?;
    let keep = args.dedup.map(|policy| match policy {
        Policy::Newest => "newest",
        Policy::Largest => "largest",
        Policy::MostFreeSpace => "emptiest",
    });
    dedup(&DedupArgs {
        pool: pool.mountpoint,
        paths: vec![args.dir.clone()],
        keep: keep.map(PathBuf::from),
        copies: 1,
        differing: false,
        link: None,
        write: args.execute,
        manners: eager(FilterArgs::default()),
        ignore_same_size: args.ignore > 0,
        only_totals: args.verbose == 0,
    })
}
