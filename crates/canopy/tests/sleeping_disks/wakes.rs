//! Who has woken a disk.

use super::rig::{BINARY, mount, rest, sleep_of, status};
use canopy_testkit::cmd::{run, wait_until};
use canopy_testkit::{Kind, PATIENCE, PoolBed, as_user};
use serde_json::Value;
use std::fs::{self, File};
use std::process::{Command, Stdio};

/// Returns how often a disk was woken.
#[track_caller]
fn woken(bed: &PoolBed, branch: usize) -> u64 {
    sleep_of(bed, &status(bed), branch)["woken"].as_u64().expect("a number")
}

/// The wakes that are told of beyond the first `number`, the latest first.
fn wakes_since(bed: &PoolBed, branch: usize, number: u64) -> Vec<Value> {
    let told = sleep_of(bed, &status(bed), branch);
    let new = told["woken"].as_u64().expect("a number") - number;
    told["wakes"].as_array().expect("a list").iter().take(new as usize).cloned().collect()
}

/// Waits until a wake beyond the first `number` is told of that a program caused, or none that is known, and returns it. A test
/// beside this one may write all that the system keeps back.
#[track_caller]
fn wake_by(bed: &PoolBed, branch: usize, number: u64, program: Option<&str>) -> Value {
    let mut found = Value::Null;
    let told = wait_until(PATIENCE, || {
        let new = wakes_since(bed, branch, number);
        found = new.into_iter().find(|wake| wake["program"].as_str() == program).unwrap_or_default();
        !found.is_null()
    });
    assert!(told, "{:#}", sleep_of(bed, &status(bed), branch));
    found
}

#[test]
fn who_wakes_a_disk_is_told_with_what_for() {
    let bed = mount(Kind::Ext4, "");
    rest(&bed);
    // A walk down to a file, of which only the second disk has a copy.
    let woke = woken(&bed, 1);
    run("cat", [bed.at("dir3/file1")]);
    let wake = wake_by(&bed, 1, woke, Some("cat"));
    assert_eq!(wake["by"], "client", "{wake:#}");
    assert!(["dir3", "dir3/file1"].contains(&wake["path"].as_str().expect("a path")), "{wake:#}");
    assert_eq!(wake["operation"], "lookup", "{wake:#}");
    let text = bed.pool.command(["status".as_ref(), bed.pool.path().as_os_str()]);
    assert!(text.stdout.contains("ago by cat"), "{}", text.describe());

    // Another user learns the program, as from ps, and not the name of the file.
    let mut command = as_user(6001, 6001, &[], BINARY);
    let seen =
        canopy_testkit::cmd::run_within(command.args(["status", "--json"]).arg(bed.pool.path()), PATIENCE);
    let seen = sleep_of(&bed, &canopy_testkit::pool_status(&seen), 1);
    let seen = seen["wakes"].as_array().expect("a list").iter().find(|wake| wake["program"] == "cat");
    assert_eq!(seen.expect("a wake")["path"], Value::Null);

    // What is only changed reaches the disk later.
    rest(&bed);
    fs::metadata(bed.at("dir3/file1")).expect("it is cached");
    rest_again(&bed);
    let woke = woken(&bed, 1);
    run("touch", ["-m".into(), bed.at("dir3/file1")]);
    let wake = wake_by(&bed, 1, woke, Some("touch"));
    // A test beside this one may drop what the kernel has cached of names.
    assert!(["dir3", "dir3/file1"].contains(&wake["path"].as_str().expect("a path")), "{wake:#}");

    // A program past the pool.
    rest(&bed);
    let woke = woken(&bed, 1);
    File::open(bed.on(1, "dir4/file1")).and_then(|file| file.sync_all()).expect("a file");
    fs::read(bed.on(1, "dir5/file1")).expect("a file");
    let wake = wake_by(&bed, 1, woke, None);
    assert_eq!(wake["by"], "outside", "{wake:#}");
    bed.pool.umount();
}

#[test]
fn who_waits_for_a_disk_has_woken_it() {
    let bed = mount(Kind::Ext4, "passthrough.io=off,cache.files=off");
    rest(&bed);
    // It is open already, and its content is not known.
    let file = File::open(bed.at("dir3/file1")).expect("a file");
    rest_again(&bed);
    let woke = woken(&bed, 1);
    let other = woken(&bed, 0);
    let head = Command::new("head").arg("-c1").stdin(file).stdout(Stdio::null()).status();
    assert!(head.expect("head").success());
    let wake = wake_by(&bed, 1, woke, Some("head"));
    assert_eq!(wake["by"], "client", "{wake:#}");
    assert_eq!((&wake["operation"], &wake["path"]), (&"read".into(), &"dir3/file1".into()), "{wake:#}");
    // The other one has slept on.
    let others = wakes_since(&bed, 0, other);
    assert!(others.iter().all(|wake| wake["by"] != "client"), "{others:#?}");
    bed.pool.umount();
}

/// Waits until the disks rest, with what is cached.
#[track_caller]
fn rest_again(bed: &PoolBed) {
    let idle = wait_until(PATIENCE, || {
        let now = status(bed);
        [0, 1].into_iter().all(|branch| sleep_of(bed, &now, branch)["state"] == "idle")
    });
    assert!(idle);
}
