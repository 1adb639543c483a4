//! The table of whole programs.

use super::{Bench, TableId, Targets, row};
use crate::error::Error;
use crate::measure::Table;
use crate::statistics::{Goal, Unit};
use crate::workload::Target;
use crate::workload::process::missing;
use crate::workload::program::{WholeProgram, Work};

pub(super) fn programs<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Error> {
    let mut targets = Targets::new(bench)?;
    let mut all = vec![targets.isolated_branch()?];
    for &count in &bench.counts {
        all.push(targets.pool(&format!("pool of {count}"), count, "")?);
    }
    let pools = all.len() - 1;
    all.extend(targets.against_wide(&bench.counts)?);
    let sides: Vec<&Target> = all.iter().collect();
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    let scale = &bench.scale;
    for work in Work::ALL {
        if let Some(missing) = missing(work.programs()) {
            notes.push(format!("{missing} is not installed: no row for {}.", work.title()));
            continue;
        }
        let workload = WholeProgram {
            work,
            shape: scale.program_tree,
            sources: scale.program_sources,
            commits: scale.program_commits,
        };
        let mut row = row(work.title(), Unit::Time, workload, &sides).max_rounds(scale.slow_rounds);
        row.count_requests = true;
        // A mounted filesystem stands beside the first pool.
        let against = 1 + pools..sides.len();
        let goals = (1..).zip(against).map(|(side, against)| (side, vec![against]));
        row.goals.extend(goals.map(|(side, of)| Goal { side, of, plus: 0.0, limit: limit(work) }));
        rows.push(row);
    }
    let entries = scale.program_tree.entries();
    let title = format!("Whole programs, with {entries} entries, once each");
    let mut table = targets.table(TableId::Programs, title, rows);
    table.notes.extend(notes);
    Ok(table)
}

/// Returns how long the pool may take for each second of the other filesystem.
fn limit(work: Work) -> f64 {
    match work {
        Work::Unpack | Work::Copy | Work::GitClone | Work::Remove => 0.5,
        Work::RsyncAgain | Work::Compile | Work::SqliteWal | Work::SqliteDelete => 1.0,
    }
}
