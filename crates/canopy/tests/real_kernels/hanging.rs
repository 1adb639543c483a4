//! A disk that hangs and answers again: what remains of it in the daemon, and what `canopy status` says meanwhile.

use super::rig::{PATIENCE, health, pool_over, wait_for_health};
use canopy_testkit::bystander::{Files, Others};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Medium, PoolBed};
use rustix::fs::statvfs;
use std::time::{Duration, Instant};

const DIRS: usize = 40;
const CLIENTS: usize = 12;
/// How soon `canopy status` tells of a disk that hangs, and how soon it answers.
const TOLD_WITHIN: Duration = Duration::from_secs(5);
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

fn bed(options: &str) -> PoolBed {
    pool_over(2, options, |number, disk| Files::new(disk.path(), ["disk0", "disk1"][number], DIRS).make())
}

/// Hangs the disk for this long, `cycles` times or as often as `CANOPY_CYCLES` says, with clients on it, and asserts that
/// nothing of that stays in the daemon or in the kernel.
fn nothing_remains(bed: &PoolBed, cycles: usize, hang: Duration, clients_wait: bool) {
    let cycles = std::env::var("CANOPY_CYCLES").map_or(cycles, |text| text.parse().expect("CANOPY_CYCLES"));
    let [mine, theirs] = ["disk0", "disk1"].map(|name| Files::new(bed.pool.path(), name, DIRS));
    // Workers that are no longer needed exit while requests flow. These wait for no disk, and so need no further workers.
    let count = || {
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(500) {
            statvfs(bed.pool.path()).expect("statfs");
        }
        (bed.pool.threads().len(), bed.pool.settled_fd_count(0), bed.pool.unanswered())
    };
    mine.count_rounds("bystander", Duration::from_millis(500), || ());
    let fresh = count();
    let cycle = || {
        bed.disks[1].set_medium(Medium::Hangs);
        let clients = if clients_wait {
            Others::start(CLIENTS, &theirs)
        } else {
            Others::start_despite_errors(CLIENTS, &theirs)
        };
        std::thread::sleep(hang);
        bed.disks[1].set_medium(Medium::Healthy);
        clients.end();
        if !clients_wait {
            wait_for_health(&bed.pool, bed.disks[1].path(), "ok");
        }
    };
    // Fills the pool's caches of directories, which hold descriptors.
    theirs.visit("bystander");
    cycle();
    let first = count();
    (1..cycles).for_each(|_| cycle());
    let mut after = (0, 0, (0, 0));
    let settled = wait_until(PATIENCE, || {
        after = count();
        after.0 <= fresh.0 && after.1 <= first.1 && after.2.0 == after.2.1
    });
    println!(
        "threads, descriptors, unanswered requests and those that workers keep: {fresh:?} before, {first:?} after a cycle, {after:?} after {cycles}"
    );
    let names: Vec<_> = bed.pool.threads().into_iter().map(|thread| thread.name).collect();
    assert!(settled, "{fresh:?} before, {first:?} after one cycle, {after:?} after {cycles}: {names:?}");
}

#[test]
#[ignore = "needs device mapper (scripts/test.sh --kernel)"]
fn nothing_remains_of_a_disk_that_hung_and_returned() {
    let bed = bed("");
    nothing_remains(&bed, 100, Duration::from_millis(300), true);
    bed.pool.umount();
}

#[test]
#[ignore = "needs device mapper (scripts/test.sh --kernel)"]
fn nothing_remains_of_operations_that_timed_out() {
    let bed = bed("branch-timeout=1");
    nothing_remains(&bed, 20, Duration::from_secs(3), false);
    bed.pool.umount();
}

/// ext4 answers stat and statfs of its root from memory, whatever its disk does.
#[test]
#[ignore = "needs device mapper (scripts/test.sh --kernel)"]
fn status_tells_of_a_hung_disk_until_it_answers() {
    let bed = bed("");
    let (pool, disk) = (&bed.pool, &bed.disks[1]);
    let began = Instant::now();
    assert_eq!(health(pool, disk.path()), "ok");
    // The machine may be slow: starting the program takes its time.
    let allowed = ANSWERS_WITHIN.max(began.elapsed() * 2);
    let clients = Others::start(4, &Files::new(pool.path(), "disk1", DIRS));
    disk.set_medium(Medium::Hangs);
    let hung = Instant::now();
    let mut told = None;
    let mut slowest = Duration::ZERO;
    while hung.elapsed() < TOLD_WITHIN * 3 {
        let asked = Instant::now();
        let health = health(pool, disk.path());
        slowest = slowest.max(asked.elapsed());
        match (&told, health.as_str()) {
            (None, "ok") => {}
            (None, _) => told = Some((hung.elapsed(), health)),
            (Some(_), "ok") => panic!("it is ok again while it hangs\n{}", pool.log()),
            (Some(_), _) => {}
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    disk.set_medium(Medium::Healthy);
    clients.end();
    println!("told after {told:?}; the slowest answer took {slowest:?}");
    let (after, _) = told.unwrap_or_else(|| panic!("status says nothing of the disk\n{}", pool.log()));
    assert!(after < TOLD_WITHIN && slowest < allowed, "told after {after:?}, answers within {slowest:?}");
    wait_for_health(pool, disk.path(), "ok");
    bed.pool.umount();
}
