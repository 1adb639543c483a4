//! `canopy bench`: what a pool costs, beside its own branch.
//!
//! `testbed` makes the place, `tables` says what is measured there, `workload` does it, `measure` repeats it in turns,
//! `statistics` makes ratios of it, `report` and `plot` show them. `floor` is the server that costs as little as one can.

#![forbid(unsafe_code)]

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
use testbed::{Testbed, TestbedSpec};

/// Measure what a pool costs, in ratios to its own branch
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct BenchArgs {
    /// Small and short: whether it works at all
    #[arg(long)]
    quick: bool,
    /// Only these tables
    #[arg(long, value_name = "TABLE[,TABLE]", value_delimiter = ',', hide_possible_values = true)]
    only: Vec<TableId>,
    /// Make the branches here, rather than in memory
    #[arg(long, conflicts_with = "branch")]
    dir: Option<PathBuf>,
    /// Use a new directory in each of these as branches
    #[arg(long, num_args = 1.., value_name = "DIR")]
    branch: Vec<PathBuf>,
    /// How often each side is measured
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Options of every pool, as of canopy mount
    #[arg(short = 'o', value_name = "OPTIONS", action = clap::ArgAction::Append)]
    options: Vec<String>,
    /// Measure this mounted filesystem beside
    #[arg(long, value_name = "PATH")]
    against: Option<PathBuf>,
    /// Write all figures there, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the ratios there, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

const NOTES: &str = "\
Tables: goals, meta, concurrency, dd, reads, blocks, jobs: a few minutes in all.
Branches lie on a tmpfs of their own (root), or in $TMPDIR. The floor is a
server that answers from memory: what the way to a server and back costs. All
that is made is removed, also when interrupted.";

pub fn run(args: &BenchArgs) -> Result<(), Error> {
    // Signals come to the first thread. One that waits for a server does not take them, and would never, should
    // that hang; so the first waits for nothing but the others.
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
    // Before anything is measured for nothing.
    let json = args.json.as_deref().map(OutputFile::new).transpose()?;
    let plot = args.plot.as_deref().map(OutputFile::new).transpose()?;
    let spec = TestbedSpec {
        dir: args.dir.clone(),
        branches: args.branch.clone(),
        against: args.against.clone(),
        need: which.iter().map(|&which| scale.bytes_needed(which)).max().unwrap_or_default(),
        count: BRANCH_COUNTS[BRANCH_COUNTS.len() - 1],
    };
    let testbed = Testbed::new(&spec)?;
    // As the servers do: whoever asks and whoever answers are disturbed alike. Not everybody may.
    let _ = rustix::process::setpriority_process(None, Config::default().priority);
    let mut report = Report::begin(&testbed, &args.options.join(","), scale.rounds, args.quick);
    let bench = Bench { testbed: &testbed, options: args.options.join(","), scale };
    let progress = progress();
    for which in which {
        progress.set_message(format!("{}: mounting", which.id()));
        let mut table = bench.table(which)?;
        progress.inc_length(table.rows.len() as u64);
        let figures = table.measure(scale.rounds, &testbed.interrupt, &progress)?;
        // Its servers end here, before what they serve goes.
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

/// Makes room for the next table.
fn clear(testbed: &Testbed) -> Result<(), Error> {
    for branch in testbed.branches() {
        for entry in fs::read_dir(branch).context("list", branch)? {
            let path = entry.context("list", branch)?.path();
            fs::remove_dir_all(&path).context("remove", &path)?;
        }
    }
    Ok(())
}

/// On a terminal only.
fn progress() -> ProgressBar {
    let bar = ProgressBar::new(0).with_finish(ProgressFinish::AndClear);
    let style = ProgressStyle::with_template("{spinner} {pos}/{len} [{elapsed}] {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
