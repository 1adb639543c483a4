//! The tables about names and attributes.

use super::{BRANCH_COUNTS, Bench, TableId, Targets, row};
use crate::error::Error;
use crate::measure::{Row, Table};
use crate::statistics::Unit;
use crate::workload::Target;
use crate::workload::concurrent::MultiThread;
use crate::workload::listing::{Depth, ListDir};
use crate::workload::meta::{FileOp, NameKind, SingleThread, Stat};

/// Operations that have a row of their own: the key, the title and the operation.
pub(super) const FILE_OPS: [(&str, &str, FileOp); 4] = [
    ("open", "open, read 4 KiB, close", FileOp::OpenReadClose),
    ("create", "create, write 4 KiB, close", FileOp::CreateWriteClose),
    ("rename", "rename", FileOp::Rename),
    ("unlink", "unlink", FileOp::Unlink),
];

pub(super) fn first_stat<'s>(bench: &Bench<'s>, names: NameKind, targets: &[&Target]) -> Row<'s> {
    let (key, work) = match names {
        NameKind::Existing => ("first", "first stat of a name"),
        NameKind::Missing => ("first-missing", "first stat of a missing name"),
    };
    row(work, Unit::Time, Stat { key, names, warm: false, count: bench.scale.ops }, targets)
}

pub(super) fn file_op<'s>(bench: &Bench<'s>, which: FileOp, targets: &[&Target]) -> Row<'s> {
    let found = FILE_OPS.into_iter().find(|(_, _, op)| *op == which);
    let (key, work, op) = found.unwrap_or(("fstat", "uncached fstat round trip", FileOp::Fstat));
    row(work, Unit::Time, SingleThread { key, op, count: bench.scale.ops }, targets)
}

pub(super) fn readdir<'s>(bench: &Bench<'s>, targets: &[&Target]) -> Row<'s> {
    let count = bench.scale.entries;
    let work = format!("readdir, an entry of {count}");
    row(work, Unit::Time, ListDir { key: "readdir", depth: Depth::Names, warm: true, count }, targets)
}

pub(super) fn first_listing<'s>(bench: &Bench<'s>, targets: &[&Target]) -> Row<'s> {
    let count = bench.scale.entries;
    let work = format!("first ls -l, an entry of {count}");
    row(work, Unit::Time, ListDir { key: "ls", depth: Depth::Attributes, warm: false, count }, targets)
}

/// Returns the branch counts of the pools.
fn counts(bench: &Bench<'_>) -> Vec<usize> {
    let most = bench.testbed.branches().len();
    let mut counts: Vec<usize> = BRANCH_COUNTS.into_iter().filter(|&count| count < most).collect();
    counts.push(most);
    counts
}

pub(super) fn meta<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Error> {
    let mut targets = Targets::new(bench)?;
    let mut sides = vec![targets.isolated_branch()?];
    for count in counts(bench) {
        sides.push(targets.pool(&format!("pool of {count}"), count, "")?);
    }
    sides.push(targets.floor()?);
    sides.extend(targets.against());
    let sides: Vec<&Target> = sides.iter().collect();
    let mut rows =
        vec![first_stat(bench, NameKind::Existing, &sides), first_stat(bench, NameKind::Missing, &sides)];
    rows.extend(FILE_OPS.map(|(_, _, which)| file_op(bench, which, &sides)));
    rows.push(readdir(bench, &sides));
    rows.push(first_listing(bench, &sides));
    let title = "Metadata; files on the last branch, new ones where the pool creates them".into();
    Ok(targets.table(TableId::Meta, title, rows))
}

pub(super) fn concurrency<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Error> {
    let mut targets = Targets::new(bench)?;
    let mut sides = vec![targets.isolated_branch()?, targets.pool("pool", 1, "")?, targets.floor()?];
    sides.extend(targets.against());
    let sides: Vec<&Target> = sides.iter().collect();
    let mut rows = Vec::new();
    for (key, work, op) in [("fstat", "uncached fstat", FileOp::Fstat), FILE_OPS[0], FILE_OPS[1]] {
        for threads in [1, 2, 4, 8] {
            let workload = MultiThread { key, op, count: bench.scale.ops * 2, threads };
            rows.push(row(format!("{work}: {threads} at once"), Unit::Time, workload, &sides));
        }
    }
    let title = "Time until all threads are done, per operation".into();
    Ok(targets.table(TableId::Concurrency, title, rows))
}
