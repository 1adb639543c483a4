//! Files and directories with copies on several branches.

use super::*;
use crate::common::{ROOT, chmod, pool};
use canopy_branch::branch::Mode::{Nc, Ro, Rw};
use canopy_branch::fs::stat::Time;
use canopy_pool::config::Func;
use canopy_pool::ops;
use canopy_pool::{SetAttr, SetTime};
use canopy_testkit::files::{put, text};
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

/// unlink(2) and rmdir(2) succeeded although the copy on the RO branch made the name reappear.
#[test]
fn unlink_and_rmdir_with_a_read_only_copy_remove_nothing() {
    for modes in [[Rw, Ro], [Ro, Rw]] {
        let made = pool(&modes, create_first());
        for branch in [0, 1] {
            put(made.on(branch, "f"), "copy");
            fs::create_dir(made.on(branch, "d")).unwrap();
        }
        assert_eq!(errno(ops::names::remove::unlink(&made.pool, NodeId::ROOT, b"f")), Errno::ROFS);
        assert_eq!(errno(ops::names::remove::rmdir(&made.pool, NodeId::ROOT, b"d")), Errno::ROFS);
        for branch in [0, 1] {
            assert_eq!(names_on(made.on(branch, "")), ["d", "f"]);
        }
    }
}

#[test]
fn rmdir_of_a_directory_with_entries_on_another_branch_removes_nothing() {
    let made = pool(&[Rw, Rw, Rw], create_first());
    fs::create_dir(made.on(0, "d")).unwrap();
    put(made.on(1, "d/f"), "");
    fs::create_dir(made.on(2, "d")).unwrap();
    assert_eq!(errno(ops::names::remove::rmdir(&made.pool, NodeId::ROOT, b"d")), Errno::NOTEMPTY);
    assert!((0..3).all(|branch| made.on(branch, "d").is_dir()));
}

#[test]
fn unlink_removes_every_copy() {
    let made = pool(&[Rw, Nc], create_first());
    put(made.on(0, "f"), "one");
    put(made.on(1, "f"), "two");
    ops::names::remove::unlink(&made.pool, NodeId::ROOT, b"f").unwrap();
    assert_eq!(errno(ops::names::lookup::lookup(&made.pool, NodeId::ROOT, b"f")), Errno::NOENT);
    assert!(names_on(made.on(1, "")).is_empty());
}

/// Changes through a descriptor reached one copy only.
#[test]
fn changes_by_handle_and_by_path_reach_all_copies() {
    for by_handle in [true, false] {
        let made = pool(&[Rw, Rw], create_first());
        put(made.on(0, "f"), "some content");
        put(made.on(1, "f"), "some content");
        let mut client = made.client();
        let node = client.walk("f").unwrap().node;
        let handle = open(&made.pool, node, OFlags::RDWR);
        let handle_given = by_handle.then_some(handle);
        let set = |set| {
            ops::attrs::setattr::setattr(&made.pool, &ROOT, node, handle_given, &set).map(drop).unwrap()
        };
        set(SetAttr { mode: Some(0o640), ..SetAttr::default() });
        set(SetAttr { uid: Some(12), gid: Some(34), ..SetAttr::default() });
        if !by_handle {
            set(SetAttr { size: Some(4), ..SetAttr::default() });
            set(SetAttr { mtime: Some(SetTime::At(Time { sec: 77, nsec: 5 })), ..SetAttr::default() });
        }
        ops::attrs::xattr::setxattr(&made.pool, &ROOT, node, b"user.k", b"v", 0, false).unwrap();
        for branch in [0, 1] {
            let path = made.on(branch, "f");
            let meta = fs::metadata(&path).unwrap();
            assert_eq!(meta.mode() & 0o7777, 0o640, "by_handle {by_handle}, branch {branch}");
            assert_eq!((meta.uid(), meta.gid()), (12, 34));
            if !by_handle {
                assert_eq!(text(&path), "some");
                assert_eq!((meta.mtime(), meta.mtime_nsec()), (77, 5));
            }
            let mut value = [0; 9];
            assert_eq!(rustix::fs::getxattr(&path, "user.k", &mut value[..]), Ok(1));
        }
        ops::data::open::release(&made.pool, handle).unwrap();
        client.end().unwrap();
    }
}

fn by(thread: u32) -> Caller {
    Caller { pid: thread, ..ROOT }
}

fn resize(made: &crate::common::Made, node: NodeId, thread: u32, handle: Option<HandleId>, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    assert_eq!(ops::attrs::setattr::setattr(&made.pool, &by(thread), node, handle, &set).unwrap().size, size);
}

/// Overwriting a file emptied its copy on the other branch. The kernel opens the file first, and then truncates it without
/// a handle.
#[test]
fn overwriting_by_open_empties_only_the_open_copy() {
    for searched in ["ff", "newest"] {
        let mut config = create_first();
        config.policies.set_category(Category::Search, searched.parse().unwrap());
        let made = pool(&[Rw, Rw], config);
        put(made.on(0, "f"), "older copy");
        put(made.on(1, "f"), "newer copy");
        std::fs::File::options().write(true).open(made.on(0, "f")).unwrap().set_modified(UNIX_EPOCH).unwrap();
        let (own, other) = if searched == "newest" { (1, 0) } else { (0, 1) };
        let kept = text(made.on(other, "f"));
        let mut client = made.client();
        let node = client.walk("f").unwrap().node;
        let open = |thread, flags: OFlags| {
            ops::data::open::open(&made.pool, &by(thread), node, flags.bits(), false).unwrap().handle
        };
        // Two threads overwrite the file at once, and one truncates it through a read-only open.
        let handles = [open(7, OFlags::WRONLY), open(8, OFlags::RDWR), open(9, OFlags::RDONLY)];
        for thread in [8, 9, 7] {
            resize(&made, node, thread, None, 0);
        }
        write(&made.pool, handles[0], "new");
        assert_eq!([text(made.on(own, "f")), text(made.on(other, "f"))], ["new", &kept], "{searched}");
        // The same by handle.
        resize(&made, node, 7, Some(handles[0]), 2);
        resize(&made, node, 7, Some(handles[0]), 0);
        assert_eq!([text(made.on(own, "f")), text(made.on(other, "f"))], ["", &kept], "{searched}");
        for handle in handles {
            ops::data::open::release(&made.pool, handle).unwrap();
        }
        client.end().unwrap();
    }
}

#[test]
fn truncating_by_name_truncates_all_copies() {
    for size in [0, 2] {
        let made = pool(&[Rw, Rw], create_first());
        put(made.on(0, "f"), "one");
        put(made.on(1, "f"), "two");
        let mut client = made.client();
        let node = client.walk("f").unwrap().node;
        // Another thread has the file open, or the same thread has overwritten it before.
        let reader =
            ops::data::open::open(&made.pool, &by(7), node, OFlags::RDONLY.bits(), false).unwrap().handle;
        if size == 0 {
            resize(&made, node, 7, None, 0);
            assert_eq!([text(made.on(0, "f")), text(made.on(1, "f"))], ["", "two"]);
            resize(&made, node, 7, None, 0);
        } else {
            resize(&made, node, 8, None, size);
        }
        for (branch, content) in [(0, "one"), (1, "two")] {
            assert_eq!(text(made.on(branch, "f")), content[..size as usize]);
        }
        ops::data::open::release(&made.pool, reader).unwrap();
        client.end().unwrap();
    }
}

#[test]
fn changes_to_a_directory_reach_all_copies() {
    let made = pool(&[Rw, Rw], create_first());
    for branch in [0, 1] {
        fs::create_dir(made.on(branch, "d")).unwrap();
    }
    let mut client = made.client();
    let node = client.walk("d").unwrap().node;
    let set = SetAttr { mode: Some(0o2770), uid: Some(3), ..SetAttr::default() };
    let attr = ops::attrs::setattr::setattr(&made.pool, &ROOT, node, None, &set).unwrap();
    assert_eq!((attr.mode & 0o7777, attr.uid), (0o2770, 3));
    for branch in [0, 1] {
        let meta = fs::metadata(made.on(branch, "d")).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.uid()), (0o2770, 3));
    }
    client.end().unwrap();
}

/// chmod(2) of a file on an RO branch succeeded if the other branch had anything under that name.
#[test]
fn changes_to_a_file_on_a_read_only_branch_fail_with_erofs() {
    let made = pool(&[Ro, Rw], create_first());
    put(made.on(0, "f"), "shown");
    fs::create_dir(made.on(1, "f")).unwrap();
    let mut client = made.client();
    let node = client.walk("f").unwrap().node;
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    assert_eq!(errno(ops::attrs::setattr::setattr(&made.pool, &ROOT, node, None, &set)), Errno::ROFS);
    client.end().unwrap();
}

/// When a later part of a request failed, the first part kept its effect.
#[test]
fn a_request_that_fails_half_way_is_undone() {
    let made = pool(&[Rw, Rw], create_first());
    for branch in [0, 1] {
        put(made.on(branch, "f"), "content");
        chmod(&made.on(branch, "f"), 0o4755);
    }
    let mut client = made.client();
    let node = client.walk("f").unwrap().node;
    let set =
        SetAttr { mode: Some(0o600), uid: Some(5), gid: Some(6), size: Some(1 << 63), ..SetAttr::default() };
    assert_eq!(errno(ops::attrs::setattr::setattr(&made.pool, &ROOT, node, None, &set)), Errno::INVAL);
    for branch in [0, 1] {
        let meta = fs::metadata(made.on(branch, "f")).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o4755, 0, 0));
    }
    client.end().unwrap();
}

/// Requests by name could be answered from another copy than the open one.
#[test]
fn attributes_come_from_the_open_copy() {
    let mut config = create_first();
    config.policies.set_category(Category::Search, Policy::Newest);
    let made = pool(&[Rw, Rw], config);
    for (branch, seconds) in [(0, 2000), (1, 1000)] {
        let path = made.on(branch, "f");
        put(&path, &format!("copy {branch}"));
        rustix::fs::setxattr(
            &path,
            "user.k",
            format!("{branch}").as_bytes(),
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();
        set_mtime(&path, seconds);
    }
    let mut client = made.client();
    let node = client.walk("f").unwrap().node;
    let handle = open(&made.pool, node, OFlags::RDONLY);
    set_mtime(&made.on(1, "f"), 3000);
    let mut value = [0; 9];
    assert_eq!(ops::attrs::xattr::getxattr(&made.pool, node, b"user.k", &mut value), Ok(1));
    assert_eq!(value[0], b'0');
    // A new lookup must lead to the open copy, because a name must not have two contents.
    let again = ops::names::lookup::lookup(&made.pool, NodeId::ROOT, b"f").unwrap();
    client.count_lookup(again);
    assert_eq!(again.node, node);
    let second = open(&made.pool, again.node, OFlags::RDONLY);
    assert_eq!(read(&made.pool, second), "copy 0");
    for handle in [handle, second] {
        ops::data::open::release(&made.pool, handle).unwrap();
    }
    // After the close the policy chooses again.
    let newest = ops::names::lookup::lookup(&made.pool, NodeId::ROOT, b"f").unwrap();
    client.count_lookup(newest);
    let third = open(&made.pool, newest.node, OFlags::RDONLY);
    assert_eq!(read(&made.pool, third), "copy 1");
    ops::data::open::release(&made.pool, third).unwrap();
    client.end().unwrap();
}

fn set_mtime(path: &Path, seconds: u64) {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

/// mknod(2) of a regular file makes one copy, whatever the policy, as a create does.
#[test]
fn mknod_of_a_regular_file_makes_one_copy() {
    let made = pool(&[Rw, Rw, Rw], create_by(Policy::All));
    let mut client = made.client();
    let entry = ops::names::create::mknod(&made.pool, &ROOT, NodeId::ROOT, b"f", 0o100_644, (0, 0)).unwrap();
    client.count_lookup(entry);
    let (entry, opened) =
        ops::data::create::create(&made.pool, &ROOT, NodeId::ROOT, b"g", 0o644, OFlags::EXCL.bits()).unwrap();
    client.count_lookup(entry);
    ops::data::open::release(&made.pool, opened.handle).unwrap();
    let held: usize = (0..3).map(|branch| names_on(made.on(branch, "")).len()).sum();
    assert_eq!(held, 2);
    client.end().unwrap();
}

#[test]
fn branch_modes_are_enforced() {
    let made = pool(&[Ro, Nc, Rw], create_first());
    put(made.on(0, "ro"), "ro");
    put(made.on(1, "nc"), "nc");
    let mut client = made.client();
    let entry = ops::names::create::mkdir(&made.pool, &ROOT, NodeId::ROOT, b"new", 0o755).unwrap();
    client.count_lookup(entry);
    assert_eq!(names_on(made.on(2, "")), ["new"]);
    let (ro, nc) = (client.walk("ro").unwrap().node, client.walk("nc").unwrap().node);
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    assert_eq!(errno(ops::attrs::setattr::setattr(&made.pool, &ROOT, ro, None, &set)), Errno::ROFS);
    assert_eq!(ops::attrs::setattr::setattr(&made.pool, &ROOT, nc, None, &set).unwrap().mode & 0o777, 0o600);
    assert_eq!(
        errno(ops::names::link::link(&made.pool, &common::ROOT, ro, NodeId::ROOT, b"link")),
        Errno::ROFS
    );
    client
        .count_lookup(ops::names::link::link(&made.pool, &common::ROOT, nc, NodeId::ROOT, b"link").unwrap());
    assert_eq!(names_on(made.on(1, "")), ["link", "nc"]);
    assert_eq!(
        errno(ops::attrs::xattr::setxattr(&made.pool, &ROOT, ro, b"user.k", b"", 0, false)),
        Errno::ROFS
    );
    client.end().unwrap();

    let made = pool(&[Ro, Nc], create_first());
    assert_eq!(errno(ops::names::create::mkdir(&made.pool, &ROOT, NodeId::ROOT, b"new", 0o755)), Errno::ROFS);
    assert_eq!(errno(ops::names::remove::unlink(&made.pool, NodeId::ROOT, b"none")), Errno::NOENT);
}

/// The climb to the root never ended.
#[test]
fn climbing_policies_end_at_the_root() {
    for policy in [Policy::MspMfs, Policy::MspLfs, Policy::MspLus, Policy::MspPfrd] {
        let mut config = create_by(policy);
        config.policies.set(Func::Mkdir, policy);
        let made = pool(&[Ro, Nc], config);
        fs::create_dir_all(made.on(0, "a/b")).unwrap();
        let mut client = made.client();
        let dir = client.walk("a/b").unwrap().node;
        assert_eq!(errno(ops::data::create::create(&made.pool, &ROOT, dir, b"f", 0o644, 0)), Errno::ROFS);
        client.end().unwrap();
    }
}
