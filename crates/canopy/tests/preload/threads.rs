//! Threads, forks, signal handlers, cancelled threads, and names that are replaced while they are opened.

use super::rig::Bed;
use canopy_testkit::{Kind, LoopFs};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// Inode numbers are those of the branch, so that whoever writes there knows what the pool will tell.
const NUMBERS: &str = "inodecalc=passthrough";

/// Opens that were looked at, and those of them that led to a branch.
#[track_caller]
fn crowd(bed: &Bed, thing: &str, replacing_in: &Path) -> (u64, u64) {
    let program = bed.program("threads");
    let branch = bed.on(0, "");
    let args = [OsStr::new(thing), bed.pool.path().as_os_str(), replacing_in.as_os_str(), branch.as_os_str()];
    let output = bed.run_ok(program, args);
    let numbers: Vec<u64> = output.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    println!("{thing} in {}: {output}", replacing_in.display());
    (numbers[0], numbers[1])
}

#[test]
fn threads_and_forks() {
    let bed = Bed::new(NUMBERS);
    let (looked, exchanged) = crowd(&bed, "forks", bed.pool.path());
    // Nothing is replaced and nothing locked, so there is no doubt.
    assert!(looked > 0 && looked == exchanged, "{looked} {exchanged}");
    bed.end();
}

#[test]
fn signal_handlers() {
    let bed = Bed::new(NUMBERS);
    let (looked, exchanged) = crowd(&bed, "signals", bed.pool.path());
    assert!(looked > 1000 && looked == exchanged, "{looked} {exchanged}");
    bed.end();
}

#[test]
fn cancelled_threads() {
    let bed = Bed::new(NUMBERS);
    assert_eq!(crowd(&bed, "cancel", bed.pool.path()), (1, 1));
    bed.end();
}

#[test]
fn names_replaced_in_the_pool() {
    for kind in [Kind::Tmpfs, Kind::Ext4] {
        let disks = [LoopFs::new(kind, 512 << 20), LoopFs::new(kind, 512 << 20)];
        // What is written past the pool, it would not hear of for cache.attr.
        let bed = Bed::over(disks, "inodecalc=passthrough,cache.attr=0");
        for thing in ["replace", "exchange"] {
            for old in fs::read_dir(bed.on(0, "")).unwrap() {
                let old = old.unwrap().path();
                if old.is_file() {
                    fs::remove_file(bed.at(old.file_name().unwrap().to_str().unwrap())).unwrap()
                }
            }
            let (looked, exchanged) = crowd(&bed, thing, bed.pool.path());
            assert!(looked > 0 && exchanged > 0, "{kind:?} {thing}: {looked} {exchanged}");
        }
        bed.end();
    }
}

#[test]
fn names_replaced_on_the_branch() {
    for kind in [Kind::Tmpfs, Kind::Ext4] {
        let disks = [LoopFs::new(kind, 512 << 20), LoopFs::new(kind, 512 << 20)];
        let bed = Bed::over(disks, "inodecalc=passthrough,cache.entry=0,cache.attr=0");
        let (looked, exchanged) = crowd(&bed, "replace", &bed.on(0, ""));
        assert!(looked > 0 && exchanged > 0, "{kind:?}: {looked} {exchanged}");
        bed.end();
    }
}
