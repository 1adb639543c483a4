//! A file that a program has leased on its branch stays as it is. No command waits for the end of the lease, and each says why.

use super::rig::{disks, on_pool, put};
use canopy_sys::lease;
use canopy_testkit::cmd::Finished;
use canopy_testkit::{Fields, PoolBed, Tree};
use std::fs::{self, File};
use std::os::fd::AsFd;

const WHY: &str = "a program holds a lease on it";

/// What a command says, at any width.
fn words(done: &Finished) -> String {
    let all = format!("{} {}", done.stdout, done.stderr);
    all.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs a command while a copy of a file is leased by somebody who lets nobody else open it.
#[track_caller]
fn refused(bed: &PoolBed, branch: usize, path: &str, command: &str, args: &[&str]) {
    let trees = || [0, 1, 2].map(|branch| Tree::capture_with(bed.on(branch, ""), Fields::all()));
    bed.wait_until_closed(path);
    let before = trees();
    let holder = File::open(bed.on(branch, path)).expect("the branch's file");
    lease::take_alone(holder.as_fd()).expect("a lease");
    let done = on_pool(bed, command, args);
    lease::release(holder.as_fd());
    let said = words(&done);
    assert!(said.contains(WHY), "{command}: {}", done.describe());
    for (tree, before) in trees().iter().zip(&before) {
        before.assert_same(tree);
    }
}

#[test]
fn commands_leave_a_leased_file_and_say_why() {
    let bed = disks("");
    put(&bed, 0, "one", "data");
    for branch in [0, 1] {
        put(&bed, branch, "twice", "the same");
        let file = File::open(bed.on(branch, "twice")).expect("a copy");
        file.set_modified(std::time::UNIX_EPOCH).expect("utimens");
    }
    let to = bed.on(2, "").display().to_string();
    refused(&bed, 0, "one", "move", &["one", "--to", &to]);
    refused(&bed, 0, "one", "dup", &["one"]);
    refused(&bed, 0, "one", "verify", &["one", "--yes"]);
    for leased in [0, 1] {
        let kept = bed.on(0, "").display().to_string();
        refused(&bed, leased, "twice", "dedup", &["--keep", &kept, "--yes"]);
    }
    // Afterwards nothing is in the way.
    let done = on_pool(&bed, "move", ["one", "--to", &to]);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(bed.branches_with("one"), [2]);
    assert_eq!(fs::read(bed.at("one")).expect("the file"), b"data");
}
