//! Tables about names and attributes.

use super::{Bench, COUNTS, Places, Which, row};
use crate::error::Fault;
use crate::measure::{Row, Table};
use crate::statistics::Unit;
use crate::workload::Place;
use crate::workload::concurrent::Crowd;
use crate::workload::listing::{Depth, List};
use crate::workload::meta::{Alone, Each, Names, Stat};

/// Operations that are measured by themselves, with the names of their rows.
pub(super) const EACH: [(&str, &str, Each); 4] = [
    ("open", "open, read 4 KiB, close", Each::OpenReadClose),
    ("create", "create, write 4 KiB, close", Each::CreateWriteClose),
    ("rename", "rename", Each::Rename),
    ("unlink", "unlink", Each::Unlink),
];

pub(super) fn first_stat<'s>(bench: &Bench<'s>, names: Names, places: &[&Place]) -> Row<'s> {
    let (key, work) = match names {
        Names::Existing => ("first", "first stat of a name"),
        Names::Missing => ("first-missing", "first stat of a missing name"),
    };
    row(work, Unit::Time, Stat { key, names, known: false, count: bench.size.ops }, places)
}

pub(super) fn each<'s>(bench: &Bench<'s>, which: Each, places: &[&Place]) -> Row<'s> {
    let found = EACH.into_iter().find(|(_, _, each)| *each == which);
    let (key, work, each) = found.unwrap_or(("fstat", "uncached fstat round trip", Each::Fstat));
    row(work, Unit::Time, Alone { key, each, count: bench.size.ops }, places)
}

pub(super) fn readdir<'s>(bench: &Bench<'s>, places: &[&Place]) -> Row<'s> {
    let count = bench.size.entries;
    let work = format!("readdir, an entry of {count}");
    row(work, Unit::Time, List { key: "readdir", depth: Depth::Names, known: true, count }, places)
}

pub(super) fn first_listing<'s>(bench: &Bench<'s>, places: &[&Place]) -> Row<'s> {
    let count = bench.size.entries;
    let work = format!("first ls -l, an entry of {count}");
    row(work, Unit::Time, List { key: "ls", depth: Depth::Attributes, known: false, count }, places)
}

/// How many branches the pools have.
fn counts(bench: &Bench<'_>) -> Vec<usize> {
    let most = bench.stage.branches().len();
    let mut counts: Vec<usize> = COUNTS.into_iter().filter(|&count| count < most).collect();
    counts.push(most);
    counts
}

pub(super) fn meta<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Fault> {
    let mut places = Places::new(bench)?;
    let mut sides = vec![places.unwatched()?];
    for count in counts(bench) {
        sides.push(places.pool(&format!("pool of {count}"), count, "")?);
    }
    sides.push(places.floor()?);
    sides.extend(places.against());
    let sides: Vec<&Place> = sides.iter().collect();
    let mut rows =
        vec![first_stat(bench, Names::Existing, &sides), first_stat(bench, Names::Missing, &sides)];
    rows.extend(EACH.map(|(_, _, which)| each(bench, which, &sides)));
    rows.push(readdir(bench, &sides));
    rows.push(first_listing(bench, &sides));
    let title = "Metadata, files on the last branch, new ones where the pool puts them".into();
    Ok(places.table(Which::Meta, title, rows))
}

pub(super) fn concurrency<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Fault> {
    let mut places = Places::new(bench)?;
    let mut sides = vec![places.unwatched()?, places.pool("pool", 1, "")?, places.floor()?];
    sides.extend(places.against());
    let sides: Vec<&Place> = sides.iter().collect();
    let mut rows = Vec::new();
    for (key, work, each) in [("fstat", "uncached fstat", Each::Fstat), EACH[0], EACH[1]] {
        for threads in [1, 2, 4, 8] {
            let does = Crowd { key, each, count: bench.size.ops * 2, threads };
            rows.push(row(format!("{work}: {threads} at once"), Unit::Time, does, &sides));
        }
    }
    let title = "Time until all are done, by the number of operations".into();
    Ok(places.table(Which::Concurrency, title, rows))
}
