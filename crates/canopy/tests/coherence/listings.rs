//! Remembered listings of directories that change on the branches.

use super::rig::Bed;
use canopy_testkit::Kind;
use canopy_testkit::cmd::wait_until;
use std::collections::BTreeSet;
use std::fs;
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
