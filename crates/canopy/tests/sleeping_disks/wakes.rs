//! Who has woken a disk.

use super::rig::{BINARY, mount, rest, sleep_of, status};
use canopy_testkit::cmd::{run, wait_until};
use canopy_testkit::{Kind, PATIENCE, PoolBed, as_user};
use serde_json::Value;
use std::fs::{self, File};

/// Waits until another wake of a disk is told of, and returns it.
#[track_caller]
fn next(bed: &PoolBed, branch: usize, number: u64) -> Value {
    let mut last = Value::Null;
    let told = wait_until(PATIENCE, || {
        last = sleep_of(bed, &status(bed), branch);
        last["woken"] == number
    });
    assert!(told, "{last:#}");
    last["wakes"][0].clone()
}

#[test]
fn who_wakes_a_disk_is_told_with_what_for() {
    let bed = mount(Kind::Ext4, "");
    rest(&bed);
    // A walk down to a file, of which only the second disk has a copy.
    let woke = sleep_of(&bed, &status(&bed), 1)["woken"].as_u64().expect("a number");
    run("cat", [bed.at("dir3/file1")]);
    let wake = next(&bed, 1, woke + 1);
    assert_eq!((&wake["by"], &wake["program"]), (&"client".into(), &"cat".into()), "{wake:#}");
    assert!(["dir3", "dir3/file1"].contains(&wake["path"].as_str().expect("a path")), "{wake:#}");
    assert_eq!(wake["operation"], "lookup", "{wake:#}");
    let text = bed.pool.command(["status".as_ref(), bed.pool.path().as_os_str()]);
    assert!(text.stdout.contains("ago by cat"), "{}", text.describe());

    // Another user learns the program, as from ps, and not the name of the file.
    let mut command = as_user(6001, 6001, &[], BINARY);
    let seen =
        canopy_testkit::cmd::run_within(command.args(["status", "--json"]).arg(bed.pool.path()), PATIENCE);
    let seen = sleep_of(&bed, &canopy_testkit::pool_status(&seen), 1);
    assert_eq!((&seen["wakes"][0]["program"], &seen["wakes"][0]["path"]), (&"cat".into(), &Value::Null));

    // What is only changed reaches the disk later.
    rest(&bed);
    fs::metadata(bed.at("dir3/file1")).expect("it is cached");
    rest_again(&bed);
    let woke = sleep_of(&bed, &status(&bed), 1)["woken"].as_u64().expect("a number");
    run("touch", ["-m".into(), bed.at("dir3/file1")]);
    let wake = next(&bed, 1, woke + 1);
    assert_eq!((&wake["program"], &wake["path"]), (&"touch".into(), &"dir3/file1".into()), "{wake:#}");

    // A program past the pool.
    rest(&bed);
    let woke = sleep_of(&bed, &status(&bed), 1)["woken"].as_u64().expect("a number");
    File::open(bed.on(1, "dir4/file1")).and_then(|file| file.sync_all()).expect("a file");
    fs::read(bed.on(1, "dir5/file1")).expect("a file");
    let wake = next(&bed, 1, woke + 1);
    assert_eq!((&wake["by"], &wake["program"]), (&"outside".into(), &Value::Null), "{wake:#}");
    bed.pool.umount();
}

#[test]
fn who_waits_for_a_disk_has_woken_it() {
    let bed = mount(Kind::Ext4, "passthrough.io=off,cache.files=off");
    rest(&bed);
    // The name is known, and the content is not.
    File::open(bed.at("dir3/file1")).expect("a file");
    rest_again(&bed);
    let woke = sleep_of(&bed, &status(&bed), 1)["woken"].as_u64().expect("a number");
    run("head", ["-c1".into(), bed.at("dir3/file1")]);
    let wake = next(&bed, 1, woke + 1);
    assert_eq!((&wake["by"], &wake["program"]), (&"client".into(), &"head".into()), "{wake:#}");
    assert_eq!((&wake["operation"], &wake["path"]), (&"read".into(), &"dir3/file1".into()), "{wake:#}");
    // The other one has slept on.
    assert_eq!(sleep_of(&bed, &status(&bed), 0)["state"], "idle");
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
