//! The table of programs that walk a tree.

use super::{Bench, TableId, Targets, row};
use crate::error::{Error, ErrorContext};
use crate::measure::Table;
use crate::statistics::Unit;
use crate::workload::Target;
use crate::workload::footprint::Memory;
use crate::workload::process::missing;
use crate::workload::walk::{ColdWalk, LaterWalk, Program, Walk};
use canopy_sys::shown::Show as _;
use std::fs;

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

/// Walks some time after the last one, and walks for which the kernel has to ask for all: the branches themselves, or what the pool keeps
/// of them elsewhere.
pub(super) fn cold<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Error> {
    let mut targets = Targets::new(bench)?;
    let store = bench.testbed.home().join("catalogue");
    fs::create_dir_all(&store).context("make", &store)?;
    let keeps = format!("catalogue={}", store.shown());
    let sides = [
        targets.isolated_branch()?,
        targets.isolated_pool("pool", "catalogue=off")?,
        targets.isolated_pool("catalogue", &keeps)?,
    ];
    let sides: Vec<&Target> = sides.iter().collect();
    let (shape, rested) = (bench.scale.tree, bench.scale.rested);
    let cold = |program: Program, title: &str| {
        let row = row(title, Unit::Time, ColdWalk { program, shape, rested }, &sides);
        row.max_rounds(bench.scale.slow_rounds.min(3))
    };
    let program = Program::LsRecursive;
    let mut later =
        row("ls -lR, a minute later", Unit::Time, LaterWalk { program, shape }, &sides).max_rounds(1);
    (later.pause, later.count_requests) = (rested, true);
    let mut rows = vec![later, cold(Program::FindFiles, "find -type f, cold"), cold(program, "ls -lR, cold")];
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        let memory = row("memory of the server a name", Unit::Size, Memory::of(shape), &sides[1..]);
        // Before anything has walked the tree.
        rows.insert(0, memory.max_rounds(1));
    }
    let title = format!(
        "Programs that walk {} entries later, and after the kernel has forgotten them",
        shape.entries()
    );
    let mut table = targets.table(TableId::Cold, title, rows);
    if !is_root {
        let note = "Only root has the kernel forget, and sees what the server's processes take: there are no rows of that.";
        table.notes.push(note.into());
    }
    Ok(table)
}
