//! Threads, forks, signal handlers, cancelled threads, and names that are replaced while they are opened.

use super::rig::Bed;
use canopy_testkit::{Kind, LoopFs};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// Inode numbers are those of the branch, so that a program that writes there knows what the pool will report.
const NUMBERS: &str = "inodecalc=passthrough";

/// Runs the C program, and returns how many opens it examined and how many of them led to a branch.
#[track_caller]
fn run_threads(bed: &Bed, test: &str, replacing_in: &Path) -> (u64, u64) {
    let program = bed.program("threads");
    let branch = bed.on(0, "");
    let args = [OsStr::new(test), bed.pool.path().as_os_str(), replacing_in.as_os_str(), branch.as_os_str()];
    let output = bed.run_ok(program, args);
    let numbers: Vec<u64> = output.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    println!("{test} in {}: {output}", replacing_in.display());
    (numbers[0], numbers[1])
}

#[test]
fn opens_in_threads_and_forks() {
    let bed = Bed::new(NUMBERS);
    let (examined, on_branch) = run_threads(&bed, "forks", bed.pool.path());
    // No name is replaced and no file locked, so every open leads to the branch.
    assert!(examined > 0 && examined == on_branch, "{examined} {on_branch}");
    bed.end();
}

#[test]
fn opens_in_signal_handlers() {
    let bed = Bed::new(NUMBERS);
    let (examined, on_branch) = run_threads(&bed, "signals", bed.pool.path());
    assert!(examined > 1000 && examined == on_branch, "{examined} {on_branch}");
    bed.end();
}

#[test]
fn opens_in_cancelled_threads() {
    let bed = Bed::new(NUMBERS);
    assert_eq!(run_threads(&bed, "cancel", bed.pool.path()), (1, 1));
    bed.end();
}

#[test]
fn names_replaced_in_the_pool() {
    for kind in [Kind::Tmpfs, Kind::Ext4] {
        let disks = [LoopFs::new(kind, 512 << 20), LoopFs::new(kind, 512 << 20)];
        // The pool would not notice a write to the branch until cache.attr expires.
        let bed = Bed::over(disks, "inodecalc=passthrough,cache.attr=0");
        for test in ["replace", "exchange"] {
            for old in fs::read_dir(bed.on(0, "")).unwrap() {
                let old = old.unwrap().path();
                if old.is_file() {
                    fs::remove_file(bed.at(old.file_name().unwrap().to_str().unwrap())).unwrap()
                }
            }
            let (examined, on_branch) = run_threads(&bed, test, bed.pool.path());
            assert!(examined > 0 && on_branch > 0, "{kind:?} {test}: {examined} {on_branch}");
        }
        bed.end();
    }
}

#[test]
fn names_replaced_on_the_branch() {
    for kind in [Kind::Tmpfs, Kind::Ext4] {
        let disks = [LoopFs::new(kind, 512 << 20), LoopFs::new(kind, 512 << 20)];
        let bed = Bed::over(disks, "inodecalc=passthrough,cache.entry=0,cache.attr=0");
        let (examined, on_branch) = run_threads(&bed, "replace", &bed.on(0, ""));
        assert!(examined > 0 && on_branch > 0, "{kind:?}: {examined} {on_branch}");
        bed.end();
    }
}
