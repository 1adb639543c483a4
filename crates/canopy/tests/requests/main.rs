//! How many requests everyday work costs: no more than the budget in docs/requests.md. Needs root, and a kernel with the
//! tracepoint `fuse:fuse_request_send` (Linux 6.11).
//!
//! With `--nocapture` it prints what it counted, by kind of request.

#![forbid(unsafe_code)]

mod budget;
mod rig;
mod work;

use canopy_fuse::request_counter::{CountError, RequestCounter};
use canopy_testkit::{Kind, LoopFs, PoolBed};
use rustix::io::Errno;

use rig::{Actor, Rig};

/// An extra request may come from an attribute that expired meanwhile, on a machine that is slow.
const ATTEMPTS: usize = 3;

#[test]
fn work_costs_no_more_requests_than_the_budget_says() {
    let budget = budget::read();
    let names: Vec<&str> = work::ROWS.iter().map(|row| row.name).collect();
    let documented: Vec<&str> = budget.iter().map(|line| line.work.as_str()).collect();
    assert_eq!(documented, names, "docs/requests.md lists other work than this test");
    // Large enough for passthrough writers.
    let disks = [LoopFs::new(Kind::Tmpfs, 64 << 30), LoopFs::new(Kind::Tmpfs, 64 << 30)];
    let bed = PoolBed::mount(canopy_testkit::Pool::builder(env!("CARGO_BIN_EXE_canopy")), disks);
    let counter = match RequestCounter::of_mount(bed.pool.path()) {
        Err(CountError::Tracefs(errno @ (Errno::NODEV | Errno::NOENT))) => {
            eprintln!("skipped: this kernel does not have the tracepoint: {errno}");
            return;
        }
        counter => counter.unwrap(),
    };
    let mut faults = Vec::new();
    for actor in [Actor::Owner, Actor::Other] {
        let rig = Rig::new(&bed, &counter, actor);
        for (row, line) in work::ROWS.iter().zip(&budget) {
            let allowed = match actor {
                Actor::Owner => line.owner,
                Actor::Other => line.other,
            };
            let mut counts: Vec<_> = Vec::new();
            while counts.len() < ATTEMPTS && counts.iter().all(|count: &rig::Count| count.each() > allowed) {
                counts.push(rig.count(row, counts.len()));
            }
            let count = counts.iter().min_by(|a, b| a.each().total_cmp(&b.each())).unwrap();
            println!("{:<36} {actor:?} {count}", row.name);
            if count.each() > allowed {
                faults.push(format!("{} as {actor:?}: {count}; the budget is {allowed}", row.name));
            }
        }
    }
    assert!(faults.is_empty(), "more requests than docs/requests.md allows:\n{}", faults.join("\n"));
}
