//! `canopy disks`: the disks below the branches of pools, and how they are.

use super::{DiskHealth, Obstacle, Verdict};
use canopy_config::state::DISKS;
use canopy_control::OsText;
use canopy_terminal::{BAD, BOLD, WARNING, paragraph, print, print_json, print_styled, styled, table};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Show the disks of pools: model, temperature, health
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct DisksArgs {
    /// A pool's mountpoint or name [default: all pools]
    #[arg(value_name = "POOL")]
    pub mount: Option<PathBuf>,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// What is known of disks
    #[arg(long, value_name = "FILE", default_value = DISKS, hide = true)]
    pub disks_file: PathBuf,
}

const NOTES: &str = "\
smartctl (apt install smartmontools) asks the disks. One that sleeps is not
woken, and one that spins is asked only after it was used: what it told before
is shown, with how long ago that was. What has grown within a month counts; what
happened long ago is told only. canopy status and canopy notify warn of what is
wrong.

Examples:
  canopy disks
  canopy disks /pool --json | jq -r '.disks[] | .name + \" \" + .verdict'";

/// A disk, and the branches on it.
#[derive(Debug, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub health: DiskHealth,
    pub branches: Vec<OsText>,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report {
    disks: Vec<Row>,
    /// Why disks were not asked; null if they were, or need not be.
    obstacle: Option<&'static str>,
}

/// Prints the list. `rows`: each disk with its branches.
pub fn print_list(rows: Vec<Row>, obstacle: Option<Obstacle>, json: bool) {
    if json {
        return print_json(&Report { disks: rows, obstacle: obstacle.map(Obstacle::line) });
    }
    if rows.is_empty() {
        return print("no branch of a pool is on a disk\n");
    }
    let header = ["DISK", "MODEL", "SERIAL", "TEMP", "HOURS", "HEALTH", "BRANCHES"];
    print_styled(&table(&header, rows.iter().map(cells).collect(), 0, &[3, 4]));
    for row in rows.iter().filter(|row| !row.health.findings.is_empty()) {
        let words = format!("{}: {}", row.health.name, row.health.findings.join("; "));
        print_styled(&paragraph("  ", &words));
    }
    if let Some(obstacle) = obstacle {
        print(&paragraph("", obstacle.line()));
    }
}

fn cells(row: &Row) -> Vec<String> {
    let disk = &row.health;
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let word = disk.verdict.word();
    let word = match disk.verdict {
        Verdict::Failing => styled(BAD, word),
        Verdict::Worn => styled(WARNING, word),
        Verdict::Good => styled(BOLD, word),
        Verdict::Unknown => "-".into(),
    };
    let branches: Vec<String> = row.branches.iter().map(OsText::one_line).collect();
    vec![
        disk.name.clone(),
        or_dash(disk.model.clone()),
        or_dash(disk.serial.clone()),
        or_dash(disk.temperature.map(|degrees| format!("{degrees} C"))),
        or_dash(disk.hours.map(|hours| hours.to_string())),
        format!("{word}{}", asked(disk)),
        branches.join(" "),
    ]
}

/// Returns since when what is shown is known, if that is not now.
fn asked(disk: &DiskHealth) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let ago = disk.asked.map(|at| now.saturating_sub(at.unsigned_abs()));
    let ago = match ago {
        None => None,
        Some(0..120) => None,
        Some(seconds @ 120..7200) => Some(format!("{} min ago", seconds / 60)),
        Some(seconds @ 7200..172_800) => Some(format!("{} h ago", seconds / 3600)),
        Some(seconds) => Some(format!("{} days ago", seconds / 86_400)),
    };
    match (disk.asleep, ago) {
        (true, Some(ago)) => format!(", asleep ({ago})"),
        (true, None) => ", asleep".into(),
        (false, Some(ago)) => format!(" ({ago})"),
        (false, None) => String::new(),
    }
}
