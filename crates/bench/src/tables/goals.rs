//! The table of goals: each workload, and how long it may take.

use super::data::DIRECT;
use super::meta::{file_op, first_listing, first_stat, readdir};
use super::{Bench, MIB, TableId, Targets, bytes, row};
use crate::error::Error;
use crate::measure::{Row, Table};
use crate::statistics::Unit;
use crate::workload::Target;
use crate::workload::data::{Direction, RandomIo, SequentialIo};
use crate::workload::listing::ManyBranches;
use crate::workload::meta::{NameKind, Stat, StatAfterWrite};
use crate::workload::ops::FileOp;
use std::cell::RefCell;

/// The limit for one round trip: 15 per cent more than the floor.
const ONE_ROUND_TRIP: f64 = 1.15;
/// Indexes of the targets in a row: branch, pool, floor.
const BRANCH: usize = 0;
const FLOOR: usize = 2;
/// The floor over /dev/fuse, in the one row that has it.
const DEVICE: usize = 3;

pub(super) fn goals<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Error> {
    let mut targets = Targets::new(bench)?;
    let (branch, floor) = (targets.isolated_branch()?, targets.floor()?);
    let pool = targets.pool("pool", 1, "")?;
    // It shares the branch of the first pool, so without `timeout` it would be notified of all changes there.
    let direct = targets.pool("pool, direct", 1, &format!("{DIRECT},cache.coherence=timeout"))?;
    let most = bench.testbed.branches().len();
    let wide = (most > 1).then(|| targets.pool(&format!("pool of {most}"), most, "")).transpose()?;
    let (against, against_data) = (targets.against()?, targets.against_data()?);
    let sides: Vec<&Target> = [&branch, &pool, &floor].into_iter().chain(against.as_ref()).collect();

    let device = targets.floor_over("floor, /dev/fuse", false)?;
    let transports: Vec<&Target> =
        [&branch, &pool, &floor, &device].into_iter().chain(against.as_ref()).collect();

    let mut rows = vec![
        file_op(bench, FileOp::Fstat, &transports).goal(DEVICE, 0.6),
        first_stat(bench, NameKind::Existing, &sides).goal(FLOOR, ONE_ROUND_TRIP),
        after_write(bench, &sides).goal(FLOOR, ONE_ROUND_TRIP),
        first_stat(bench, NameKind::Missing, &sides).goal(FLOOR, ONE_ROUND_TRIP),
        known(bench, NameKind::Existing, &sides).goal(BRANCH, 1.3),
        known(bench, NameKind::Missing, &sides).goal(BRANCH, 1.3),
        file_op(bench, FileOp::OpenReadClose, &sides).goal(BRANCH, 3.0),
        file_op(bench, FileOp::CreateWriteClose, &sides).goal(BRANCH, 4.5),
        file_op(bench, FileOp::Rename, &sides).goal(BRANCH, 5.0),
        file_op(bench, FileOp::Unlink, &sides).goal(BRANCH, 4.0),
        readdir(bench, &sides).goal(BRANCH, 1.5),
        first_listing(bench, &sides).goal(BRANCH, 2.5),
    ];
    rows.extend(through_the_daemon(bench, &[&branch, &direct, &targets.floor_copied(&floor)]));
    if let Some(wide) = &wide {
        for names in [NameKind::Existing, NameKind::Missing] {
            let mut row = first_stat(bench, names, &[&pool, wide]).goal(0, 1.2);
            row.work = format!("{}, {most} branches against 1", row.work);
            rows.push(row);
        }
        rows.push(many(bench, &branch, wide, &floor)?);
    }
    let passing = targets.floor_passthrough(&floor);
    let sides: Vec<&Target> =
        [&branch, &pool].into_iter().chain(&passing).chain(against_data.as_ref()).collect();
    rows.extend(passthrough(bench, &sides));
    let title = "Each workload, with its goal".into();
    Ok(targets.table(TableId::Goals, title, rows))
}

fn after_write<'s>(bench: &Bench<'s>, sides: &[&Target]) -> Row<'s> {
    let workload = StatAfterWrite { key: "after-write", count: bench.scale.ops / 2 };
    row("stat just after a passthrough write", Unit::Time, workload, sides)
}

/// Looks names up again after more time than the kernel caches names by default.
fn known<'s>(bench: &Bench<'s>, names: NameKind, sides: &[&Target]) -> Row<'s> {
    let (key, work) = match names {
        NameKind::Existing => ("known", "stat of a name known for seconds"),
        NameKind::Missing => ("known-missing", "stat of a missing name asked for seconds ago"),
    };
    let workload = Stat { key, names, warm: true, count: bench.scale.ops };
    Row {
        pause: bench.scale.pause,
        ..row(work, Unit::Time, workload, sides).max_rounds(bench.scale.slow_rounds + 2)
    }
}

fn through_the_daemon<'s>(bench: &Bench<'s>, sides: &[&Target]) -> [Row<'s>; 2] {
    [(Direction::Read, "read"), (Direction::Write, "write")].map(|(direction, word)| {
        let size = bench.scale.stream / 2;
        let workload = SequentialIo { key: "direct", direction, size, block: MIB as usize, cold: false };
        let work = format!("sequential 1 MiB {word} through the daemon");
        row(work, Unit::Rate, workload, sides).goal(BRANCH, 0.6)
    })
}

fn many<'s>(bench: &Bench<'s>, branch: &Target, wide: &Target, floor: &Target) -> Result<Row<'s>, Error> {
    let branches = bench.testbed.branches().to_vec();
    let workload = ManyBranches {
        testbed: bench.testbed,
        each: bench.scale.many_entries / branches.len(),
        options: bench.pool_options(""),
        pool: RefCell::new(None),
        branches,
    };
    workload.fill()?;
    let work = format!("first ls -l of {} files over {} branches", workload.total(), workload.branches.len());
    Ok(row(work, Unit::Time, workload, &[branch, wide, floor])
        .goal(BRANCH, 2.5)
        .max_rounds(bench.scale.slow_rounds.min(3)))
}

fn passthrough<'s>(bench: &Bench<'s>, sides: &[&Target]) -> Vec<Row<'s>> {
    let (size, most) = (bench.scale.stream, bench.scale.cheap_ops as u64);
    let mut rows = Vec::new();
    for (direction, word) in [(Direction::Read, "read"), (Direction::Write, "write")] {
        let workload = SequentialIo { key: "stream", direction, size, block: MIB as usize, cold: false };
        let work = format!("passthrough, sequential 1 MiB {word}");
        rows.push(row(work, Unit::Rate, workload, sides).goal(BRANCH, 0.97));
    }
    for (direction, word) in [(Direction::Read, "read"), (Direction::Write, "write")] {
        let block = 4096;
        let workload = RandomIo { key: "stream", direction, size, block, max_blocks: most, cold: false };
        let work = format!("passthrough, random {} {word}", bytes(block as u64));
        rows.push(row(work, Unit::Time, workload, sides).goal(BRANCH, 1.15));
    }
    rows
}
