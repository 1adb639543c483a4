//! A client that uses one disk makes as much progress while others wait for another disk.

use super::rig::{drop_caches, pool_over, transport};
use canopy_testkit::bystander::{Files, Others, Progress};
use canopy_testkit::{Medium, PoolBed};
use std::time::Duration;

/// Directories of the bystander, which are all visited before each measurement, and those of the other disks: so many that
/// others always need the disk.
const MINE: usize = 40;
const THEIRS: usize = 400;
/// How long the bystander's rounds are counted.
const WINDOW: Duration = Duration::from_secs(6);
/// How long a disk that lags takes for each request.
const LAG: Duration = Duration::from_millis(1500);
/// What is asked of the bystander: as many rounds as alone, for the noise 0.8 of them, and none that is longer than this,
/// or than twice the longest one alone.
const SHARE: f64 = 0.8;
const LONGEST: Duration = Duration::from_millis(200);
/// The machine is shared: a measurement that fails is repeated.
const TRIES: usize = 3;

fn measure(bed: &PoolBed, medium: Medium, others: usize) -> Progress {
    let (mine, theirs) =
        (Files::new(bed.pool.path(), "disk0", MINE), Files::new(bed.pool.path(), "disk1", THEIRS));
    drop_caches();
    mine.visit("bystander");
    if others > 0 {
        bed.disks[1].set_medium(medium);
    }
    let clients = Others::start(others, &theirs);
    std::thread::sleep(Duration::from_millis(500));
    let progress = mine.count_rounds("bystander", WINDOW, || bed.disks[1].set_medium(Medium::Healthy));
    bed.disks[1].set_medium(Medium::Healthy);
    clients.end();
    progress
}

fn undisturbed(name: &str, medium: Medium) {
    let bed = pool_over(3, "", |number, disk| {
        let (name, dirs) = [("disk0", MINE), ("disk1", THEIRS), ("disk2", THEIRS)][number];
        Files::new(disk.path(), name, dirs).make();
    });
    let mut alone = measure(&bed, medium, 0);
    let mut held_up = Vec::new();
    for others in [1, 4, 16, 64] {
        let good = (0..TRIES).any(|attempt| {
            if attempt > 0 {
                alone = measure(&bed, medium, 0);
            }
            let beside = measure(&bed, medium, others);
            let share = beside.rounds as f64 / alone.rounds as f64;
            println!(
                "{name}, io-uring={}, {others} others: {} rounds, longest {:.0?} ({}); alone {}, {:.0?} ({}); share {share:.2}",
                transport(),
                beside.rounds,
                beside.longest,
                beside.step,
                alone.rounds,
                alone.longest,
                alone.step,
            );
            share >= SHARE && beside.longest < LONGEST.max(alone.longest * 2)
        });
        if !good {
            held_up.push(others);
        }
    }
    bed.pool.umount();
    assert!(held_up.is_empty(), "{name}: {held_up:?} other clients hold up the bystander");
}

#[test]
#[ignore = "needs device mapper (scripts/test.sh --kernel)"]
fn a_disk_that_lags_delays_only_its_own_clients() {
    undisturbed("slow disk", Medium::Lags(LAG));
}

#[test]
#[ignore = "needs device mapper (scripts/test.sh --kernel)"]
fn a_disk_that_hangs_stops_only_its_own_clients() {
    undisturbed("hung disk", Medium::Hangs);
}
