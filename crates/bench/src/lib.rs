//! `canopy bench`: compares the speed of a pool with that of its own branch.
//!
//! `testbed` prepares the directories, `tables` defines what is measured, `workload` performs it, `measure` repeats it
//! on each side in turn, `statistics` computes ratios, `report` and `plot` show them. `floor` is the fastest possible
//! server.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod error;
pub mod floor;
mod interrupt;
mod measure;
mod plot;
mod report;
mod server;
mod statistics;
mod tables;
mod testbed;
mod workload;

pub use error::Error;
pub use measure::Clients;
pub use tables::TableId;

use canopy_config::Config;
use clap::{Args, ValueEnum};
use error::ErrorContext;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use report::{OutputFile, Report};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tables::{BRANCH_COUNTS, Bench, Scale};
use testbed::{Against, Testbed, TestbedSpec};

/// Measure how fast a pool is, compared with its own branch
#[derive(Args, Debug)]
#[command(after_help = notes())]
pub struct BenchArgs {
    /// Small and short, to see whether it works at all
    #[arg(long)]
    quick: bool,
    /// Measure only these tables
    #[arg(long, value_name = "TABLE[,TABLE]", value_delimiter = ',', hide_possible_values = true)]
    only: Vec<TableId>,
    /// Make the branches here instead of in memory
    #[arg(long, conflicts_with = "branch")]
    dir: Option<PathBuf>,
    /// Use a new directory in each of these as branches
    #[arg(long, num_args = 1.., value_name = "DIR")]
    branch: Vec<PathBuf>,
    /// Number of rounds in which each side is measured
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Branches in meta and programs [default: 1,8,32]
    #[arg(long, value_name = "N[,N]", value_delimiter = ',', conflicts_with = "branch",
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    pools: Vec<u32>,
    /// Bound to their processor, free, or both
    #[arg(long, value_name = "bound,free", value_delimiter = ',', hide_possible_values = true)]
    clients: Vec<Clients>,
    /// Options for every pool, as for canopy mount
    #[arg(short = 'o', value_name = "OPTIONS", action = clap::ArgAction::Append)]
    options: Vec<String>,
    /// Measure this mount too, or what COMMAND mounts
    #[arg(long, value_name = "PATH|COMMAND")]
    against: Option<String>,
    /// Write all figures to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the ratios to FILE, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// What follows the options in the help.
fn notes() -> String {
    let tables: Vec<&str> = TableId::value_variants().iter().map(|table| table.id()).collect();
    format!(
        "\
Tables: {}.
COMMAND gets the branches (A:B:C) and a mountpoint as its last words, and stays
in the foreground. As root the branches are on a tmpfs, otherwise in $TMPDIR.
The floor is a server that answers from memory: the cost of the round trip
alone. Everything that is made is removed, even on Ctrl-C.
Example: canopy bench --quick --only goals",
        tables.join(",")
    )
}

pub fn run(args: &BenchArgs) -> Result<(), Error> {
    // The kernel delivers signals to the main thread first. A thread that waits for a hung server would never take
    // them, so the main thread only waits for another thread.
    std::thread::scope(|scope| {
        let measuring = scope.spawn(|| measure(args));
        measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn measure(args: &BenchArgs) -> Result<(), Error> {
    let mut scale = if args.quick { Scale::QUICK } else { Scale::FULL };
    if let Some(rounds) = args.rounds {
        scale.rounds = rounds as usize;
    }
    let mut which = if args.only.is_empty() { TableId::value_variants().to_vec() } else { args.only.clone() };
    which.sort_unstable();
    which.dedup();
    // A file that cannot be written is an error before anything is measured.
    let json = args.json.as_deref().map(OutputFile::new).transpose()?;
    let plot = args.plot.as_deref().map(OutputFile::new).transpose()?;
    let counts = branch_counts(&args.pools, args.branch.len());
    let spec = TestbedSpec {
        dir: args.dir.clone(),
        branches: args.branch.clone(),
        against: args.against.as_deref().map(Against::new).transpose()?,
        need: which.iter().map(|&which| scale.bytes_needed(which)).max().unwrap_or_default(),
        count: counts.iter().copied().max().unwrap_or(1),
    };
    let testbed = Testbed::new(&spec)?;
    // The same priority as the servers, so that other processes disturb both alike. This may need privileges.
    let _ = rustix::process::setpriority_process(None, Config::default().priority);
    let mut report = Report::begin(&testbed, &args.options.join(","), scale.rounds, args.quick);
    let mut clients = if args.clients.is_empty() { vec![Clients::Bound] } else { args.clients.clone() };
    clients.sort_unstable();
    clients.dedup();
    let bench = Bench { testbed: &testbed, options: args.options.join(","), scale, counts, clients };
    let progress = progress();
    for which in which {
        progress.set_message(format!("{}: mounting", which.id()));
        let mut table = bench.table(which)?;
        progress.inc_length(table.rows.len() as u64);
        let figures = table.measure(scale.rounds, &testbed.interrupt, &progress)?;
        // Ends the servers before their branches are cleared.
        drop(table);
        clear(&testbed)?;
        progress.suspend(|| report::print(&figures));
        report.add(figures);
    }
    drop(progress);
    report.end();
    report::print_verdicts(&report);
    json.map(|output| output.write(&report.json())).transpose()?;
    plot.map(|output| output.write(&plot::svg(&report))).transpose()?;
    Ok(())
}

/// Returns the numbers of branches of the pools in ascending order: those that the user wants, or the default ones up to
/// the number of branches that were given.
fn branch_counts(wanted: &[u32], given: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = match (wanted, given) {
        ([], 0) => BRANCH_COUNTS.to_vec(),
        ([], given) => BRANCH_COUNTS.into_iter().filter(|&count| count < given).chain([given]).collect(),
        (wanted, _) => wanted.iter().map(|&count| count as usize).collect(),
    };
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Empties the branches for the next table.
fn clear(testbed: &Testbed) -> Result<(), Error> {
    for branch in testbed.branches() {
        for entry in fs::read_dir(branch).context("list", branch)? {
            let path = entry.context("list", branch)?.path();
            fs::remove_dir_all(&path).context("remove", &path)?;
        }
    }
    Ok(())
}

/// Makes a progress bar, which shows on a terminal only.
fn progress() -> ProgressBar {
    let bar = ProgressBar::new(0).with_finish(ProgressFinish::AndClear);
    let style = ProgressStyle::with_template("{spinner} {pos}/{len} [{elapsed}] {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_have_as_many_branches_as_the_user_says_or_has() {
        assert_eq!(branch_counts(&[], 0), [1, 8, 32]);
        assert_eq!(branch_counts(&[], 1), [1]);
        assert_eq!(branch_counts(&[], 9), [1, 8, 9]);
        assert_eq!(branch_counts(&[200, 1, 200], 0), [1, 200]);
    }
}
