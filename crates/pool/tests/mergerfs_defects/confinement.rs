//! No operation leaves a branch or reaches an unfinished copy.

use super::*;
use crate::common::{ROOT, pool};
use canopy_branch::branch::Mode::Rw;
use canopy_pool::RenameKind;
use canopy_pool::ops;
use canopy_testkit::files::{put, text};
use std::os::unix::fs::symlink;

/// Symlinks in the middle of a path on a branch were followed.
#[test]
fn a_symlink_where_another_branch_has_a_directory_is_never_followed() {
    for create in [create_first(), create_last()] {
        let made = pool(&[Rw, Rw], create.clone());
        let outside = made.home.path().join("outside");
        put(outside.join("secret"), "secret");
        put(made.on(0, "a/f"), "mine");
        symlink(&outside, made.on(1, "a")).unwrap();
        let mut client = made.client();
        let dir = client.walk("a").unwrap().node;
        assert_eq!(names(&made.pool, dir), ["f"]);
        assert_eq!(errno(ops::names::lookup::lookup(&made.pool, dir, b"secret")), Errno::NOENT);
        assert_eq!(errno(ops::names::remove::unlink(&made.pool, dir, b"secret")), Errno::NOENT);
        for result in [
            ops::names::create::mkdir(&made.pool, &ROOT, dir, b"new", 0o755),
            ops::names::create::symlink(&made.pool, &ROOT, dir, b"link", b"target"),
            ops::names::create::mknod(&made.pool, &ROOT, dir, b"fifo", 0o010_644, (0, 0)),
        ] {
            match result {
                Ok(entry) => drop(client.count_lookup(entry)),
                Err(error) => assert_eq!(error.errno(), Errno::NOTDIR),
            }
        }
        let _ = ops::names::rename::rename(
            &made.pool,
            &common::ROOT,
            dir,
            b"f",
            dir,
            b"secret",
            RenameKind::Replace,
        );
        assert_eq!(names_on(&outside), ["secret"]);
        assert_eq!(text(outside.join("secret")), "secret");
        client.end().unwrap();
    }
}

/// The symlink is on the first branch, so it is shown, and the directory's contents are hidden.
#[test]
fn a_symlink_hides_a_directory_on_a_later_branch() {
    let made = pool(&[Rw, Rw], create_first());
    symlink("elsewhere", made.on(0, "a")).unwrap();
    put(made.on(1, "a/f"), "hidden");
    let mut client = made.client();
    let entry = client.walk("a").unwrap();
    assert!(entry.attr.is_symlink());
    assert_eq!(ops::names::lookup::readlink(&made.pool, entry.node).unwrap(), b"elsewhere");
    assert_eq!(errno(ops::readdir::opendir(&made.pool, entry.node)), Errno::NOTDIR);
    client.end().unwrap();
}

#[test]
fn unfinished_copies_cannot_be_named() {
    let made = pool(&[Rw], create_first());
    let name = ".canopy-clone.1.2";
    fs::create_dir_all(made.on(0, &format!("d/{name}/a/b"))).unwrap();
    let mut client = made.client();
    let dir = client.walk("d").unwrap().node;
    assert!(names(&made.pool, dir).is_empty());
    assert_eq!(errno(ops::names::lookup::lookup(&made.pool, dir, name.as_bytes())), Errno::NOENT);
    assert!(ops::names::create::mkdir(&made.pool, &ROOT, dir, name.as_bytes(), 0o755).is_err());
    assert_eq!(
        errno(ops::names::rename::rename(
            &made.pool,
            &common::ROOT,
            dir,
            name.as_bytes(),
            dir,
            b"x",
            RenameKind::Replace
        )),
        Errno::NOENT
    );
    assert!(
        ops::names::rename::rename(
            &made.pool,
            &common::ROOT,
            NodeId::ROOT,
            b"d",
            NodeId::ROOT,
            name.as_bytes(),
            RenameKind::Replace
        )
        .is_err()
    );
    assert_eq!(errno(ops::names::remove::rmdir(&made.pool, dir, name.as_bytes())), Errno::NOENT);
    // Users see an empty directory, so what a crash left in it must not prevent rmdir(2).
    ops::names::remove::rmdir(&made.pool, NodeId::ROOT, b"d").unwrap();
    assert!(names_on(made.on(0, "")).is_empty());
    client.end().unwrap();
}

/// New files and directories belonged to root for a moment.
#[test]
fn new_files_belong_to_the_caller() {
    use std::os::unix::fs::MetadataExt;
    let made = pool(&[Rw, Rw], create_last());
    fs::create_dir(made.on(0, "d")).unwrap();
    let mut client = made.client();
    let dir = client.walk("d").unwrap().node;
    client.count_lookup(ops::names::create::mkdir(&made.pool, &USER, dir, b"dir", 0o777).unwrap());
    client.count_lookup(ops::names::create::symlink(&made.pool, &USER, dir, b"link", b"target").unwrap());
    client
        .count_lookup(ops::names::create::mknod(&made.pool, &USER, dir, b"fifo", 0o010_666, (0, 0)).unwrap());
    let (entry, opened) = ops::data::create::create(&made.pool, &USER, dir, b"file", 0o666, 0).unwrap();
    client.count_lookup(entry);
    ops::data::open::release(&made.pool, opened.handle).unwrap();
    for (name, mode) in [("dir", 0o755), ("link", 0o777), ("fifo", 0o644), ("file", 0o644)] {
        let meta = fs::symlink_metadata(made.on(1, "d").join(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (1000, 1000, mode), "{name}");
    }
    assert_eq!(fs::metadata(made.on(1, "d")).unwrap().uid(), 0, "a cloned directory keeps its owner");
    client.end().unwrap();
}
