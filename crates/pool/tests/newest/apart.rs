//! A copy that was changed on a disk alone, while the others were changed without it: nothing of it is deleted.

use super::copies::{Bed, copied};
use super::rejoin::set_aside;
use canopy_base::error::Error;
use canopy_pool::RenameKind;
use std::fs;
use std::path::{Path, PathBuf};

/// A pool whose first branch was used alone after its first copy, and the second one after that.
fn used_apart(branches: usize) -> Bed {
    let bed = Bed::new(branches);
    copied(&bed);
    bed.only(&[0]);
    bed.write("d/f", "ALONE");
    bed.only(&[1]);
    bed.write("d/f", "newer");
    bed.only(&(0..branches).collect::<Vec<_>>());
    assert_eq!((bed.read("d/f").as_str(), bed.on(0, "d/f").as_str()), ("newer", "ALONE"));
    bed
}

fn kept(bed: &Bed, branch: usize) -> Vec<(PathBuf, String)> {
    fn find(dir: &Path, path: &Path) -> Option<String> {
        fs::read_dir(dir)
            .unwrap()
            .find_map(|change| fs::read_to_string(change.unwrap().path().join(path)).ok())
    }
    let dir = bed.made.branches[branch].join(".canopy-aside");
    set_aside(bed, branch).into_iter().map(|path| (path.clone(), find(&dir, &path).unwrap())).collect()
}

fn one(path: &str, content: &str) -> Vec<(PathBuf, String)> {
    vec![(path.into(), content.into())]
}

#[test]
fn a_copy_that_takes_its_place_deletes_nothing() {
    let bed = used_apart(3);
    bed.copy("d/f", 1, 0).unwrap();
    assert!(bed.are_same("d/f", 0, 1));
    assert_eq!(kept(&bed, 0), one("d/f", "ALONE"));
    // What was only left behind is not kept.
    bed.write("d/f", "later");
    bed.only(&[0, 1]);
    bed.copy("d/f", 1, 0).or_else(|_| bed.copy("d/f", 0, 1)).unwrap();
    assert!(bed.are_same("d/f", 0, 1));
    for pulled in [0, 1] {
        bed.only(&[1 - pulled]);
        bed.write("d/f", "again");
        bed.only(&[0, 1]);
        bed.copy("d/f", 1 - pulled, pulled).unwrap();
    }
    assert_eq!((kept(&bed, 0), kept(&bed, 1)), (one("d/f", "ALONE"), Vec::new()));
}

/// What was written after the last copy was made is on one disk. When that disk comes back, others may have gone on without it.
#[test]
fn the_last_writes_before_a_disk_went_are_kept() {
    let bed = Bed::new(2);
    copied(&bed);
    bed.write("d/f", "LAST!");
    bed.only(&[1]);
    assert_eq!(bed.read("d/f"), "first");
    bed.write("d/f", "newer");
    bed.only(&[0, 1]);
    bed.copy("d/f", 1, 0).unwrap();
    assert_eq!((bed.read("d/f").as_str(), kept(&bed, 0)), ("newer", one("d/f", "LAST!")));
}

#[test]
fn nor_does_a_removal_or_a_rename() {
    let bed = used_apart(2);
    bed.unlink("d/f").unwrap();
    assert_eq!(bed.find("d/f").err(), Some(Error::Absent));
    assert_eq!(kept(&bed, 0), one("d/f", "ALONE"));

    let bed = used_apart(2);
    bed.rename("d/f", "d/g", RenameKind::Replace).unwrap();
    assert_eq!((bed.read("d/g").as_str(), kept(&bed, 0)), ("newer", one("d/f", "ALONE")));
    assert_eq!(bed.find("d/f").err(), Some(Error::Absent));

    let bed = used_apart(2);
    bed.create("d/new", "instead");
    bed.rename("d/new", "d/f", RenameKind::Replace).unwrap();
    assert_eq!((bed.read("d/f").as_str(), kept(&bed, 0)), ("instead", one("d/f", "ALONE")));
}

#[test]
fn a_file_with_several_names_is_kept_once() {
    let bed = Bed::new(2);
    bed.create("d/f", "first");
    bed.link("d/f", "d/g");
    bed.copy("d/f", 0, 1).unwrap();
    bed.only(&[0]);
    bed.write("d/f", "ALONE");
    bed.only(&[1]);
    bed.write("d/g", "newer");
    bed.only(&[0, 1]);
    bed.copy("d/f", 1, 0).unwrap();
    assert!(bed.are_same("d/f", 0, 1) && bed.are_same("d/g", 0, 1));
    let kept = kept(&bed, 0);
    assert_eq!(kept.iter().map(|(_, content)| content.as_str()).collect::<Vec<_>>(), ["ALONE"]);
}
