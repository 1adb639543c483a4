//! Operations that come back from the branch after their requests were answered.

use super::rig::{PATIENCE, Rig, assert_timed_out};
use canopy_fuse::Opcode;
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Fault, proc};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// More than there are workers at first.
const READERS: usize = 16;
const BLOCK: usize = 128 << 10;
const BLOCKS: usize = 16;

/// What a block of a file holds, other than any other block.
fn block(file: u8, number: usize) -> Vec<u8> {
    (0..BLOCK).map(|at| file ^ (at % 249) as u8 ^ (number * 8) as u8).collect()
}

fn write_blocks(path: &Path, file: u8) {
    let data: Vec<u8> = (0..BLOCKS).flat_map(|number| block(file, number)).collect();
    fs::write(path, data).expect("a file");
}

fn read(file: &File, number: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; BLOCK];
    file.read_exact_at(&mut bytes, (number * BLOCK) as u64)?;
    Ok(bytes)
}

/// The buffers of reads that time out are used by other requests, while the reads may still write to them.
#[test]
fn reads_that_come_back_late_do_not_mix_with_others() {
    for rig in Rig::over_each_transport("passthrough.io=off,cache.files=off") {
        write_blocks(&rig.faulty.backing_dir().join("d/b"), 0x00);
        write_blocks(&rig.well[0].path().join("d/a"), 0x80);
        let (stuck, well) =
            (File::open(rig.at("d/b")).expect("a file"), File::open(rig.at("d/a")).expect("a file"));
        rig.faulty.set(Fault::Hang, &[Opcode::Read]);
        let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..READERS)
                .map(|number| {
                    scope.spawn({
                        let stuck = &stuck;
                        move || read(stuck, number)
                    })
                })
                .collect();
            for thread in waiting {
                assert_timed_out(thread.join().expect("a reader"));
            }
            for reader in 0..READERS {
                let (well, stop, count) = (&well, &stop, &count);
                scope.spawn(move || {
                    for round in reader.. {
                        let number = round % BLOCKS;
                        assert!(read(well, number).expect("a read") == block(0x80, number), "block {number}");
                        count.fetch_add(1, Ordering::Relaxed);
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            }
            assert!(wait_until(PATIENCE, || count.load(Ordering::Relaxed) > 10 * READERS));
            rig.heal();
            let then = count.load(Ordering::Relaxed);
            assert!(wait_until(PATIENCE, || count.load(Ordering::Relaxed) > then + 10 * READERS));
            stop.store(true, Ordering::Relaxed);
        });
        for number in 0..BLOCKS {
            assert!(read(&stuck, number).expect("a read") == block(0, number), "block {number}");
        }
        drop((stuck, well));
        rig.pool.umount();
    }
}

/// Returns how many threads of workers and descriptors a process has.
fn held(pid: i32) -> (usize, usize) {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let name = |task: io::Result<fs::DirEntry>| fs::read_to_string(task.ok()?.path().join("comm")).ok();
    let serves = |name: &String| name.starts_with("canopy-q") || name.starts_with("canopy-fuse");
    (tasks.filter_map(name).filter(serves).count(), proc::descriptors(pid).len())
}

/// `CANOPY_SCALE` times three cycles.
#[test]
fn hanging_and_coming_back_leaves_nothing_behind() {
    let scale = std::env::var("CANOPY_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    for rig in Rig::over_each_transport("passthrough.io=off,cache.files=off,branch-timeout=3") {
        let pid = rig.pool.pid();
        fs::read_dir(rig.at("d")).expect("a listing").for_each(drop);
        for name in ["d/a", "d/b", "d/c"] {
            fs::read(rig.at(name)).expect("a file");
        }
        let (before, at_first) = (held(pid), proc::descriptors(pid));
        for cycle in 0..4 * scale {
            let open = File::open(rig.at("d/b")).expect("a file");
            rig.faulty.set_all(Fault::Hang);
            thread::scope(|scope| {
                for client in 0..READERS {
                    let (rig, open) = (&rig, open.try_clone().expect("a file"));
                    scope.spawn(move || {
                        // Some of them fail, some need only the other branches.
                        let _ = match client % 4 {
                            0 => open.read_at(&mut [0; 16], 0).map(drop),
                            1 => fs::metadata(rig.at("only-b")).map(drop),
                            2 => fs::write(rig.at(&format!("d/new{client}")), "new"),
                            _ => fs::read_dir(rig.at("d")).map(|dir| dir.for_each(drop)),
                        };
                        // Closed while the branch hangs.
                        drop(open);
                    });
                }
            });
            drop(open);
            rig.wait_until_known_to_hang();
            rig.heal();
            assert!(wait_until(PATIENCE, || rig.faulty.hanging() == 0), "cycle {cycle}");
            assert_eq!(fs::read(rig.at("d/b")).expect("a file"), b"b", "cycle {cycle}");
        }
        // Workers leave after a thousand ticks of the watchdog, while there are requests and a file that the kernel knows.
        let known = File::open(rig.at("d/a")).expect("a file");
        // At most two for `known`, and the session's device if the worker that has no device of its own has left.
        let is_gone = |now: (usize, usize)| now.0 <= before.0 && now.1 <= before.1 + 3;
        let (mut last, mut left) = (held(pid), false);
        // On a busy machine that takes long, but not without any progress.
        while !left {
            let then = last;
            wait_until(5 * PATIENCE, || {
                known.metadata().expect("attributes");
                last = held(pid);
                left = is_gone(last);
                left || last.0 < then.0
            });
            if !left && last.0 >= then.0 {
                break;
            }
        }
        drop(known);
        assert!(left, "{:?} {:?}\nafter {before:?} {at_first:?}", held(pid), proc::descriptors(pid));
        rig.pool.umount();
    }
}
