//! `link-exdev` and `rename-exdev`: symlinks instead of links and renames that would have to cross branches.

use super::*;
use crate::common::{Client, Made, chmod, pool};
use canopy_branch::branch::Mode::{Ro, Rw};
use canopy_pool::RenameKind::{NoReplace, Replace};
use canopy_pool::config::{LinkExdev, RenameExdev};
use canopy_pool::ops;
use canopy_testkit::files::{put, text};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

const HELD: &str = ".mergerfs_rename_exdev";

fn config(link: LinkExdev, rename: RenameExdev) -> Config {
    Config {
        link_exdev: link,
        rename_exdev: rename,
        mountpoint: "/the/pool".into(),
        ..create_by(Policy::EpFf)
    }
}

fn renames(how: RenameExdev) -> Config {
    config(LinkExdev::Passthrough, how)
}

/// Makes a pool with `x/f` on the first branch and an empty `y` on the second.
fn file_and_dir_on_two_branches(config: Config) -> Made {
    let made = pool(&[Rw, Rw], config);
    put(made.on(0, "x/f"), "content");
    fs::create_dir(made.on(1, "y")).unwrap();
    made
}

fn rename(made: &Made, client: &mut Client, from: &str, to: &str) -> canopy_base::error::Result<()> {
    let (from, to) = (client.parent(from).unwrap(), client.parent(to).unwrap());
    ops::names::rename::rename(&made.pool, &USER, from.0, from.2.as_bytes(), to.0, to.2.as_bytes(), Replace)
}

fn target(path: impl AsRef<Path>) -> String {
    fs::read_link(path).expect("a symlink").into_os_string().into_string().expect("text")
}

/// The target of `rel-symlink` was empty.
#[test]
fn rename_leaves_a_symlink_to_the_files_new_place() {
    let rel = "../.mergerfs_rename_exdev/x/f";
    let abs = "/the/pool/.mergerfs_rename_exdev/x/f";
    for (how, expected) in [(RenameExdev::RelSymlink, rel), (RenameExdev::AbsSymlink, abs)] {
        let made = file_and_dir_on_two_branches(renames(how));
        fs::set_permissions(made.on(0, "x"), PermissionsExt::from_mode(0o2750)).unwrap();
        chown(made.on(0, "x"), Some(7), Some(8)).unwrap();
        let mut client = made.client();
        let file = client.walk("x/f").unwrap();
        let handle = open(&made.pool, file.node, OFlags::RDWR);
        rename(&made, &mut client, "x/f", "y/g").unwrap();
        client.drop_name("x/f");
        assert_eq!(target(made.on(1, "y/g")), expected);
        assert_eq!(fs::symlink_metadata(made.on(1, "y/g")).unwrap().uid(), USER.uid);
        assert_eq!(text(made.on(0, &format!("{HELD}/x/f"))), "content");
        assert_eq!(names_on(made.on(0, "x")), [""; 0]);
        assert_eq!(names_on(made.on(1, "y")), ["g"]);
        let holding = fs::metadata(made.on(0, HELD)).unwrap();
        assert_eq!((holding.mode() & 0o7777, holding.uid()), (0o1777, 0));
        let (dir, copy) =
            (fs::metadata(made.on(0, "x")).unwrap(), fs::metadata(made.on(0, &format!("{HELD}/x"))).unwrap());
        assert_eq!((dir.mode(), dir.uid(), dir.gid()), (copy.mode(), copy.uid(), copy.gid()));
        // The open file is the same, by handle, by node, and by its place.
        assert_eq!(read(&made.pool, handle), "content");
        write(&made.pool, handle, "CONTENT");
        assert_eq!(ops::names::lookup::getattr(&made.pool, file.node, None).unwrap().nlink, 1);
        assert_eq!(client.walk(&format!("{HELD}/x/f")).unwrap().node, file.node);
        assert!(client.walk("y/g").unwrap().attr.is_symlink());
        assert_eq!(
            errno(ops::names::lookup::lookup(&made.pool, client.walk("x").unwrap().node, b"f")),
            Errno::NOENT
        );
        ops::data::open::release(&made.pool, handle).unwrap();
        // A closed file is found by its name.
        assert_eq!(ops::names::lookup::getattr(&made.pool, file.node, None).unwrap().size, 7);
        client.end().unwrap();
    }
}

/// For a file in the root, the holding directory was not made.
#[test]
fn a_file_in_the_root_can_be_set_aside() {
    let made = pool(&[Rw, Rw], renames(RenameExdev::RelSymlink));
    put(made.on(0, "f"), "content");
    fs::create_dir(made.on(1, "y")).unwrap();
    let mut client = made.client();
    rename(&made, &mut client, "f", "y/f").unwrap();
    assert_eq!(target(made.on(1, "y/f")), "../.mergerfs_rename_exdev/f");
    assert_eq!(text(made.on(0, &format!("{HELD}/f"))), "content");
    assert_eq!(names(&made.pool, NodeId::ROOT), [HELD, "y"]);
    client.end().unwrap();
}

/// The second file of a name replaced the first one, to which a symlink led.
#[test]
fn setting_a_file_aside_keeps_one_set_aside_before() {
    let made = file_and_dir_on_two_branches(renames(RenameExdev::RelSymlink));
    let mut client = made.client();
    rename(&made, &mut client, "x/f", "y/one").unwrap();
    put(made.on(0, "x/f"), "another");
    client.drop_name("x/f");
    rename(&made, &mut client, "x/f", "y/two").unwrap();
    for (name, content) in [("one", "content"), ("two", "another")] {
        let target = target(made.on(1, &format!("y/{name}")));
        assert_eq!(text(made.on(0, target.strip_prefix("../").unwrap())), content, "{name}");
    }
    // A file in the holding directory is not set aside again.
    let again = rename(&made, &mut client, &format!("{HELD}/x/f"), "y/three");
    assert_eq!(errno(again), Errno::XDEV);
    client.end().unwrap();
}

#[test]
fn every_copy_is_set_aside_and_every_copy_of_the_target_replaced() {
    let made = pool(&[Rw, Rw, Rw], renames(RenameExdev::RelSymlink));
    put(made.on(0, "x/f"), "one");
    put(made.on(1, "x/f"), "two");
    put(made.on(1, "y/g"), "target");
    put(made.on(2, "y/g"), "target");
    let mut client = made.client();
    let victim = client.walk("y/g").unwrap().node;
    let handle = open(&made.pool, victim, OFlags::RDONLY);
    rename(&made, &mut client, "x/f", "y/g").unwrap();
    client.drop_name("y/g");
    assert_eq!(text(made.on(0, &format!("{HELD}/x/f"))), "one");
    assert_eq!(text(made.on(1, &format!("{HELD}/x/f"))), "two");
    let held = "../.mergerfs_rename_exdev/x/f";
    assert_eq!(target(made.on(1, "y/g")), held);
    assert_eq!(names_on(made.on(2, "y")), [""; 0]);
    assert_eq!(names_on(made.on(1, "y")), ["g"]);
    assert_eq!(read(&made.pool, handle), "target");
    assert_eq!(ops::names::lookup::getattr(&made.pool, victim, None).unwrap().nlink, 0);
    ops::data::open::release(&made.pool, handle).unwrap();
    assert!(client.walk("y/g").unwrap().attr.is_symlink());
    client.end().unwrap();
}

#[test]
fn a_directory_is_set_aside_with_its_contents() {
    let made = pool(&[Rw, Rw], renames(RenameExdev::RelSymlink));
    put(made.on(0, "x/d/f"), "content");
    fs::create_dir(made.on(1, "y")).unwrap();
    let mut client = made.client();
    let (dir, file) = (client.walk("x/d").unwrap().node, client.walk("x/d/f").unwrap().node);
    rename(&made, &mut client, "x/d", "y/e").unwrap();
    client.drop_name("x/d");
    assert_eq!(target(made.on(1, "y/e")), "../.mergerfs_rename_exdev/x/d");
    // The node of the directory stays usable.
    assert_eq!(names(&made.pool, dir), ["f"]);
    assert_eq!(ops::names::lookup::getattr(&made.pool, file, None).unwrap().size, 7);
    let made_below = ops::names::create::mkdir(&made.pool, &USER, dir, b"new", 0o755).unwrap();
    client.count_lookup(made_below);
    assert_eq!(names_on(made.on(0, &format!("{HELD}/x/d"))), ["f", "new"]);
    client.end().unwrap();
}

/// A failure at any step leaves all files, also open ones, where they were.
#[test]
fn a_failed_rename_is_undone() {
    // The copy on the second branch cannot be set aside.
    let blocked = pool(&[Rw, Rw], renames(RenameExdev::RelSymlink));
    put(blocked.on(0, "x/f"), "one");
    put(blocked.on(1, "x/f"), "two");
    fs::create_dir(blocked.on(0, "y")).unwrap();
    put(blocked.on(1, HELD), "in the way");
    // The target has a copy on a read-only branch.
    let read_only = pool(&[Rw, Rw, Ro], renames(RenameExdev::AbsSymlink));
    put(read_only.on(0, "x/f"), "one");
    put(read_only.on(1, "y/keep"), "");
    put(read_only.on(2, "y/f"), "target");
    // The target of the symlink is too long, which shows only after all copies are set aside.
    let deep = "d".repeat(250);
    let long = pool(
        &[Rw, Rw],
        Config { mountpoint: format!("/{}", "m".repeat(4090)).into(), ..renames(RenameExdev::AbsSymlink) },
    );
    put(long.on(0, &format!("{deep}/f")), "one");
    put(long.on(1, "y/keep"), "");
    for (made, from, expected) in [
        (&blocked, "x/f", Errno::XDEV),
        (&read_only, "x/f", Errno::ROFS),
        (&long, &*format!("{deep}/f"), Errno::NAMETOOLONG),
    ] {
        let mut client = made.client();
        let node = client.walk(from).unwrap().node;
        let handle = open(&made.pool, node, OFlags::RDONLY);
        assert_eq!(errno(rename(made, &mut client, from, "y/f")), expected);
        assert_eq!(text(made.on(0, from)), "one");
        assert_eq!(read(&made.pool, handle), "one");
        ops::data::open::release(&made.pool, handle).unwrap();
        assert_eq!(client.walk(from).unwrap().node, node, "{expected:?}");
        for y in (0..made.branches.len()).map(|branch| made.on(branch, "y")).filter(|y| y.exists()) {
            let left = names_on(y);
            assert!(left.is_empty() || left == ["keep"] || left == ["f"], "{expected:?}: {left:?}");
        }
        let kept = made.on(0, &format!("{HELD}/x"));
        assert!(!kept.exists() || names_on(kept).is_empty());
        client.end().unwrap();
    }
    assert_eq!(text(blocked.on(1, "x/f")), "two");
    assert_eq!(text(read_only.on(2, "y/f")), "target");
}

/// Every user may write to the holding directory, so a directory in it may be a trap.
#[test]
fn files_are_not_set_aside_in_another_users_directory() {
    let trap = |made: &Made, at: &str| {
        fs::create_dir_all(made.on(0, HELD)).unwrap();
        chmod(&made.on(0, HELD), 0o1777);
        fs::create_dir(made.on(0, at)).unwrap();
    };
    let made = file_and_dir_on_two_branches(renames(RenameExdev::RelSymlink));
    trap(&made, &format!("{HELD}/x"));
    chown(made.on(0, &format!("{HELD}/x")), Some(1001), None).unwrap();
    let linked = file_and_dir_on_two_branches(renames(RenameExdev::RelSymlink));
    trap(&linked, "elsewhere");
    symlink("../elsewhere", linked.on(0, &format!("{HELD}/x"))).unwrap();
    let taken = file_and_dir_on_two_branches(renames(RenameExdev::RelSymlink));
    fs::create_dir(taken.on(0, HELD)).unwrap();
    chown(taken.on(0, HELD), Some(1001), None).unwrap();
    for made in [made, linked, taken] {
        let mut client = made.client();
        assert_eq!(errno(rename(&made, &mut client, "x/f", "y/f")), Errno::XDEV);
        assert_eq!(text(made.on(0, "x/f")), "content");
        assert_eq!(names_on(made.on(1, "y")), [""; 0]);
        client.end().unwrap();
    }
}

#[test]
fn renames_that_a_symlink_cannot_replace_fail_with_exdev() {
    let made = file_and_dir_on_two_branches(renames(RenameExdev::RelSymlink));
    put(made.on(0, "x/d/f"), "");
    fs::create_dir(made.on(1, "y/e")).unwrap();
    put(made.on(1, "y/g"), "there");
    let mut client = made.client();
    let (x, y) = (client.walk("x").unwrap().node, client.walk("y").unwrap().node);
    // A directory would have to replace an empty one.
    assert_eq!(errno(rename(&made, &mut client, "x/d", "y/e")), Errno::XDEV);
    assert_eq!(
        errno(ops::names::rename::rename(&made.pool, &USER, x, b"f", y, b"g", NoReplace)),
        Errno::EXIST
    );
    assert_eq!(text(made.on(1, "y/g")), "there");
    ops::names::rename::rename(&made.pool, &USER, x, b"f", y, b"h", NoReplace).unwrap();
    assert_eq!(target(made.on(1, "y/h")), "../.mergerfs_rename_exdev/x/f");
    let off = file_and_dir_on_two_branches(renames(RenameExdev::Passthrough));
    let mut other = off.client();
    assert_eq!(errno(rename(&off, &mut other, "x/f", "y/f")), Errno::XDEV);
    client.end().unwrap();
    other.end().unwrap();
}

#[test]
fn link_makes_a_symlink_of_the_chosen_kind() {
    for how in [LinkExdev::RelSymlink, LinkExdev::AbsBaseSymlink, LinkExdev::AbsPoolSymlink] {
        let made = file_and_dir_on_two_branches(config(how, RenameExdev::Passthrough));
        let expected = match how {
            LinkExdev::AbsBaseSymlink => made.on(0, "x/f").to_str().unwrap().to_owned(),
            LinkExdev::AbsPoolSymlink => "/the/pool/x/f".to_owned(),
            _ => "../x/f".to_owned(),
        };
        let mut client = made.client();
        let (file, y) = (client.walk("x/f").unwrap(), client.walk("y").unwrap().node);
        let entry = ops::names::link::link(&made.pool, &USER, file.node, y, b"g").unwrap();
        client.count_lookup(entry);
        // The kernel expects the type of the linked file in the answer, which therefore expires at once.
        assert_eq!((entry.node, entry.attr.is_regular(), entry.brief), (file.node, true, true));
        assert_eq!(target(made.on(1, "y/g")), expected);
        assert_eq!(fs::symlink_metadata(made.on(1, "y/g")).unwrap().uid(), USER.uid);
        assert!(client.walk("y/g").unwrap().attr.is_symlink());
        assert_eq!(ops::names::lookup::getattr(&made.pool, file.node, None).unwrap().nlink, 1);
        assert_eq!(errno(ops::names::link::link(&made.pool, &USER, file.node, y, b"g")), Errno::EXIST);
        // Within a branch it makes a real link.
        let x = client.walk("x").unwrap().node;
        let linked =
            client.count_lookup(ops::names::link::link(&made.pool, &USER, file.node, x, b"l").unwrap());
        assert_eq!((linked.node, linked.attr.nlink, linked.brief), (file.node, 2, false));
        client.end().unwrap();
    }
}

/// A file without a name has no path for a symlink.
#[test]
fn linking_an_unnamed_file_across_branches_fails_with_exdev() {
    let made = file_and_dir_on_two_branches(config(LinkExdev::RelSymlink, RenameExdev::Passthrough));
    let mut client = made.client();
    let (x, y) = (client.walk("x").unwrap().node, client.walk("y").unwrap().node);
    let (entry, opened) =
        ops::data::create::tmpfile(&made.pool, &USER, x, 0o644, OFlags::RDWR.bits()).unwrap();
    client.count_lookup(entry);
    assert_eq!(errno(ops::names::link::link(&made.pool, &USER, entry.node, y, b"g")), Errno::XDEV);
    assert_eq!(names_on(made.on(1, "y")), [""; 0]);
    ops::data::open::release(&made.pool, opened.handle).unwrap();
    client.end().unwrap();
}
