//! A fast tier in front of slow disks, with writers and a mover at the same time.

use super::rig::{MIB, Mover, mounted_with};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Fault, FaultyFs, Kind, LoopFs, Opcode, PATIENCE, ScratchDir};
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a write of 128 KiB to a slow disk takes.
const DELAY: Duration = Duration::from_millis(4);
/// How many files of 4 MiB a client writes: more than the tier holds. It waits for the mover while it writes the first ones,
/// and not for the others.
const PACED: usize = 40;
const UNPACED: usize = 40;
const SIZE: usize = 4 * MIB;
/// How many come before the mover has anything to do.
const BURST: usize = 10;

/// Writes files at once, as many as the tier takes below its mark: the disks behind it write next to nothing meanwhile.
fn burst(mover: &Mover) {
    let written = || mover.bed.disks[1..].iter().map(LoopFs::written).sum::<u64>();
    let (before, begun) = (written(), Instant::now());
    for number in 0..BURST {
        fs::write(mover.bed.at(&format!("burst{number}")), content(number)).expect("no ENOSPC");
        assert_eq!(mover.bed.branches_with(&format!("burst{number}")), [0]);
    }
    let took = begun.elapsed().as_secs_f64();
    println!("{:.0} MiB/s to the tier", (BURST * SIZE / MIB) as f64 / took);
    let behind = written() - before;
    assert!(behind < (BURST * SIZE / 2) as u64, "the disks behind the tier have written {behind} bytes");
    (0..BURST).for_each(|number| fs::remove_file(mover.bed.at(&format!("burst{number}"))).expect("unlink"));
}

fn free(path: &Path) -> u64 {
    let space = rustix::fs::statvfs(path).unwrap();
    space.f_bavail * space.f_frsize
}

fn content(number: usize) -> Vec<u8> {
    vec![number as u8; SIZE]
}

/// What a disk writes in a second that the kernel throttles.
const RATE: u64 = 12 << 20;

#[test]
fn clients_write_to_the_fast_tier_while_the_mover_empties_it() {
    let scratch = ScratchDir::new("canopy-throttled-", &[]);
    let slow = FaultyFs::mount(&scratch.dir());
    let disk = || LoopFs::with_image_in(slow.path(), Kind::Ext4, 300 << 20);
    let disks = vec![LoopFs::tmpfs(100 << 20), disk(), disk()];
    slow.set(Fault::Delay(DELAY), &[Opcode::Write]);
    write_and_move(disks);
}

/// The kernel throttles the disks (`io.max`, or what version 1 of control groups has for it). Until the tier is above its mark,
/// the clients do not depend on them at all.
#[test]
fn clients_write_at_the_rate_of_the_tier_before_throttled_disks() {
    let memory = LoopFs::tmpfs(640 << 20);
    let disk = || LoopFs::with_image_in(memory.path(), Kind::Ext4, 300 << 20);
    let disks = vec![LoopFs::tmpfs(100 << 20), disk(), disk()];
    let throttles: Vec<_> = disks[1..].iter().filter_map(|disk| disk.throttle(RATE)).collect();
    println!("{} disks are throttled to {RATE} bytes a second", throttles.len());
    write_and_move(disks);
}

fn write_and_move(disks: Vec<LoopFs>) {
    // A branch that a client fills up keeps 8 MiB, so that what is being written has room.
    let mover = mounted_with(disks, "ssd=@0|fuller than 60% until 40%;disks=@1:@2", "", "minfreespace=8M");
    let bed = &mover.bed;
    let ssd = bed.on(0, "");
    // Open for writing all the time, and the oldest; and one with a second name.
    fs::write(bed.at("held"), content(1)).unwrap();
    let held = File::options().append(true).open(bed.at("held")).unwrap();
    fs::write(bed.at("linked"), content(2)).unwrap();
    fs::create_dir(bed.at("dir")).unwrap();
    fs::hard_link(bed.at("linked"), bed.at("dir/second")).unwrap();
    assert_eq!(bed.branches_with("held"), [0]);
    burst(&mover);

    let writes = AtomicBool::new(true);
    let rounds = std::thread::scope(|scope| {
        let moves = scope.spawn(|| {
            let mut rounds = 0;
            while writes.load(Ordering::Relaxed) {
                // It may end with status 1, for what is open or has just been removed.
                let done = mover.run(&["--once", "--eager", "--quiet"]);
                assert!(matches!(done.code(), Some(0 | 1)), "{}", done.describe());
                rounds += 1;
            }
            rounds
        });
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for number in 0..PACED {
                assert!(wait_until(PATIENCE, || free(&ssd) > (30 << 20)), "the tier is never emptied");
                let path = bed.at(&format!("paced{number}"));
                let file = File::create(&path).expect("no ENOSPC");
                assert_eq!(
                    bed.branches_with(&format!("paced{number}")),
                    [0],
                    "a client that the mover keeps up with"
                );
                drop(file);
                fs::write(&path, content(number)).expect("no ENOSPC");
            }
            for number in 0..UNPACED {
                fs::write(bed.at(&format!("unpaced{number}")), content(number)).expect("no ENOSPC");
            }
        }));
        writes.store(false, Ordering::Relaxed);
        let rounds = moves.join();
        written.unwrap_or_else(|why| std::panic::resume_unwind(why));
        rounds.unwrap_or_else(|why| std::panic::resume_unwind(why))
    });
    assert!(rounds > 0);
    mover.run(&["--once", "--eager"]);
    assert!(free(&ssd) >= 40 << 20, "{} free", free(&ssd));
    assert_eq!(bed.branches_with("held"), [0]);
    assert_eq!(bed.branches_with("linked"), bed.branches_with("dir/second"));
    drop(held);
    let names = (0..PACED).map(|number| (format!("paced{number}"), number));
    for (name, number) in names.chain((0..UNPACED).map(|number| (format!("unpaced{number}"), number))) {
        assert!(fs::read(bed.at(&name)).unwrap() == content(number), "{name}");
        assert_eq!(bed.branches_with(&name).len(), 1, "{name}");
    }
}
