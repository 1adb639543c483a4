//! The options that all commands have which move, copy, remove or read the files of a pool.

use crate::filter::{FilterArgs, size};
use clap::Args;

/// How a command works and what it prints.
#[derive(Args, Clone, Debug, Default)]
pub struct ThrottleArgs {
    /// Print JSON: the plan (dry run) or what became of it
    #[arg(long)]
    pub json: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// At most this many bytes a second (20M)
    #[arg(long, value_name = "RATE", value_parser = size)]
    pub bwlimit: Option<u64>,
    /// Normal I/O priority (default: yield to others)
    #[arg(long)]
    pub eager: bool,
    #[command(flatten)]
    pub filter: FilterArgs,
}
