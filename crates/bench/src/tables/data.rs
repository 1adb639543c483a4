//! Tables about data.

use super::{Bench, MIB, Places, Which, bytes, row};
use crate::error::Fault;
use crate::measure::Table;
use crate::statistics::Unit;
use crate::workload::Place;
use crate::workload::data::{Dd, Jobs, Scatter, Stream, Way};

/// Data through the daemon, past the page cache.
pub(super) const DIRECT: &str = "passthrough.io=off,cache.files=off";
const NULL: &str = "passthrough.io=off,cache.files=off,nullrw=true";
const CACHED: &str = "passthrough.io=off,cache.files=auto-full,cache.writeback=false";
const WRITEBACK: &str = "passthrough.io=off,cache.files=auto-full,cache.writeback=true";
const PASSTHROUGH: &str = "passthrough.io=rw";

fn with_against<'p>(places: &[&'p Place], against: Option<&'p Place>) -> Vec<&'p Place> {
    places.iter().copied().chain(against).collect()
}

/// The ways data can travel, beside the branch.
fn ways(places: &mut Places<'_, '_>) -> Result<Vec<Place>, Fault> {
    let mut all = vec![places.branch()?];
    for (name, options) in [
        ("nullrw", NULL),
        ("cache.files=off", DIRECT),
        ("passthrough", PASSTHROUGH),
        ("auto-full", CACHED),
        ("auto-full, writeback", WRITEBACK),
    ] {
        all.push(places.pool(name, 1, options)?);
    }
    Ok(all)
}

pub(super) fn dd<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Fault> {
    let mut places = Places::new(bench)?;
    let ways = ways(&mut places)?;
    let against = places.against();
    let sides = with_against(&ways.iter().collect::<Vec<_>>(), against.as_ref());
    let size = bench.size.dd;
    let rows = [("written", Way::Write), ("read", Way::Read)];
    let rows =
        rows.map(|(word, way)| row(format!("{} {word}", bytes(size)), Unit::Rate, Dd { way, size }, &sides));
    let title = "A large file in blocks of 1 MiB, as dd conv=fdatasync does".into();
    Ok(places.table(Which::Dd, title, rows.into()))
}

pub(super) fn reads<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Fault> {
    let mut places = Places::new(bench)?;
    let (branch, against) = (places.branch()?, places.against());
    let with = places.pool("passthrough", 1, PASSTHROUGH)?;
    let without = places.pool("no passthrough", 1, CACHED)?;
    let sides = with_against(&[&branch, &with, &without], against.as_ref());
    let mut rows = Vec::new();
    for (key, size) in ["small", "large", "largest"].into_iter().zip(bench.size.reads) {
        let few = if size > 64 * MIB { bench.size.few } else { usize::MAX };
        for block in [4 << 10, 128 << 10, 256 << 10] {
            let work = format!("{}, sequential, {}", bytes(size), bytes(block as u64));
            let does = Stream { key, way: Way::Read, size, block, cold: true };
            rows.push(row(work, Unit::Rate, does, &sides).most(few));
            let work = format!("{}, random, {}", bytes(size), bytes(block as u64));
            let most = bench.size.most_reads;
            let does = Scatter { key, way: Way::Read, size, block, most, cold: true };
            rows.push(row(work, Unit::Rate, does, &sides).most(few));
        }
    }
    let title = "Reads of a file that the pool has not cached".into();
    Ok(places.table(Which::Reads, title, rows))
}

pub(super) fn blocks<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Fault> {
    let mut places = Places::new(bench)?;
    let ways = ways(&mut places)?;
    let against = places.against();
    let sides = with_against(&ways.iter().collect::<Vec<_>>(), against.as_ref());
    let large = bench.size.stream.min(64 * MIB);
    // Thousands of small ones take as long as tens of large ones.
    let small = bench.size.ops as u64 * 4 * 512;
    let mut rows = Vec::new();
    for (way, word) in [(Way::Write, "writes"), (Way::Read, "reads")] {
        for (key, size, block) in [("large", large, MIB as usize), ("small", small, 512)] {
            let does = Stream { key, way, size, block, cold: true };
            rows.push(row(format!("{word} of {}", bytes(block as u64)), Unit::Rate, does, &sides));
        }
    }
    let title = "Blocks of 1 MiB against blocks of 512 bytes".into();
    Ok(places.table(Which::Blocks, title, rows))
}

pub(super) fn jobs<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Fault> {
    let mut places = Places::new(bench)?;
    let options = |on| format!("{NULL},parallel-direct-writes={on}");
    let off = places.pool("one at a time", 1, &options(false))?;
    let on = places.pool("parallel", 1, &options(true))?;
    let mut rows = Vec::new();
    for (shared, word) in [(false, "a file for each"), (true, "one file for all")] {
        for jobs in [1, 2, 4, 8, 16, 32] {
            let does = Jobs { jobs, shared, lasting: bench.size.lasting };
            let work = format!("{jobs} {}, {word}", if jobs == 1 { "writer" } else { "writers" });
            rows.push(row(work, Unit::Rate, does, &[&off, &on]));
        }
    }
    let title = "Writers of 1 MiB, nullrw: parallel-direct-writes=false against true".into();
    Ok(places.table(Which::Jobs, title, rows))
}
