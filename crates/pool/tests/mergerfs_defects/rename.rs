//! Renames of files on several branches.

use super::*;
use crate::common::pool;
use canopy_branch::branch::Mode::{Nc, Ro, Rw};
use canopy_pool::RenameKind;
use canopy_pool::ops;
use canopy_testkit::files::{put, text};

fn rename(pool: &Pool, from: &str, to: &str) -> canopy_base::error::Result<()> {
    ops::names::rename::rename(
        pool,
        &common::ROOT,
        NodeId::ROOT,
        from.as_bytes(),
        NodeId::ROOT,
        to.as_bytes(),
        RenameKind::Replace,
    )
}

/// The cleanup after a rename removed the replaced target even from RO branches.
#[test]
fn rename_never_deletes_on_read_only_branches() {
    let made = pool(&[Rw, Ro], create_first());
    put(made.on(0, "f"), "new");
    put(made.on(0, "g"), "old");
    put(made.on(1, "g"), "old, read-only");
    assert_eq!(errno(rename(&made.pool, "f", "g")), Errno::ROFS);
    assert_eq!(text(made.on(0, "f")), "new");
    assert_eq!(text(made.on(0, "g")), "old");
    assert_eq!(text(made.on(1, "g")), "old, read-only");
}

/// A copy on an RO branch would stay visible under the old name.
#[test]
fn renaming_a_file_with_a_read_only_copy_changes_nothing() {
    for modes in [[Rw, Ro], [Ro, Rw]] {
        let made = pool(&modes, create_first());
        put(made.on(0, "f"), "one");
        put(made.on(1, "f"), "two");
        assert_eq!(errno(rename(&made.pool, "f", "g")), Errno::ROFS);
        for branch in [0, 1] {
            assert_eq!(names_on(made.on(branch, "")), ["f"]);
        }
    }
}

/// The cleanup also removed the source from branches on which its rename had failed.
#[test]
fn a_rename_that_fails_on_one_branch_changes_no_branch() {
    let made = pool(&[Rw, Rw], create_first());
    put(made.on(0, "f"), "one");
    put(made.on(1, "f"), "two");
    put(made.on(0, "d/g"), "target");
    put(made.on(1, "d"), "a file where the other branch has a directory");
    let mut client = made.client();
    let dir = client.walk("d").unwrap().node;
    let result = ops::names::rename::rename(
        &made.pool,
        &common::ROOT,
        NodeId::ROOT,
        b"f",
        dir,
        b"g",
        RenameKind::Replace,
    );
    assert_eq!(errno(result), Errno::NOTDIR);
    assert_eq!(text(made.on(0, "f")), "one");
    assert_eq!(text(made.on(1, "f")), "two");
    assert_eq!(text(made.on(0, "d/g")), "target");
    assert_eq!(names_on(made.on(0, "d")), ["g"]);
    client.end().unwrap();
}

#[test]
fn rename_moves_every_copy_and_removes_the_target_everywhere() {
    let made = pool(&[Rw, Rw, Nc], create_first());
    put(made.on(0, "f"), "one");
    put(made.on(2, "f"), "three");
    put(made.on(1, "g"), "target");
    put(made.on(2, "g"), "target");
    rename(&made.pool, "f", "g").unwrap();
    assert_eq!(names_on(made.on(0, "")), ["g"]);
    assert_eq!(names_on(made.on(1, "")), [""; 0]);
    assert_eq!(text(made.on(2, "g")), "three");
}

/// Path-preserving renames reported every error as EXDEV.
#[test]
fn only_a_missing_directory_makes_a_path_preserving_rename_fail_with_exdev() {
    let made = pool(&[Rw, Rw], create_by(Policy::EpFf));
    put(made.on(0, "x/f"), "");
    put(made.on(0, "x/d/full"), "");
    put(made.on(0, "x/e/full"), "");
    fs::create_dir(made.on(1, "y")).unwrap();
    let mut client = made.client();
    let (x, y) = (client.walk("x").unwrap().node, client.walk("y").unwrap().node);
    let rename = |from: &str, dir, to: &str| {
        errno(ops::names::rename::rename(
            &made.pool,
            &common::ROOT,
            x,
            from.as_bytes(),
            dir,
            to.as_bytes(),
            RenameKind::Replace,
        ))
    };
    assert_eq!(rename("f", y, "f"), Errno::XDEV);
    assert_eq!(rename("d", x, "e"), Errno::NOTEMPTY);
    assert_eq!(rename("f", x, "d"), Errno::ISDIR);
    assert_eq!(rename("d", x, "f"), Errno::NOTDIR);
    assert_eq!(rename("none", x, "g"), Errno::NOENT);
    let long = "n".repeat(256);
    assert_eq!(rename("f", x, &long), Errno::NAMETOOLONG);
    let file = client.walk("x/f").unwrap().node;
    assert_eq!(errno(ops::names::link::link(&made.pool, &common::ROOT, file, y, b"f")), Errno::XDEV);
    assert_eq!(names_on(made.on(0, "x")), ["d", "e", "f"]);
    client.end().unwrap();
}

#[test]
fn a_replaced_file_stays_usable_while_open() {
    let made = pool(&[Rw, Rw], create_first());
    put(made.on(0, "f"), "new");
    put(made.on(1, "g"), "old");
    let mut client = made.client();
    let old = client.walk("g").unwrap().node;
    let handle = open(&made.pool, old, OFlags::RDWR);
    rename(&made.pool, "f", "g").unwrap();
    client.drop_name("g");
    assert_eq!(read(&made.pool, handle), "old");
    write(&made.pool, handle, "OLD");
    assert_eq!(ops::names::lookup::getattr(&made.pool, old, Some(handle)).unwrap().nlink, 0);
    assert_eq!(ops::names::lookup::getattr(&made.pool, old, None).unwrap().nlink, 0);
    let new = client.walk("g").unwrap().node;
    assert_ne!(new, old);
    assert_eq!(text(made.on(0, "g")), "new");
    ops::data::open::release(&made.pool, handle).unwrap();
    // Without a handle the kernel may still ask for attributes, for an O_PATH descriptor.
    assert_eq!(ops::names::lookup::getattr(&made.pool, old, None).unwrap().size, 3);
    client.end().unwrap();
}

/// The inode number is a hash of the path, so the next directory at that path could get the same number.
#[test]
fn a_renamed_directory_keeps_its_inode_numbers_for_itself() {
    let made = pool(&[Rw], create_first());
    fs::create_dir_all(made.on(0, "a/sub")).unwrap();
    let mut client = made.client();
    let before = (client.walk("a").unwrap(), client.walk("a/sub").unwrap());
    rename(&made.pool, "a", "b").unwrap();
    client.moved("a", "b", false);
    fs::create_dir_all(made.on(0, "a/sub")).unwrap();
    let after = (client.walk("b").unwrap(), client.walk("b/sub").unwrap());
    assert_eq!((before.0.node, before.0.attr.ino), (after.0.node, after.0.attr.ino));
    assert_eq!((before.1.node, before.1.attr.ino), (after.1.node, after.1.attr.ino));
    let listed = |client: &mut common::Client| {
        let entries = client.entries(NodeId::ROOT, None).unwrap();
        entries.into_iter().find(|entry| entry.name == b"a").unwrap().ino
    };
    // The listing comes before the lookup.
    let number = listed(&mut client);
    let (new, new_sub) = (client.walk("a").unwrap(), client.walk("a/sub").unwrap());
    assert_eq!(new.attr.ino, number);
    assert_ne!(new.attr.ino, after.0.attr.ino);
    assert_ne!(new_sub.attr.ino, after.1.attr.ino);
    // The number stays the same when the directory is forgotten and found again.
    ops::names::lookup::forget(&made.pool, new_sub.node, 1);
    client.drop_name("a/sub");
    let again = ops::names::lookup::lookup(&made.pool, new.node, b"sub").unwrap();
    assert_eq!(again.attr.ino, new_sub.attr.ino);
}

#[test]
fn exchange_renames_each_file_on_its_own_branch() {
    let made = pool(&[Rw, Rw], create_first());
    put(made.on(0, "x/f"), "first");
    put(made.on(1, "y/g"), "second");
    let mut client = made.client();
    let (x, y) = (client.walk("x").unwrap().node, client.walk("y").unwrap().node);
    let (f, g) = (client.walk("x/f").unwrap().node, client.walk("y/g").unwrap().node);
    ops::names::rename::rename(&made.pool, &common::ROOT, x, b"f", y, b"g", RenameKind::Exchange).unwrap();
    client.moved("x/f", "y/g", true);
    assert_eq!(text(made.on(0, "y/g")), "first");
    assert_eq!(text(made.on(1, "x/f")), "second");
    assert_eq!((client.walk("y/g").unwrap().node, client.walk("x/f").unwrap().node), (f, g));
    client.end().unwrap();
}
