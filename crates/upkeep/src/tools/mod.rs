//! The programs of mergerfs-tools, under their old names and with their old options.

mod consolidate;
mod ctl;
mod dedup;
mod dup;

use crate::consent::ConsentArgs;
use crate::error::{Error, Result};
use crate::filter::{FilterArgs, size};
use crate::manners::ThrottleArgs;
use crate::pool_link::PoolLink;
use crate::relocate::{BalanceArgs, RulesArgs, RunArgs, balance};
use clap::{Parser, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// One of the old programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tool {
    Balance,
    Consolidate,
    Ctl,
    Dedup,
    Dup,
    Fsck,
}

impl Tool {
    /// Every tool, with its name.
    pub const ALL: [(&'static str, Tool); 6] = [
        ("mergerfs.balance", Tool::Balance),
        ("mergerfs.consolidate", Tool::Consolidate),
        ("mergerfs.ctl", Tool::Ctl),
        ("mergerfs.dedup", Tool::Dedup),
        ("mergerfs.dup", Tool::Dup),
        ("mergerfs.fsck", Tool::Fsck),
    ];
}

/// A command line of an old program.
#[derive(Debug)]
pub enum ToolCommand {
    Balance(OldBalance),
    Consolidate(consolidate::OldConsolidate),
    Ctl(ctl::Ctl),
    Dedup(dedup::OldDedup),
    Dup(dup::OldDup),
    /// For `canopy fsck`.
    Fsck(OldFsck),
}

/// Parses a command line of an old program.
///
/// # Errors
/// Help and usage errors.
pub fn parse_tool(tool: Tool, args: impl IntoIterator<Item = OsString>) -> Result<ToolCommand, clap::Error> {
    Ok(match tool {
        Tool::Balance => ToolCommand::Balance(OldBalance::try_parse_from(args)?),
        Tool::Consolidate => ToolCommand::Consolidate(consolidate::OldConsolidate::try_parse_from(args)?),
        Tool::Ctl => ToolCommand::Ctl(ctl::Ctl::try_parse_from(args)?),
        Tool::Dedup => ToolCommand::Dedup(dedup::OldDedup::try_parse_from(dedup::join(args))?),
        Tool::Dup => ToolCommand::Dup(dup::OldDup::try_parse_from(args)?),
        Tool::Fsck => ToolCommand::Fsck(OldFsck::try_parse_from(args)?),
    })
}

/// Move files until branches are equally full (canopy balance)
#[derive(Parser, Debug)]
#[command(name = "mergerfs.balance")]
pub struct OldBalance {
    /// Starting directory
    dir: PathBuf,
    /// Percentage range of free space
    #[arg(short = 'p', value_name = "PERCENTAGE", default_value = "2.0", value_parser = crate::relocate::percent)]
    percentage: f64,
    /// Only files whose names match
    #[arg(short, long)]
    include: Vec<String>,
    /// No files whose names match
    #[arg(short, long)]
    exclude: Vec<String>,
    /// Only files whose paths match
    #[arg(short = 'I', long)]
    include_path: Vec<String>,
    /// No files whose paths match
    #[arg(short = 'E', long)]
    exclude_path: Vec<String>,
    /// No files smaller than this
    #[arg(short = 's', value_name = "SIZE", value_parser = size)]
    exclude_lt: Option<u64>,
    /// No files larger than this
    #[arg(short = 'S', value_name = "SIZE", value_parser = size)]
    exclude_gt: Option<u64>,
}

/// Find copies that differ in owner or mode (canopy fsck)
#[derive(Parser, Debug)]
#[command(name = "mergerfs.fsck")]
pub struct OldFsck {
    /// Starting directory
    pub dir: PathBuf,
    /// Print details, which it does anyway
    #[arg(short, long)]
    pub verbose: bool,
    /// Only consider if the size is the same
    #[arg(short, long)]
    pub size: bool,
    /// Fix policy
    #[arg(short, long)]
    pub fix: Option<OldFix>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum OldFix {
    Manual,
    Newest,
    Nonroot,
}

/// Runs an old program, except the one for `canopy fsck`. As before, what stays is no failure.
pub fn run_tool(command: &ToolCommand) -> Result<()> {
    let done = match command {
        ToolCommand::Balance(args) => old_balance(args),
        ToolCommand::Consolidate(args) => consolidate::run(args),
        ToolCommand::Ctl(args) => return ctl::run(args),
        ToolCommand::Dedup(args) => dedup::run(args),
        ToolCommand::Dup(args) => dup::run(args),
        ToolCommand::Fsck(_) => Ok(()),
    };
    match done {
        Err(Error::Left(..) | Error::CopiesLeft(..) | Error::NotCopied(..)) => Ok(()),
        other => other,
    }
}

fn old_balance(args: &OldBalance) -> Result<()> {
    let (pool, below) = start(&args.dir)?;
    let filter = FilterArgs {
        include: args.include.clone(),
        exclude: args.exclude.clone(),
        include_paths: args.include_path.clone(),
        exclude_paths: args.exclude_path.clone(),
        min_size: args.exclude_lt,
        max_size: args.exclude_gt,
        ..FilterArgs::default()
    };
    // The old program asked nothing.
    let run = RunArgs { consent: ConsentArgs::executing(true), lossy: false, manners: eager(filter) };
    balance(&BalanceArgs {
        pool: pool.mountpoint.clone(),
        to: args.percentage,
        run,
        below,
        rules: RulesArgs::default(),
    })
}

/// The old programs gave way to no other program.
fn eager(filter: FilterArgs) -> ThrottleArgs {
    ThrottleArgs { eager: true, filter, ..ThrottleArgs::default() }
}

/// Finds the pool and the directory in it that an old program is to begin at.
fn start(dir: &std::path::Path) -> Result<(PoolLink, PathBuf)> {
    crate::look::directory(dir)
}
