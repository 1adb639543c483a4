//! `follow-symlinks`: symlinks that are shown as their targets.

use super::*;
use crate::common::{Made, pool};
use canopy_branch::branch::Mode::{Ro, Rw};
use canopy_pool::RenameKind;
use canopy_pool::SetAttr;
use canopy_pool::config::FollowSymlinks::{self, All, Directory, Never, Regular};
use canopy_pool::config::ReaddirMode;
use canopy_pool::ops;
use canopy_testkit::files::{put, text};
use std::os::unix::fs::{lchown, symlink};

fn follow(mode: FollowSymlinks) -> Config {
    Config { follow_symlinks: mode, ..create_last() }
}

/// Makes a pool with symlinks to each kind of target, inside and outside the branches.
fn linked(config: Config) -> Made {
    let made = pool(&[Rw, Rw], config);
    put(made.home.path().join("out/dir/f"), "outside");
    put(made.on(0, "real/f"), "inside");
    symlink("../out/dir", made.on(0, "dir")).unwrap();
    symlink(made.home.path().join("out/dir/f"), made.on(0, "file")).unwrap();
    symlink("real/f", made.on(0, "near")).unwrap();
    symlink("nowhere", made.on(0, "dangling")).unwrap();
    symlink("loop", made.on(0, "loop")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        made.home.path().join("out/pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    symlink("../out/pipe", made.on(0, "pipe")).unwrap();
    made
}

#[test]
fn each_value_follows_the_kinds_that_it_names() {
    for (mode, followed) in [
        (Never, &[][..]),
        (Directory, &["dir"]),
        (Regular, &["file", "near"]),
        (All, &["dir", "file", "near", "pipe"]),
    ] {
        for readdir in [ReaddirMode::Seq, ReaddirMode::Cor { threads: 2, depth: 0 }] {
            let made = linked(Config { readdir, ..follow(mode) });
            let mut client = made.client();
            let listed = client.entries_from(NodeId::ROOT, 0, 100).unwrap();
            for name in ["dir", "file", "near", "pipe", "dangling", "loop"] {
                let entry = client.walk(name).unwrap();
                assert_eq!(!entry.attr.is_symlink(), followed.contains(&name), "{name} {mode}");
                let kind = listed.iter().find(|item| item.name == name.as_bytes()).unwrap().kind;
                assert_eq!(kind, entry.attr.dirent_type(), "{name} {mode}");
            }
            assert_eq!(client.walk("dir/f").is_ok(), followed.contains(&"dir"));
            client.end().unwrap();
        }
    }
}

#[test]
fn a_followed_symlink_acts_on_its_target() {
    let made = linked(follow(All));
    let mut client = made.client();
    let outside = made.home.path().join("out/dir/f");
    let (link, by_dir) = (client.walk("file").unwrap(), client.walk("dir/f").unwrap());
    assert_eq!(link.node, by_dir.node, "one file");
    assert_eq!(client.walk("near").unwrap().node, client.walk("real/f").unwrap().node);
    let handle = open(&made.pool, link.node, OFlags::RDWR);
    assert_eq!(read(&made.pool, handle), "outside");
    write(&made.pool, handle, "OUT");
    ops::data::open::release(&made.pool, handle).unwrap();
    assert_eq!(text(&outside), "OUTside");
    let set = SetAttr { mode: Some(0o600), size: Some(3), ..SetAttr::default() };
    assert_eq!(
        ops::attrs::setattr::setattr(&made.pool, &common::ROOT, link.node, None, &set).unwrap().size,
        3
    );
    assert_eq!(text(&outside), "OUT");
    let dir = client.walk("dir").unwrap().node;
    assert_eq!(names(&made.pool, dir), ["f"]);
    client.end().unwrap();
}

/// Every create failed with ENOTDIR, because the pool tried to clone the symlink as a directory.
#[test]
fn creating_in_a_followed_directory_creates_in_its_target() {
    for mode in [Directory, All] {
        // The policy would choose the second branch, which lacks the symlink.
        let made = linked(follow(mode));
        let mut client = made.client();
        let dir = client.walk("dir").unwrap().node;
        let flags = (OFlags::WRONLY | OFlags::CREATE).bits();
        let (entry, opened) =
            ops::data::create::create(&made.pool, &USER, dir, b"new", 0o644, flags).unwrap();
        client.count_lookup(entry);
        write(&made.pool, opened.handle, "made");
        ops::data::open::release(&made.pool, opened.handle).unwrap();
        client.count_lookup(ops::names::create::mkdir(&made.pool, &USER, dir, b"sub", 0o755).unwrap());
        let below = client.walk("dir/sub").unwrap().node;
        let link = client
            .count_lookup(ops::names::create::symlink(&made.pool, &USER, below, b"l", b"../new").unwrap());
        assert!(link.attr.is_symlink() && link.brief, "the kernel expects a symlink");
        let target = client.walk("dir/sub/l").unwrap();
        assert_eq!(target.attr.is_regular(), mode == All);
        assert_eq!(text(made.home.path().join("out/dir/new")), "made");
        assert_eq!(names_on(made.home.path().join("out/dir")), ["f", "new", "sub"]);
        assert_eq!(names_on(made.on(1, "")), [""; 0]);
        // A rename from a branch without that directory fails as between filesystems.
        put(made.on(1, "other"), "");
        let moved = ops::names::rename::rename(
            &made.pool,
            &USER,
            NodeId::ROOT,
            b"other",
            dir,
            b"other",
            RenameKind::Replace,
        );
        assert_eq!(errno(moved), Errno::XDEV);
        // A rename within the target succeeds.
        ops::names::rename::rename(&made.pool, &USER, dir, b"new", below, b"moved", RenameKind::Replace)
            .unwrap();
        assert_eq!(text(made.home.path().join("out/dir/sub/moved")), "made");
        client.end().unwrap();
    }
}

#[test]
fn nothing_is_created_through_a_symlink_on_a_read_only_branch() {
    let made = pool(&[Ro, Rw], follow(Directory));
    fs::create_dir(made.home.path().join("out")).unwrap();
    symlink("../out", made.on(0, "dir")).unwrap();
    let mut client = made.client();
    let dir = client.walk("dir").unwrap().node;
    assert_eq!(errno(ops::names::create::mkdir(&made.pool, &USER, dir, b"new", 0o755)), Errno::ROFS);
    assert_eq!(names_on(made.on(1, "")), [""; 0]);
    client.end().unwrap();
}

#[test]
fn rename_unlink_and_rmdir_act_on_the_symlink() {
    let made = linked(follow(All));
    let mut client = made.client();
    let (file, dir) = (client.walk("file").unwrap().node, client.walk("dir").unwrap().node);
    ops::names::rename::rename(
        &made.pool,
        &USER,
        NodeId::ROOT,
        b"file",
        NodeId::ROOT,
        b"renamed",
        RenameKind::Replace,
    )
    .unwrap();
    client.moved("file", "renamed", false);
    assert_eq!(client.walk("renamed").unwrap().node, file);
    ops::names::remove::unlink(&made.pool, NodeId::ROOT, b"renamed").unwrap();
    client.drop_name("renamed");
    assert_eq!(ops::names::lookup::getattr(&made.pool, file, None).unwrap().nlink, 1);
    // Users see a directory that is not empty, but rmdir(2) removes the symlink.
    ops::names::remove::rmdir(&made.pool, NodeId::ROOT, b"dir").unwrap();
    client.drop_name("dir");
    assert!(ops::names::lookup::getattr(&made.pool, dir, None).is_ok());
    assert_eq!(text(made.home.path().join("out/dir/f")), "outside");
    assert_eq!(names_on(made.on(0, "")), ["dangling", "loop", "near", "pipe", "real"]);
    client.end().unwrap();
}

/// The daemon can read files that its users cannot.
#[test]
fn a_users_symlink_to_the_files_of_others_is_not_followed() {
    let made = linked(follow(All));
    let mine = made.home.path().join("out/mine");
    put(&mine, "mine");
    lchown(&mine, Some(1000), None).unwrap();
    symlink(&mine, made.on(0, "to-mine")).unwrap();
    symlink("file", made.on(0, "chain")).unwrap();
    for name in ["file", "dir", "to-mine", "chain"] {
        lchown(made.on(0, name), Some(1000), Some(1000)).unwrap();
    }
    let mut client = made.client();
    for (name, shown_as_link) in [("file", true), ("dir", true), ("chain", true), ("to-mine", false)] {
        assert_eq!(client.walk(name).unwrap().attr.is_symlink(), shown_as_link, "{name}");
    }
    assert_eq!(
        errno(ops::names::lookup::lookup(&made.pool, client.walk("dir").unwrap().node, b"f")),
        Errno::NOTDIR
    );
    client.end().unwrap();
}

#[test]
fn the_option_may_change_at_any_time() {
    let made = linked(follow(All));
    let mut client = made.client();
    let before = client.walk("dir").unwrap();
    client.walk("dir/f").unwrap();
    ops::settings::reconfigure(&made.pool, Config { min_free: 0, ..follow(Never) });
    client.drop_name("dir");
    let after = client.walk("dir").unwrap();
    assert!(before.attr.is_dir() && after.attr.is_symlink());
    assert_eq!(ops::names::lookup::readlink(&made.pool, after.node).unwrap(), b"../out/dir");
    assert!(ops::names::lookup::lookup(&made.pool, before.node, b"f").is_err());
    client.end().unwrap();
}

/// When `symlinkify` begins to show a file as a symlink, the symlink is another node, and both keep track of the names.
#[test]
fn a_file_and_its_symlinkified_form_are_two_nodes() {
    let made = pool(&[Rw, Rw], create_first());
    let counts = ops::settings::counts(&made.pool);
    put(made.on(0, "d/f"), "content");
    fs::hard_link(made.on(0, "d/f"), made.on(0, "d/g")).unwrap();
    fs::set_permissions(made.on(0, "d/f"), std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
    let symlinkified = Config { symlinkify: true, symlinkify_timeout: -1, ..create_first() };
    let dir = ops::names::lookup::lookup(&made.pool, NodeId::ROOT, b"d").unwrap().node;
    let look = |name: &[u8]| ops::names::lookup::lookup(&made.pool, dir, name).unwrap();
    let plain = look(b"f");
    assert!(plain.attr.is_regular());
    ops::settings::reconfigure(&made.pool, symlinkified);
    let link = look(b"f");
    assert!(link.attr.is_symlink() && link.node != plain.node && link.attr.ino == plain.attr.ino);
    assert_eq!(look(b"g").node, link.node, "all names still lead to one node");
    // Both nodes keep their type and answer requests.
    for _ in 0..2 {
        assert!(ops::names::lookup::getattr(&made.pool, plain.node, None).unwrap().is_regular());
        let attr = ops::names::lookup::getattr(&made.pool, link.node, None).unwrap();
        assert_eq!((attr.is_symlink(), attr.mode & 0o777, attr.blocks), (true, 0o777, 0));
        let target = ops::names::lookup::readlink(&made.pool, link.node).unwrap();
        assert_eq!(attr.size, target.len() as u64);
        let handle = open(&made.pool, plain.node, OFlags::RDONLY);
        assert_eq!(read(&made.pool, handle), "content");
        ops::data::open::release(&made.pool, handle).unwrap();
        ops::settings::reconfigure(&made.pool, create_first());
    }
    // One name leads to the file again. The other has not been looked up yet.
    assert_eq!(look(b"f").node, plain.node);
    assert_eq!(
        ops::names::lookup::readlink(&made.pool, link.node).unwrap(),
        made.on(0, "d/g").into_os_string().into_encoded_bytes()
    );
    ops::names::rename::rename(&made.pool, &USER, dir, b"g", dir, b"h", RenameKind::Replace).unwrap();
    assert_eq!(
        ops::names::lookup::readlink(&made.pool, link.node).unwrap(),
        made.on(0, "d/h").into_os_string().into_encoded_bytes()
    );
    ops::names::remove::unlink(&made.pool, dir, b"h").unwrap();
    assert_eq!(ops::names::lookup::getattr(&made.pool, link.node, None).unwrap().nlink, 1);
    let handle = open(&made.pool, plain.node, OFlags::RDONLY);
    ops::names::remove::unlink(&made.pool, dir, b"f").unwrap();
    assert_eq!(ops::names::lookup::getattr(&made.pool, plain.node, None).unwrap().nlink, 0);
    ops::data::open::release(&made.pool, handle).unwrap();
    // Another file of that name is a node of its own.
    put(made.on(0, "d/f"), "other");
    let other = look(b"f");
    assert!(other.node != plain.node && other.node != link.node && other.attr.is_regular());
    for (node, times) in [(plain.node, 2), (link.node, 2), (other.node, 1), (dir, 1)] {
        ops::names::lookup::forget(&made.pool, node, times);
    }
    assert_eq!(ops::settings::counts(&made.pool), counts);
}
