//! The table of goals: each kind of work, and what it may cost.

use super::data::DIRECT;
use super::meta::{each, first_listing, first_stat, readdir};
use super::{Bench, MIB, Places, Which, bytes, row};
use crate::error::Fault;
use crate::measure::{Row, Table};
use crate::statistics::Unit;
use crate::workload::Place;
use crate::workload::data::{Scatter, Stream, Way};
use crate::workload::listing::ManyBranches;
use crate::workload::meta::{Each, Names, Stat, StatAfterWrite};
use std::cell::RefCell;

/// For what needs one round trip: the floor and 15 per cent.
const ONE_ROUND_TRIP: f64 = 1.15;
/// Places in a row: branch, pool, floor.
const BRANCH: usize = 0;
const FLOOR: usize = 2;
/// The floor over /dev/fuse, in the one row that has it.
const DEVICE: usize = 3;

pub(super) fn goals<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Fault> {
    let mut places = Places::new(bench)?;
    let (branch, floor) = (places.unwatched()?, places.floor()?);
    let pool = places.pool("pool", 1, "")?;
    // It lies on the first one's branch, and would be told of all that happens there.
    let direct = places.pool("pool, direct", 1, &format!("{DIRECT},cache.coherence=timeout"))?;
    let most = bench.stage.branches().len();
    let wide = (most > 1).then(|| places.pool(&format!("pool of {most}"), most, "")).transpose()?;
    let against = places.against();
    let sides: Vec<&Place> = [&branch, &pool, &floor].into_iter().chain(against.as_ref()).collect();

    let device = places.floor_over("floor, /dev/fuse", false)?;
    let transports: Vec<&Place> =
        [&branch, &pool, &floor, &device].into_iter().chain(against.as_ref()).collect();

    let mut rows = vec![
        each(bench, Each::Fstat, &transports).goal(DEVICE, 0.6),
        first_stat(bench, Names::Existing, &sides).goal(FLOOR, ONE_ROUND_TRIP),
        after_write(bench, &sides).goal(FLOOR, ONE_ROUND_TRIP),
        first_stat(bench, Names::Missing, &sides).goal(FLOOR, ONE_ROUND_TRIP),
        known(bench, Names::Existing, &sides).goal(BRANCH, 1.3),
        known(bench, Names::Missing, &sides).goal(BRANCH, 1.3),
        each(bench, Each::OpenReadClose, &sides).goal(BRANCH, 3.0),
        each(bench, Each::CreateWriteClose, &sides).goal(BRANCH, 4.5),
        each(bench, Each::Rename, &sides).goal(BRANCH, 5.0),
        each(bench, Each::Unlink, &sides).goal(BRANCH, 4.0),
        readdir(bench, &sides).goal(BRANCH, 1.5),
        first_listing(bench, &sides).goal(BRANCH, 2.5),
    ];
    rows.extend(through_the_daemon(bench, &[&branch, &direct, &places.copying(&floor)]));
    if let Some(wide) = &wide {
        for names in [Names::Existing, Names::Missing] {
            let mut row = first_stat(bench, names, &[&pool, wide]).goal(0, 1.2);
            row.work = format!("{}, {most} branches against 1", row.work);
            rows.push(row);
        }
        rows.push(many(bench, &branch, wide, &floor)?);
    }
    let passing = places.passing(&floor);
    let sides: Vec<&Place> = [&branch, &pool].into_iter().chain(&passing).chain(against.as_ref()).collect();
    rows.extend(passthrough(bench, &sides));
    let title = "What work costs, beside the goal for it".into();
    Ok(places.table(Which::Goals, title, rows))
}

fn after_write<'s>(bench: &Bench<'s>, sides: &[&Place]) -> Row<'s> {
    let does = StatAfterWrite { key: "after-write", count: bench.size.ops / 2 };
    row("stat just after a passthrough write", Unit::Time, does, sides)
}

/// Asked again after longer than the kernel is told to remember names by default.
fn known<'s>(bench: &Bench<'s>, names: Names, sides: &[&Place]) -> Row<'s> {
    let (key, work) = match names {
        Names::Existing => ("known", "stat of a name known for seconds"),
        Names::Missing => ("known-missing", "stat of a missing name asked for seconds ago"),
    };
    let does = Stat { key, names, known: true, count: bench.size.ops };
    Row { pause: bench.size.pause, ..row(work, Unit::Time, does, sides).most(bench.size.few + 2) }
}

fn through_the_daemon<'s>(bench: &Bench<'s>, sides: &[&Place]) -> [Row<'s>; 2] {
    [(Way::Read, "read"), (Way::Write, "write")].map(|(way, word)| {
        let size = bench.size.stream / 2;
        let does = Stream { key: "direct", way, size, block: MIB as usize, cold: false };
        let work = format!("sequential 1 MiB {word} through the daemon");
        row(work, Unit::Rate, does, sides).goal(BRANCH, 0.6)
    })
}

fn many<'s>(bench: &Bench<'s>, branch: &Place, wide: &Place, floor: &Place) -> Result<Row<'s>, Fault> {
    let branches = bench.stage.branches().to_vec();
    let does = ManyBranches {
        stage: bench.stage,
        each: bench.size.many / branches.len(),
        options: bench.pool_options(""),
        pool: RefCell::new(None),
        branches,
    };
    does.fill()?;
    let work = format!("first ls -l of {} files over {} branches", does.total(), does.branches.len());
    Ok(row(work, Unit::Time, does, &[branch, wide, floor]).goal(BRANCH, 2.5).most(bench.size.few.min(3)))
}

fn passthrough<'s>(bench: &Bench<'s>, sides: &[&Place]) -> Vec<Row<'s>> {
    let (size, most) = (bench.size.stream, bench.size.cheap as u64);
    let mut rows = Vec::new();
    for (way, word) in [(Way::Read, "read"), (Way::Write, "write")] {
        let does = Stream { key: "stream", way, size, block: MIB as usize, cold: false };
        let work = format!("passthrough, sequential 1 MiB {word}");
        rows.push(row(work, Unit::Rate, does, sides).goal(BRANCH, 0.97));
    }
    for (way, word) in [(Way::Read, "read"), (Way::Write, "write")] {
        let block = 4096;
        let does = Scatter { key: "stream", way, size, block, most, cold: false };
        let work = format!("passthrough, random {} {word}", bytes(block as u64));
        rows.push(row(work, Unit::Time, does, sides).goal(BRANCH, 1.15));
    }
    rows
}
