//! The table of programs that walk a tree.

use super::{Bench, TableId, Targets, row};
use crate::error::Error;
use crate::measure::Table;
use crate::statistics::Unit;
use crate::workload::Target;
use crate::workload::process::missing;
use crate::workload::walk::{Program, Walk};

/// How much longer than on the branch a walk may take.
const LIMIT: f64 = 1.4;

pub(super) fn walks<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Error> {
    let mut targets = Targets::new(bench)?;
    let mut sides = vec![targets.isolated_branch()?, targets.pool("pool", 1, "")?];
    sides.extend(targets.against()?);
    let sides: Vec<&Target> = sides.iter().collect();
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    let shape = bench.scale.tree;
    for program in Program::ALL {
        if let Some(missing) = missing(&[program.name()]) {
            notes.push(format!("{missing} is not installed: no row for {}.", program.title()));
            continue;
        }
        let row = row(program.title(), Unit::Time, Walk { program, shape }, &sides);
        let mut row = row.goal(0, LIMIT).max_rounds(bench.scale.slow_rounds.min(3));
        row.count_requests = true;
        rows.push(row);
    }
    let title = format!("Programs that walk {} entries again at once", shape.entries());
    let mut table = targets.table(TableId::Walks, title, rows);
    table.notes.extend(notes);
    Ok(table)
}
