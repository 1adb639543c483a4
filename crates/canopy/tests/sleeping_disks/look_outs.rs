//! What the pool and the commands do of their own accord reads and writes nothing on a disk that rests.
//!
//! `CANOPY_IDLE_SECONDS` sets for how long the pool is left alone.

use super::rig::{BINARY, mount, requests, requests_of, rest};
use canopy_testkit::cmd::run_within;
use canopy_testkit::{Kind, LoopFs, PATIENCE, require_root};
use std::fs;
use std::process::Command;
use std::time::Duration;

fn assert_left_alone(kind: Kind, options: &str) {
    let bed = mount(kind, options);
    let walked = bed.pool.command(["ls", "-R", bed.pool.path().to_str().expect("a name")]);
    drop(walked);
    rest(&bed);
    // Once more, with nothing in memory that the looks so far have read.
    bed.disks.iter().for_each(LoopFs::drop_caches);
    std::thread::sleep(Duration::from_secs(4));
    let pool = bed.pool.path().to_str().expect("a name");
    let before = requests(&bed);
    let seconds = std::env::var("CANOPY_IDLE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(8);
    std::thread::sleep(Duration::from_secs(seconds));
    assert_eq!(requests(&bed), before, "{kind:?} {options}: the daemon");
    for words in [
        &["status", pool][..],
        &["status", pool, "--json"],
        &["disks", pool],
        &["metrics", pool],
        &["get", pool],
        &["explain", "create", pool],
    ] {
        let done = bed.pool.command(words);
        assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
        assert_eq!(requests(&bed), before, "{kind:?} {options}: {words:?}");
    }
    rustix::fs::statvfs(bed.pool.path()).expect("df");
    rustix::fs::statvfs(bed.at("dir1")).expect("df");
    assert_eq!(requests(&bed), before, "{kind:?} {options}: df");
    bed.pool.umount();
}

#[test]
fn looking_at_a_pool_wakes_no_disk() {
    assert_left_alone(Kind::Ext4, "");
}

#[test]
fn nor_with_everything_that_keeps_notes() {
    assert_left_alone(Kind::Ext4, "trash=/=7d,survive=true");
}

#[test]
fn nor_on_other_filesystems() {
    for kind in [Kind::Xfs, Kind::Btrfs] {
        assert_left_alone(kind, "");
    }
}

#[test]
fn a_branch_that_rests_is_not_read() {
    require_root();
    let mut disks = vec![LoopFs::ext4(64 << 20)];
    fs::write(disks[0].path().join("file"), "one").expect("a file");
    // Nothing of it is in memory then.
    disks[0].unmount();
    disks[0].mount_again();
    let path = disks[0].path().to_str().expect("a name").to_owned();
    let look = |what: &str| {
        let before = requests_of(&disks);
        let done = run_within(Command::new(BINARY).args(["probe", what, &path]), PATIENCE);
        assert!(done.success() && done.stdout.contains("ext4"), "{}", done.describe());
        (before, requests_of(&disks))
    };
    let (before, after) = look("resting");
    assert_eq!(before, after);
    let (before, after) = look("branch");
    assert_ne!(before, after, "otherwise this says nothing");
}
