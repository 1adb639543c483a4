//! The tables about names and attributes.

use super::{Bench, TableId, Targets, row};
use crate::error::Error;
use crate::measure::{Row, Table};
use crate::statistics::{Goal, Unit};
use crate::workload::concurrent::MultiThread;
use crate::workload::listing::{Depth, ListDir};
use crate::workload::meta::{NameKind, SingleThread, Stat};
use crate::workload::ops::FileOp;
use crate::workload::{Target, TargetKind};

/// The operations: the key, the title and the operation.
const FILE_OPS: [(&str, &str, FileOp); 20] = [
    ("fstat", "uncached fstat round trip", FileOp::Fstat),
    ("open", "open, read 4 KiB, close", FileOp::OpenReadClose),
    ("create", "create, write 4 KiB, close", FileOp::CreateWriteClose),
    ("rename", "rename", FileOp::Rename),
    ("unlink", "unlink", FileOp::Unlink),
    ("chmod", "chmod by name", FileOp::Chmod),
    ("fchmod", "fchmod of an open file", FileOp::Fchmod),
    ("chown", "chown", FileOp::Chown),
    ("utimensat", "utimensat", FileOp::Utimensat),
    ("truncate", "truncate", FileOp::Truncate),
    ("setxattr", "setxattr", FileOp::Setxattr),
    ("getxattr", "getxattr", FileOp::Getxattr),
    ("listxattr", "listxattr", FileOp::Listxattr),
    ("removexattr", "removexattr", FileOp::Removexattr),
    ("readlink", "readlink", FileOp::Readlink),
    ("link", "link", FileOp::Link),
    ("renamedir", "rename of a directory", FileOp::RenameDir),
    ("mkdir", "mkdir", FileOp::Mkdir),
    ("rmdir", "rmdir", FileOp::Rmdir),
    ("statvfs", "statvfs", FileOp::Statvfs),
];

/// What an operation over one branch may take beyond the floor's and the branch's own time, in nanoseconds.
const BEYOND_BOTH: f64 = 3000.0;

/// Returns how much longer an operation over several branches may take than over one.
fn wide_limit(count: usize) -> f64 {
    if count <= 32 { 1.15 } else { 1.5 }
}

pub(super) fn first_stat<'s>(bench: &Bench<'s>, names: NameKind, targets: &[&Target]) -> Row<'s> {
    let (key, work) = match names {
        NameKind::Existing => ("first", "first stat of a name"),
        NameKind::Missing => ("first-missing", "first stat of a missing name"),
    };
    row(work, Unit::Time, Stat { key, names, warm: false, count: bench.scale.ops }, targets)
}

pub(super) fn file_op<'s>(bench: &Bench<'s>, which: FileOp, targets: &[&Target]) -> Row<'s> {
    let (key, work, op) = described(which);
    row(work, Unit::Time, SingleThread { key, op, count: bench.scale.ops }, targets)
}

fn described(which: FileOp) -> (&'static str, &'static str, FileOp) {
    FILE_OPS.into_iter().find(|(_, _, op)| *op == which).unwrap_or(FILE_OPS[0])
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

/// Returns the goals of a row with a pool of each size: the pool of one branch is compared with floor and branch, the
/// others with it.
fn goals(counts: &[usize]) -> Vec<Goal> {
    let (branch, first, floor) = (0, 1, 1 + counts.len());
    let goal = |(index, &count): (usize, &usize)| match count {
        1 => Some(Goal { side: 1 + index, of: vec![branch, floor], plus: BEYOND_BOTH, limit: 1.0 }),
        _ if counts[0] == 1 => {
            Some(Goal { side: 1 + index, of: vec![first], plus: 0.0, limit: wide_limit(count) })
        }
        _ => None,
    };
    counts.iter().enumerate().filter_map(goal).collect()
}

pub(super) fn meta<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Error> {
    let mut targets = Targets::new(bench)?;
    let mut all = vec![targets.isolated_branch()?];
    for &count in &bench.counts {
        all.push(targets.pool(&format!("pool of {count}"), count, "")?);
    }
    all.push(targets.floor()?);
    all.extend(targets.against_wide(&bench.counts)?);
    let sides: Vec<&Target> = all.iter().collect();
    let (with_xattrs, note) = sides_with_xattrs(&sides)?;
    let mut rows =
        vec![first_stat(bench, NameKind::Existing, &sides), first_stat(bench, NameKind::Missing, &sides)];
    for (_, _, op) in FILE_OPS {
        match op.needs_user_xattrs() {
            true if with_xattrs.is_empty() => {}
            true => rows.push(file_op(bench, op, &with_xattrs)),
            false => rows.push(file_op(bench, op, &sides)),
        }
    }
    rows.iter_mut().for_each(|row| row.goals = goals(&bench.counts));
    // Their figures are those of an entry, not of an operation.
    rows.push(readdir(bench, &sides));
    rows.push(first_listing(bench, &sides));
    rows.iter_mut().for_each(|row| row.count_requests = true);
    let title = "Metadata; files on the last branch, new ones where the pool creates them".into();
    let mut table = targets.table(TableId::Meta, title, rows);
    table.notes.extend(note);
    Ok(table)
}

/// Returns the targets on which programs can set attributes, none if the branch is not among them, and what is left out.
fn sides_with_xattrs<'t>(sides: &[&'t Target]) -> Result<(Vec<&'t Target>, Option<String>), Error> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for &side in sides {
        if side.kind == TargetKind::Floor || side.has_user_xattrs()? {
            with.push(side)
        } else {
            without.push(side)
        }
    }
    let only_against = without.iter().all(|side| side.kind == TargetKind::Against);
    Ok(match without.first() {
        None => (with, None),
        Some(side) if only_against => (with, Some(format!("{} has no attributes of users.", side.name))),
        Some(_) => (Vec::new(), Some("The branches have no attributes of users: no rows for these.".into())),
    })
}

/// How many clients there are at once.
const CLIENTS: [usize; 4] = [1, 2, 8, 32];

/// With several clients, the pool serves this many times what the other filesystem does.
const MORE_THAN_AGAINST: f64 = 1.5;

pub(super) fn concurrency<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Error> {
    let mut targets = Targets::new(bench)?;
    let mut sides = vec![targets.isolated_branch()?, targets.pool("pool", 1, "")?, targets.floor()?];
    sides.extend(targets.against()?);
    let sides: Vec<&Target> = sides.iter().collect();
    let mut rows = Vec::new();
    for (key, work, op) in [
        ("fstat", "uncached fstat", FileOp::Fstat),
        described(FileOp::OpenReadClose),
        described(FileOp::CreateWriteClose),
        described(FileOp::Unlink),
    ] {
        for threads in CLIENTS {
            let workload = MultiThread { key, op, count: bench.scale.ops * 4, threads };
            let mut row = row(format!("{work}: {threads} at once"), Unit::Time, workload, &sides);
            if let Some(against) = sides.iter().position(|side| side.kind == TargetKind::Against) {
                let limit = if threads == 1 { 1.0 } else { 1.0 / MORE_THAN_AGAINST };
                row.goals.push(Goal { side: 1, of: vec![against], plus: 0.0, limit });
            }
            rows.push(row.max_rounds(2 * bench.scale.slow_rounds));
        }
    }
    let title = "Time until all threads are done, per operation".into();
    Ok(targets.table(TableId::Concurrency, title, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_branch_is_compared_with_the_floor_and_several_with_one() {
        let goals = goals(&[1, 8, 32, 200]);
        let words = |goal: &Goal| (goal.side, goal.of.clone(), goal.plus, goal.limit);
        let expected = [
            (1, vec![0, 5], BEYOND_BOTH, 1.0),
            (2, vec![1], 0.0, 1.15),
            (3, vec![1], 0.0, 1.15),
            (4, vec![1], 0.0, 1.5),
        ];
        assert_eq!(goals.iter().map(words).collect::<Vec<_>>(), expected);
        assert!(super::goals(&[8, 32]).is_empty());
    }

    #[test]
    fn every_operation_has_its_own_name() {
        for (index, (key, work, op)) in FILE_OPS.into_iter().enumerate() {
            let same = |other: &(&str, &str, FileOp)| other.0 == key || other.1 == work || other.2 == op;
            assert_eq!(FILE_OPS.iter().position(same), Some(index), "{work}");
        }
    }
}
