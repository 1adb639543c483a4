//! What operations do, and how many requests they take.

use crate::rig::{Rig, fails};
use canopy_fuse::Opcode;
use rustix::io::Errno;
use std::fs;
use std::time::Duration;

#[test]
fn files_are_made_read_changed_and_removed() {
    let rig = Rig::new(2, "category.create=ff");
    let kernel = rig.kernel();
    kernel.mkdir("films").unwrap();
    kernel.write("films/one", b"first").unwrap();
    assert_eq!(kernel.read("films/one").unwrap(), b"first");
    assert_eq!(fs::read(rig.branch(0).join("films/one")).unwrap(), b"first");

    kernel.link("films/one", "films/two").unwrap();
    assert_eq!(kernel.stat("films/one").unwrap().nlink, 2);
    kernel.rename("films/two", "three").unwrap();
    kernel.symlink("films/one", "link").unwrap();
    assert_eq!(kernel.readlink("link").unwrap(), "films/one");
    kernel.chmod("three", 0o600).unwrap();
    assert_eq!(kernel.stat("films/one").unwrap().mode, 0o100_600);
    kernel.truncate("three", 2).unwrap();
    assert_eq!(kernel.read("films/one").unwrap(), b"fi");
    kernel.set_xattr("three", "user.a", b"value").unwrap();
    assert_eq!(fs::metadata(rig.branch(0).join("three")).unwrap().len(), 2);

    let names: Vec<String> =
        kernel.list("").unwrap().into_keys().filter(|name| name != ".mergerfs").collect();
    assert_eq!(names, ["films", "link", "three"]);
    assert!(fails(kernel.rmdir("films"), Errno::NOTEMPTY));
    kernel.unlink("films/one").unwrap();
    kernel.rmdir("films").unwrap();
    assert!(fails(kernel.stat("films"), Errno::NOENT));
    assert!(!rig.branch(0).join("films").exists());
}

#[test]
fn branches_are_one_tree() {
    let rig = Rig::new(3, "");
    for number in 0..3 {
        let dir = rig.branch(number).join("dir");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(format!("file{number}")), format!("on {number}")).unwrap();
        fs::write(dir.join("same"), format!("on {number}")).unwrap();
    }
    let kernel = rig.kernel();
    let names: Vec<String> = kernel.list("dir").unwrap().into_keys().collect();
    assert_eq!(names, ["file0", "file1", "file2", "same"]);
    assert_eq!(kernel.read("dir/file2").unwrap(), b"on 2");
    assert_eq!(kernel.read("dir/same").unwrap(), b"on 0");
    kernel.unlink("dir/same").unwrap();
    assert!((0..3).all(|number| !rig.branch(number).join("dir/same").exists()));
}

#[test]
fn what_is_known_is_not_asked_for() {
    let rig = Rig::new(2, "cache.entry=60,cache.attr=60,cache.negative-entry=60");
    let kernel = rig.kernel();
    kernel.write("file", b"content").unwrap();
    assert!(fails(kernel.stat("missing"), Errno::NOENT));
    kernel.stat("file").unwrap();
    drop(kernel.take_counts());
    for _ in 0..10 {
        kernel.stat("file").unwrap();
        assert!(fails(kernel.stat("missing"), Errno::NOENT));
    }
    assert!(kernel.take_counts().is_empty());
    kernel.let_pass(Duration::from_secs(61));
    kernel.stat("file").unwrap();
    assert!(fails(kernel.stat("missing"), Errno::NOENT));
    let counts = kernel.take_counts();
    assert_eq!(counts.get(Opcode::Lookup.name()), Some(&2), "{counts:?}");
}

#[test]
fn a_listing_tells_attributes_and_the_same_numbers() {
    let rig = Rig::new(2, "cache.entry=60,cache.attr=60");
    for number in 0..200 {
        fs::write(rig.branch(number % 2).join(format!("f{number:03}")), "x").unwrap();
    }
    let kernel = rig.kernel();
    let listed = kernel.list("").unwrap();
    assert_eq!(listed.keys().filter(|name| name.starts_with('f')).count(), 200);
    let lookups =
        |kernel: &canopy_testkit::kernel::Kernel| kernel.take_counts().get("LOOKUP").copied().unwrap_or(0);
    drop(kernel.take_counts());
    for (name, entry) in &listed {
        assert_eq!(kernel.stat(name).unwrap().ino, entry.ino, "{name}");
    }
    // What READDIRPLUS does not bring, the kernel looks up.
    assert!(lookups(kernel) <= 200);
}
