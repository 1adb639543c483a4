//! Handles of files that are gone.

use super::rig::{Bed, Layout, handle, layouts};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, PATIENCE};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Creates files until one reuses the inode number, removes the others, and returns whether it succeeded.
fn reuse(bed: &Bed, ino: u64, make: impl Fn(&str)) -> bool {
    (0..if bed.layout.kind == Kind::Ext4 { 64 } else { 4 }).any(|attempt| {
        let name = format!("again{attempt}");
        make(&name);
        fs::symlink_metadata(bed.on_branch(&name)).unwrap().ino() == ino
    })
}

#[test]
fn handles_of_removed_files_are_stale() {
    for layout in layouts() {
        let mut bed = Bed::new(layout, 2, "");
        fs::create_dir(bed.at("d")).unwrap();
        for name in ["f", "g"] {
            fs::write(bed.at(name), name).unwrap();
        }
        let [d, f, g] = ["d", "f", "g"].map(|name| handle(bed.at(name)));
        fs::remove_file(bed.at("f")).unwrap();
        fs::remove_dir(bed.at("d")).unwrap();
        fs::remove_file(bed.on_branch("g")).unwrap();
        // The kernel releases a file shortly after its last close.
        let gone = || {
            bed.forget();
            bed.read(&f).is_err()
        };
        assert!(wait_until(PATIENCE, gone), "{layout:?}");
        for round in 0..2 {
            assert_eq!(bed.read(&f), Err(Errno::STALE), "{layout:?}, round {round}");
            assert_eq!(bed.read(&g), Err(Errno::STALE), "{layout:?}, round {round}");
            assert_eq!(bed.list(&d), Err(Errno::STALE), "{layout:?}, round {round}");
            bed.restart();
        }
        bed.end();
    }
}

/// The old handle never leads to a new file with the same inode number, even one created immediately.
#[test]
fn a_reused_inode_number_does_not_revive_a_handle() {
    for layout in layouts() {
        let mut reused = 0;
        let mut bed = Bed::new(layout, 1, "");
        let mut handles = Vec::new();
        for round in 0..20 {
            let name = format!("first{round}");
            fs::write(bed.at(&name), "old").unwrap();
            let ino = bed.on_branch(&name).metadata().unwrap().ino();
            let old = handle(bed.at(&name));
            fs::remove_file(bed.at(&name)).unwrap();
            reused += i32::from(reuse(&bed, ino, |name| fs::write(bed.at(name), "new").unwrap()));
            assert_ne!(bed.read(&old).as_deref(), Ok("new"), "{layout:?}");
            fs::create_dir(bed.at("dir")).unwrap();
            let ino = bed.on_branch("dir").metadata().unwrap().ino();
            let dir = handle(bed.at("dir"));
            fs::remove_dir(bed.at("dir")).unwrap();
            reused += i32::from(reuse(&bed, ino, |name| {
                let _ = fs::remove_file(bed.at(name));
                fs::create_dir(bed.at(name)).unwrap();
                fs::write(bed.at(name).join("new"), "new").unwrap();
            }));
            assert!(bed.list(&dir).is_err(), "{layout:?}");
            handles.push((old, dir));
            for name in bed.list(&handle(bed.at(""))).unwrap() {
                let _ = fs::remove_file(bed.at(&name));
                let _ = fs::remove_dir_all(bed.at(&name));
            }
        }
        bed.forget();
        for _ in 0..2 {
            for (old, dir) in &handles {
                assert_eq!(bed.read(old), Err(Errno::STALE), "{layout:?}");
                assert_eq!(bed.list(dir), Err(Errno::STALE), "{layout:?}");
            }
            bed.restart();
        }
        if layout.kind == Kind::Ext4 {
            assert!(reused > 0, "{layout:?}: no inode number was reused, so the test proves nothing");
        }
        bed.end();
    }
}

#[test]
fn files_moved_out_of_the_branch_are_stale() {
    for layout in layouts().into_iter().filter(|layout| !layout.whole) {
        let mut bed = Bed::new(layout, 2, "");
        fs::create_dir_all(bed.at("d/e")).unwrap();
        for name in ["d/f", "g", "linked"] {
            fs::write(bed.at(name), name).unwrap();
        }
        let handles = ["d", "d/e", "d/f", "g"].map(|name| handle(bed.at(name)));
        let linked = handle(bed.at("linked"));
        let outside = |path: &std::path::Path| path.ancestors().nth(2).unwrap().join("outside");
        for name in ["d", "g"] {
            for branch in &bed.branches {
                let target = outside(branch).join(name);
                fs::create_dir_all(target.parent().unwrap()).unwrap();
                let _ = fs::rename(branch.join(name), target);
            }
        }
        let place = bed.on_branch("linked");
        let disk = bed.branches.iter().find(|branch| place.starts_with(branch)).unwrap();
        fs::hard_link(&place, outside(disk).join("also")).unwrap();
        bed.restart();
        for handle in &handles {
            assert_eq!(bed.number(handle), Err(Errno::STALE), "{layout:?}");
        }
        assert_eq!(bed.read(&linked).as_deref(), Ok("linked"), "{layout:?}");
        fs::remove_file(bed.at("linked")).unwrap();
        bed.restart();
        assert_eq!(bed.read(&linked), Err(Errno::STALE), "{layout:?}");
        bed.end();
    }
}

/// A copy on another branch is a different file: the old handle never leads to an unrelated one.
#[test]
fn a_file_on_another_branch_is_found_or_stale() {
    let mut bed = Bed::new(Layout { kind: Kind::Ext4, whole: true }, 2, "category.create=ff");
    fs::write(bed.at("f"), "content").unwrap();
    let old = handle(bed.at("f"));
    let (from, to) = (bed.branches[0].join("f"), bed.branches[1].join("f"));
    fs::copy(&from, &to).unwrap();
    fs::remove_file(&from).unwrap();
    bed.restart();
    assert_eq!(bed.read(&old), Err(Errno::STALE));
    // Another file may take the inode number that became free.
    fs::write(bed.branches[1].join("other"), "other").unwrap();
    assert_eq!(bed.read(&old), Err(Errno::STALE));
    assert_eq!(bed.read(&handle(bed.at("f"))).as_deref(), Ok("content"));
    bed.end();
}

/// A handle with any bit flipped is stale.
#[test]
fn forged_handles_are_stale() {
    for layout in layouts() {
        let bed = Bed::new(layout, 2, "");
        fs::write(bed.at("f"), "f").unwrap();
        let real = handle(bed.at("f"));
        bed.forget();
        // The length and type take eight bytes; the pool's id follows.
        for byte in 8..real.len() {
            for bit in 0..8 {
                let mut forged = real.clone();
                forged[byte] ^= 1 << bit;
                assert_eq!(bed.read(&forged), Err(Errno::STALE), "{layout:?}: bit {bit} of byte {byte}");
            }
        }
        assert_eq!(bed.read(&real).as_deref(), Ok("f"), "{layout:?}");
        bed.end();
    }
}
