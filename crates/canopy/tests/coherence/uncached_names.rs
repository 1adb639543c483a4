//! Names that the kernel has not cached: changes on the branches show at once, because the pool answers from its own
//! cache only after it has handled all earlier events.

use super::rig::{look, two_disks};

use canopy_testkit::{Kind, Rng};
use std::fs;

/// Names that were never looked up, in a directory whose names the pool has all cached.
#[test]
fn changes_of_names_that_were_never_looked_up_show_at_once() {
    for kind in [Kind::Tmpfs, Kind::Ext4] {
        let bed = two_disks(kind, "");
        let rng = &mut Rng::new(7);
        for branch in 0..2 {
            fs::create_dir_all(bed.on(branch, "d/e")).expect("a directory");
        }
        for number in 0..40 {
            assert_eq!(look(&bed.at(&format!("d/none{number}"))), "entity not found");
        }
        for number in 0..600 {
            let (branch, name) = (rng.index(2), format!("d/n{number}"));
            let on = bed.on(branch, &name);
            match rng.below(5) {
                0 => fs::write(&on, "x").expect("a file"),
                1 => fs::create_dir_all(on.join("below")).expect("a directory"),
                2 => {
                    fs::write(bed.on(branch, &format!("d/e/n{number}")), "").expect("a file");
                    fs::rename(bed.on(branch, &format!("d/e/n{number}")), &on).expect("a rename");
                }
                3 => {
                    // Both names are new, and the first is already gone.
                    let before = bed.on(branch, &format!("d/before{number}"));
                    fs::write(&before, "").expect("a file");
                    fs::rename(&before, &on).expect("a rename");
                    assert_eq!(look(&bed.at(&format!("d/before{number}"))), "entity not found");
                }
                _ => fs::write(bed.at(&name), "x").expect("a file through the pool"),
            }
            assert_eq!(look(&bed.at(&name)), look(&if on.exists() { on } else { bed.on(1 - branch, &name) }));
            assert_eq!(look(&bed.at(&format!("d/missing{number}"))), "entity not found");
        }
    }
}

/// When a directory replaces another, cached names of the other do not survive.
#[test]
fn a_directory_that_replaces_another_shows_its_own_names() {
    let bed = two_disks(Kind::Tmpfs, "");
    for round in 0..60 {
        let (here, there) = (format!("d{round}"), format!("other{round}"));
        for (dir, name) in [(&here, "old"), (&there, "new")] {
            fs::create_dir_all(bed.on(1, dir)).expect("a directory");
            fs::write(bed.on(1, dir).join(name), "x").expect("a file");
        }
        // Enough lookups for the pool to cache the directory's names.
        for number in 0..20 {
            look(&bed.at(&format!("{here}/none{number}")));
        }
        fs::rename(bed.on(1, &here), bed.on(1, &format!("gone{round}"))).expect("a rename");
        fs::rename(bed.on(1, &there), bed.on(1, &here)).expect("a rename");
        assert_eq!(
            look(&bed.at(&format!("{here}/new"))),
            look(&bed.on(1, &format!("{here}/new"))),
            "{round}"
        );
        fs::write(bed.on(0, &format!("late{round}")), "").expect("a file");
        fs::create_dir(bed.on(0, &here)).expect("a directory on the other branch");
        fs::write(bed.on(0, &format!("{here}/first")), "").expect("a file");
        assert_eq!(
            look(&bed.at(&format!("{here}/first"))),
            look(&bed.on(0, &format!("{here}/first"))),
            "{round}"
        );
    }
}
