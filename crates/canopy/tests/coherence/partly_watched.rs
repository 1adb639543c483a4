//! A pool with a branch that cannot be watched, another pool: what lies on the branches before it is known all the same.

use super::random_changes::storm;
use super::rig::{Opens, look, open_by, two_disks};
use super::warm_walks::without_daemon;

use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, PATIENCE, PoolBed};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

/// Longer than what is not watched is cached.
const BRIEFLY: Duration = Duration::from_millis(1500);

/// Returns a pool over two disks, and the one that is its third branch, at this place in the order.
fn with_a_pool(operator: &str, options: &str) -> (PoolBed, PoolBed) {
    let (inner, bed) = (two_disks(Kind::Tmpfs, ""), open_by(Opens::Kernel, Kind::Tmpfs, options));
    bed.pool.set("branches", &format!("{operator}{}", inner.pool.path().display()));
    for dir in [bed.on(0, "d"), bed.on(1, "d"), inner.on(0, "d")] {
        fs::create_dir(dir).expect("mkdir");
    }
    for path in [bed.on(0, "d/first"), bed.on(1, "d/second"), inner.on(0, "d/third")] {
        // What was written a moment ago is cached more briefly.
        File::create(path).and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH)).expect("a file");
    }
    (inner, bed)
}

/// Whether the kernel shows a file of `d` without the daemon, longer than it may show what is not watched. The permissions of
/// the directory are asked for all the same, so the daemon is stopped a moment after that.
fn is_known(bed: &PoolBed, path: &str) -> bool {
    look(&bed.at(path));
    (0..2).any(|_| {
        std::thread::sleep(BRIEFLY);
        look(&bed.at("d"));
        without_daemon(bed, || look(&bed.at(path))).is_some()
    })
}

#[test]
fn what_lies_before_a_branch_that_is_not_watched_is_known() {
    let (inner, bed) = with_a_pool("+>", "");
    assert!(is_known(&bed, "d/first") && is_known(&bed, "d/second"));
    assert!(!is_known(&bed, "d/third"), "a file that is not watched");
    assert!(!is_known(&bed, "d/missing"), "what is missing may come on any branch");
    let dir = || fs::read_dir(bed.at("d")).expect("a listing").count();
    assert_eq!((dir(), dir()), (3, 3));
    fs::write(inner.at("d/new"), "").expect("a file");
    assert_eq!(dir(), 4, "listings are not cached");
    // Changes on the branches that are watched are told.
    fs::set_permissions(bed.on(1, "d/second"), fs::Permissions::from_mode(0o600)).expect("chmod");
    assert!(wait_until(PATIENCE, || look(&bed.at("d/second")) == look(&bed.on(1, "d/second"))));
    fs::write(bed.on(0, "d/third"), "longer").expect("a file");
    assert!(wait_until(PATIENCE, || look(&bed.at("d/third")) == look(&bed.on(0, "d/third"))));
    fs::rename(bed.on(0, "d/first"), bed.on(0, "d/renamed")).expect("a rename");
    assert!(wait_until(PATIENCE, || look(&bed.at("d/first")) == "entity not found"));
    bed.pool.umount();
    inner.pool.umount();
}

/// Wherever a branch that is not watched may decide what is shown.
#[test]
fn what_an_unwatched_branch_may_change_is_not_known() {
    for (operator, options) in [("+<", ""), ("+>", "func.getattr=newest"), ("+>", "rules=d=copies 2")] {
        let (inner, bed) = with_a_pool(operator, options);
        assert!(!is_known(&bed, "d/second"), "{operator} {options}");
        bed.pool.umount();
        inner.pool.umount();
    }
}

#[test]
fn changes_on_both_sides_before_a_branch_that_is_not_watched() {
    let (inner, bed) = (two_disks(Kind::Tmpfs, ""), open_by(Opens::Kernel, Kind::Tmpfs, ""));
    bed.pool.set("branches", &format!("+>{}", inner.pool.path().display()));
    storm(bed, "a branch that is not watched", 3);
    inner.pool.umount();
}
