//! The tables about data.

use super::{Bench, MIB, TableId, Targets, bytes, row};
use crate::error::Error;
use crate::measure::Table;
use crate::statistics::Unit;
use crate::workload::Target;
use crate::workload::data::{Dd, Direction, Jobs, RandomIo, SequentialIo};

/// Data goes through the daemon and bypasses the page cache.
pub(super) const DIRECT: &str = "passthrough.io=off,cache.files=off";
const NULL: &str = "passthrough.io=off,cache.files=off,nullrw=true";
const CACHED: &str = "passthrough.io=off,cache.files=auto-full,cache.writeback=false";
const WRITEBACK: &str = "passthrough.io=off,cache.files=auto-full,cache.writeback=true";
const PASSTHROUGH: &str = "passthrough.io=rw";

fn with_against<'p>(targets: &[&'p Target], against: Option<&'p Target>) -> Vec<&'p Target> {
    targets.iter().copied().chain(against).collect()
}

/// Returns the branch, and a pool for each data path.
fn data_paths(targets: &mut Targets<'_, '_>) -> Result<Vec<Target>, Error> {
    let mut all = vec![targets.branch()?];
    for (name, options) in [
        ("nullrw", NULL),
        ("cache.files=off", DIRECT),
        ("passthrough", PASSTHROUGH),
        ("auto-full", CACHED),
        ("auto-full, writeback", WRITEBACK),
    ] {
        all.push(targets.pool(name, 1, options)?);
    }
    Ok(all)
}

pub(super) fn dd<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Error> {
    let mut targets = Targets::new(bench)?;
    let paths = data_paths(&mut targets)?;
    let against = targets.against_data()?;
    let sides = with_against(&paths.iter().collect::<Vec<_>>(), against.as_ref());
    let size = bench.scale.dd;
    let rows = [("written", Direction::Write), ("read", Direction::Read)];
    let rows = rows.map(|(word, direction)| {
        row(format!("{} {word}", bytes(size)), Unit::Rate, Dd { direction, size }, &sides)
    });
    let title = "A large file in blocks of 1 MiB, as dd conv=fdatasync does".into();
    Ok(targets.table(TableId::Dd, title, rows.into()))
}

pub(super) fn reads<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Error> {
    let mut targets = Targets::new(bench)?;
    let (branch, against) = (targets.branch()?, targets.against_data()?);
    let with = targets.pool("passthrough", 1, PASSTHROUGH)?;
    let without = targets.pool("no passthrough", 1, CACHED)?;
    let sides = with_against(&[&branch, &with, &without], against.as_ref());
    let mut rows = Vec::new();
    for (key, size) in ["small", "large", "largest"].into_iter().zip(bench.scale.reads) {
        let few = if size > 64 * MIB { bench.scale.slow_rounds } else { usize::MAX };
        for block in [4 << 10, 128 << 10, 256 << 10] {
            let work = format!("{}, sequential, {}", bytes(size), bytes(block as u64));
            let workload = SequentialIo { key, direction: Direction::Read, size, block, cold: true };
            rows.push(row(work, Unit::Rate, workload, &sides).max_rounds(few));
            let work = format!("{}, random, {}", bytes(size), bytes(block as u64));
            let most = bench.scale.max_random_reads;
            let workload =
                RandomIo { key, direction: Direction::Read, size, block, max_blocks: most, cold: true };
            rows.push(row(work, Unit::Rate, workload, &sides).max_rounds(few));
        }
    }
    let title = "Reads of a file that the pool has not cached".into();
    Ok(targets.table(TableId::Reads, title, rows))
}

pub(super) fn blocks<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Error> {
    let mut targets = Targets::new(bench)?;
    let paths = data_paths(&mut targets)?;
    let against = targets.against_data()?;
    let sides = with_against(&paths.iter().collect::<Vec<_>>(), against.as_ref());
    let large = bench.scale.stream.min(64 * MIB);
    // Thousands of small blocks take as long as tens of large ones.
    let small = bench.scale.ops as u64 * 4 * 512;
    let mut rows = Vec::new();
    for (direction, word) in [(Direction::Write, "writes"), (Direction::Read, "reads")] {
        for (key, size, block) in [("large", large, MIB as usize), ("small", small, 512)] {
            let workload = SequentialIo { key, direction, size, block, cold: true };
            rows.push(row(format!("{word} of {}", bytes(block as u64)), Unit::Rate, workload, &sides));
        }
    }
    let title = "Blocks of 1 MiB against blocks of 512 bytes".into();
    Ok(targets.table(TableId::Blocks, title, rows))
}

pub(super) fn jobs<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Error> {
    let mut targets = Targets::new(bench)?;
    let options = |on| format!("{NULL},parallel-direct-writes={on}");
    let off = targets.pool("one at a time", 1, &options(false))?;
    let on = targets.pool("parallel", 1, &options(true))?;
    let mut rows = Vec::new();
    for (shared, word) in [(false, "a file for each"), (true, "one file for all")] {
        for jobs in [1, 2, 4, 8, 16, 32] {
            let workload = Jobs { jobs, shared, duration: bench.scale.job_duration };
            let work = format!("{jobs} {}, {word}", if jobs == 1 { "writer" } else { "writers" });
            rows.push(row(work, Unit::Rate, workload, &[&off, &on]));
        }
    }
    let title = "Writers of 1 MiB, nullrw: parallel-direct-writes=false against true".into();
    Ok(targets.table(TableId::Jobs, title, rows))
}
