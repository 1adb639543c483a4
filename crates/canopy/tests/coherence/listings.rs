//! Remembered listings of directories that change on the branches.

use super::rig::Bed;
use canopy_testkit::Kind;
use canopy_testkit::cmd::wait_until;
use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn remembered_listings_follow_the_branches() {
    let bed = Bed::new(Kind::Ext4, "cache.readdir=true");
    for branch in 0..2 {
        fs::create_dir(bed.on(branch, "d")).expect("mkdir");
    }
    let listed = || -> BTreeSet<String> {
        let list = fs::read_dir(bed.at("d")).expect("a listing");
        list.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect()
    };
    let mut there = BTreeSet::new();
    for round in 0..60 {
        // Remembered by the second.
        listed();
        assert_eq!(listed(), there, "round {round}");
        let (branch, name) = (round % 2, format!("n{}", round / 3));
        if there.insert(name.clone()) {
            fs::write(bed.on(branch, &format!("d/{name}")), "").expect("a file");
        } else {
            there.remove(&name);
            for branch in 0..2 {
                let _ = fs::remove_file(bed.on(branch, &format!("d/{name}")));
            }
        }
        assert!(wait_until(Duration::from_secs(5), || listed() == there), "round {round}: {:?}", listed());
    }
    bed.pool.umount();
}

/// By default listings are remembered as well, but nobody who looks after a change is given one of before it: also
/// while the pool itself is so busy that what happens on the branches is left to gather.
#[test]
fn listings_are_true_at_once() {
    let bed = Bed::new(Kind::Tmpfs, "");
    fs::create_dir(bed.on(0, "d")).expect("mkdir");
    fs::create_dir(bed.on(0, "busy")).expect("mkdir");
    let listed = || fs::read_dir(bed.at("d")).expect("a listing").count();
    let stop = AtomicBool::new(false);
    let wrong = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::write(bed.at("busy/file"), "own").expect("a file");
                fs::remove_file(bed.at("busy/file")).expect("removed");
            }
        });
        let wrong = (0..500).find_map(|round| {
            let before = (listed(), listed());
            fs::write(bed.on(0, &format!("d/n{round}")), "").expect("a file");
            let after = listed();
            (before != (round, round) || after != round + 1).then_some((round, before, after))
        });
        stop.store(true, Ordering::Relaxed);
        wrong
    });
    assert_eq!(wrong, None, "round, entries listed twice before it, and after it");
    bed.pool.umount();
}
