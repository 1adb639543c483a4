//! `follow-symlinks`.

use super::rig::{pool, set};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::files::text;
use canopy_testkit::{LoopFs, PATIENCE};
use std::fs;
use std::os::unix::fs::symlink;

#[test]
fn every_value_applies_at_runtime() {
    let outside = tempfile::tempdir().unwrap();
    let out = outside.path();
    fs::create_dir(out.join("dir")).unwrap();
    fs::write(out.join("dir/f"), "outside").unwrap();
    let bed = pool("category.create=mfs,cache.entry=60,cache.attr=60", |a, _| {
        symlink(out.join("dir"), a.join("dir")).unwrap();
        symlink(out.join("dir/f"), a.join("file")).unwrap();
    });
    let is_link = |name: &str| fs::symlink_metadata(bed.at(name)).unwrap().is_symlink();
    assert!(is_link("dir") && is_link("file"));
    for (value, dir, file) in [
        ("directory", false, true),
        ("regular", true, false),
        ("all", false, false),
        ("never", true, true),
        ("all", false, false),
    ] {
        set(&bed, "follow-symlinks", value);
        let changed = || (is_link("dir"), is_link("file")) == (dir, file);
        assert!(wait_until(PATIENCE, changed), "{value}");
        assert_eq!(text(bed.at("dir/f")), "outside");
        assert_eq!(text(bed.at("file")), "outside");
    }
    // The links now show as a directory and a file of the pool.
    fs::write(bed.at("dir/new"), "new").unwrap();
    assert_eq!(text(out.join("dir/new")), "new");
    symlink("new", bed.at("dir/link")).unwrap();
    assert!(!is_link("dir/link"));
    fs::write(bed.at("file"), "written").unwrap();
    assert_eq!(text(out.join("dir/f")), "written");
    fs::remove_dir(bed.at("dir")).unwrap();
    fs::remove_file(bed.at("file")).unwrap();
    assert_eq!(text(out.join("dir/f")), "written");
    assert_eq!(fs::read_dir(bed.on(0, "")).unwrap().count(), 0);
    bed.pool.umount();
}

/// `statfs=full` queries the filesystem that a followed symlink leads to.
#[test]
fn statfs_reports_the_filesystem_behind_a_followed_link() {
    let outside = LoopFs::tmpfs(64 << 20);
    fs::create_dir_all(outside.path().join("dir/below")).unwrap();
    let bed = pool("follow-symlinks=all,statfs=full", |a, b| {
        symlink(outside.path().join("dir"), a.join("dir")).unwrap();
        fs::create_dir(b.join("dir")).unwrap();
    });
    let size = |name: &str| {
        let stat = rustix::fs::statvfs(bed.at(name)).unwrap();
        (stat.f_blocks * stat.f_frsize) >> 20
    };
    // The second branch has 32 MiB.
    assert_eq!((size("dir"), size("dir/below")), (96, 64));
    set(&bed, "follow-symlinks", "never");
    assert_eq!(size(""), 64);
    bed.pool.umount();
}

/// Following such a link would make a request wait for another request of the same pool, which can deadlock.
#[test]
fn links_into_the_pool_are_not_followed() {
    let bed = pool("follow-symlinks=all", |a, _| fs::write(a.join("f"), "content").unwrap());
    symlink(bed.pool.path().join("f"), bed.on(0, "absolute")).unwrap();
    symlink(bed.pool.path(), bed.on(0, "root")).unwrap();
    symlink("f", bed.on(0, "relative")).unwrap();
    for (name, link) in [("absolute", true), ("root", true), ("relative", false)] {
        assert_eq!(fs::symlink_metadata(bed.at(name)).unwrap().is_symlink(), link, "{name}");
    }
    for path in ["absolute", "root/f", "relative", "root/root/absolute"] {
        assert_eq!(text(bed.at(path)), "content");
    }
    bed.pool.umount();
}
