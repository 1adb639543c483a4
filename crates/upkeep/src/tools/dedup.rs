//! `mergerfs.dedup`: of each file, one copy stays. The old program removed copies that differ as well; these stay.

use super::{eager, start};
use crate::consent::ConsentArgs;
use crate::copies::{DedupArgs, Ignore, Old, dedup};
use crate::error::Result;
use crate::filter::FilterArgs;
use clap::{ArgAction, Parser, ValueEnum};
use std::ffi::OsString;
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
    /// Leave files alone whose copies are so; without a word, of the same size
    #[arg(short, long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "same-size")]
    ignore: Vec<How>,
    /// What copy to keep
    #[arg(short, long, value_name = "POLICY")]
    dedup: Option<Policy>,
    /// Leave files alone of which several copies are what is to stay
    #[arg(short, long)]
    strict: bool,
    /// Remove copies, instead of printing what would be removed
    #[arg(short, long)]
    execute: bool,
    /// Only files whose names match
    #[arg(short = 'I', long)]
    include: Vec<String>,
    /// No files whose names match
    #[arg(short = 'E', long)]
    exclude: Vec<String>,
    /// No files below directories with this name or path
    #[arg(short = 'D', long, value_name = "DIR")]
    exclude_dir: Vec<String>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Policy {
    Manual,
    Oldest,
    Newest,
    Largest,
    Smallest,
    #[value(name = "mostfreespace")]
    MostFreeSpace,
    Mergerfs,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    SameSize,
    DiffSize,
    SameTime,
    DiffTime,
    SameHash,
    DiffHash,
    SameShortHash,
    DiffShortHash,
}

impl How {
    fn ignore(self) -> Option<Ignore> {
        match self {
            How::SameSize => Some(Ignore::SameSize),
            How::DiffSize => Some(Ignore::DiffSize),
            How::SameTime => Some(Ignore::SameTime),
            How::DiffTime => Some(Ignore::DiffTime),
            // Only what differs is left, and that stays: nothing is removed.
            How::SameHash | How::SameShortHash => Some(Ignore::SameSize),
            // These are compared anyway, and stay.
            How::DiffHash | How::DiffShortHash => None,
        }
    }
}

/// Joins `-i WORD`, as the newer program has it, into one word; the older one has `-i` alone, also twice.
pub(super) fn join(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    for arg in args {
        let is_word = arg.to_str().is_some_and(|word| How::from_str(word, false).is_ok());
        match joined.last_mut() {
            Some(last) if is_word && matches!(last.to_str(), Some("-i" | "--ignore")) => {
                *last = "--ignore=".into();
                last.push(arg);
            }
            _ if arg == "-ii" => joined.extend(["-i".into(), "-i".into()]),
            _ => joined.push(arg),
        }
    }
    joined
}

pub(super) fn run(args: &OldDedup) -> Result<()> {
    let (pool, _) = start(&args.dir)?;
    let keep = args.dedup.map(|policy| match policy {
        Policy::Oldest => "oldest",
        Policy::Newest => "newest",
        Policy::Largest => "largest",
        Policy::Smallest => "smallest",
        Policy::MostFreeSpace => "emptiest",
        // What the pool shows.
        Policy::Manual | Policy::Mergerfs => "first",
    });
    let below = |dir: &String| match dir.strip_suffix('/').unwrap_or(dir) {
        dir if dir.starts_with('/') => format!("{dir}/*"),
        dir => format!("*/{dir}/*"),
    };
    let filter = FilterArgs {
        include: args.include.clone(),
        exclude: args.exclude.clone(),
        exclude_paths: args.exclude_dir.iter().map(below).collect(),
        ..FilterArgs::default()
    };
    dedup(&DedupArgs {
        pool: pool.mountpoint,
        paths: vec![args.dir.clone()],
        keep: keep.map(PathBuf::from),
        copies: 1,
        differing: false,
        link: None,
        consent: ConsentArgs::executing(args.execute),
        manners: eager(filter),
        old: Old {
            ignore: args.ignore.last().and_then(|how| how.ignore()),
            strict: args.strict,
            ties_by_space: true,
            asks: args.dedup == Some(Policy::Manual),
            is_mergerfs: true,
        },
        only_totals: args.verbose == 0,
    })
}
