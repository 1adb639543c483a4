//! Open files, files without a name and files with several.

use super::*;
use crate::common::{ROOT, chmod, pool};
use canopy_base::error::Error;
use canopy_branch::branch::Mode::Rw;
use canopy_branch::fs::stat::Time;
use canopy_pool::ops;
use canopy_pool::{SetAttr, SetTime};
use canopy_testkit::files::{put, text};
use std::os::unix::fs::MetadataExt;

/// Reads returned the buffer with its old contents.
#[test]
fn nullrw_reads_zeros() {
    let made = pool(&[Rw], Config { nullrw: true, ..create_first() });
    put(made.on(0, "f"), "content");
    let mut client = made.client();
    let node = client.walk("f").unwrap().node;
    let handle = open(&made.pool, node, OFlags::RDWR);
    let mut buffer = [0xEE; 5000];
    assert_eq!(ops::data::io::read(&made.pool, handle, 3, &mut buffer), Ok(5000));
    assert!(buffer.iter().all(|byte| *byte == 0));
    write(&made.pool, handle, "nothing");
    assert_eq!(text(made.on(0, "f")), "content");
    ops::data::open::release(&made.pool, handle).unwrap();
    client.end().unwrap();
}

/// Creating a file failed with EIO after an open file of that name had been removed on the branch.
#[test]
fn create_succeeds_after_an_open_file_is_removed_on_its_branch() {
    let made = pool(&[Rw, Rw], create_first());
    put(made.on(0, "f"), "old");
    let mut client = made.client();
    let old = client.walk("f").unwrap().node;
    let old_handle = open(&made.pool, old, OFlags::RDWR);
    fs::remove_file(made.on(0, "f")).unwrap();
    let flags = (OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).bits();
    let (entry, opened) =
        ops::data::create::create(&made.pool, &ROOT, NodeId::ROOT, b"f", 0o644, flags).unwrap();
    client.count_lookup(entry);
    assert_ne!(entry.node, old);
    write(&made.pool, opened.handle, "new");
    assert_eq!(read(&made.pool, old_handle), "old");
    assert_eq!(text(made.on(0, "f")), "new");
    for handle in [old_handle, opened.handle] {
        ops::data::open::release(&made.pool, handle).unwrap();
    }
    client.end().unwrap();
}

/// A write by an unprivileged user kept the set-id bits.
#[test]
fn a_write_by_another_user_clears_set_id_bits() {
    for (mode, left) in [(0o6755, 0o755), (0o4755, 0o755), (0o2745, 0o745), (0o755, 0o755)] {
        let made = pool(&[Rw], create_first());
        put(made.on(0, "f"), "content");
        chmod(&made.on(0, "f"), mode);
        let mut client = made.client();
        let node = client.walk("f").unwrap().node;
        let handle = open(&made.pool, node, OFlags::RDWR);
        let kind = WriteKind { kill_suidgid: Some(USER), ..WriteKind::default() };
        ops::data::io::write(&made.pool, handle, 0, b"x", kind).unwrap();
        assert_eq!(fs::metadata(made.on(0, "f")).unwrap().mode() & 0o7777, left, "{mode:o}");
        chmod(&made.on(0, "f"), mode);
        let set = SetAttr { size: Some(1), kill_suidgid: true, ..SetAttr::default() };
        let attr = ops::attrs::setattr::setattr(&made.pool, &USER, node, None, &set).unwrap();
        assert_eq!(attr.mode & 0o7777, left, "{mode:o}");
        ops::data::open::release(&made.pool, handle).unwrap();
        client.end().unwrap();
    }
}

#[test]
fn hard_links_in_different_directories_are_one_node() {
    let made = pool(&[Rw, Rw], create_first());
    put(made.on(0, "a/f"), "content");
    fs::create_dir(made.on(1, "b")).unwrap();
    chmod(&made.on(1, "b"), 0o2775);
    let mut client = made.client();
    let file = client.walk("a/f").unwrap().node;
    let b = client.walk("b").unwrap().node;
    let linked =
        client.count_lookup(ops::names::link::link(&made.pool, &common::ROOT, file, b, b"g").unwrap());
    assert_eq!((linked.node, linked.attr.nlink), (file, 2));
    assert_eq!(ops::names::lookup::getattr(&made.pool, file, None).unwrap(), linked.attr);
    // The link is on the branch of the file, in a directory that was cloned for it.
    assert_eq!(text(made.on(0, "b/g")), "content");
    assert_eq!(fs::metadata(made.on(0, "b")).unwrap().mode() & 0o7777, 0o2775);
    // Looked up by the other name first, it is still one node.
    client.end().unwrap();
    let (one, two) = (client.walk("b/g").unwrap(), client.walk("a/f").unwrap());
    assert_eq!((one.node, one.attr.ino), (two.node, two.attr.ino));
    // Removing one name keeps the file.
    assert_eq!(client.walk("b").unwrap().node, b);
    ops::names::remove::unlink(&made.pool, b, b"g").unwrap();
    client.drop_name("b/g");
    let left = client.walk("a/f").unwrap();
    assert_eq!((left.node, left.attr.nlink), (one.node, 1));
    client.end().unwrap();
}

#[test]
fn an_unlinked_file_stays_usable_while_open() {
    let made = pool(&[Rw, Rw], create_first());
    put(made.on(1, "f"), "content");
    let mut client = made.client();
    let node = client.walk("f").unwrap().node;
    let handle = open(&made.pool, node, OFlags::RDWR);
    ops::names::remove::unlink(&made.pool, NodeId::ROOT, b"f").unwrap();
    client.drop_name("f");
    let pool = &made.pool;
    for given in [Some(handle), None] {
        let set = |set| ops::attrs::setattr::setattr(pool, &ROOT, node, given, &set).unwrap();
        assert_eq!(ops::names::lookup::getattr(pool, node, given).unwrap().nlink, 0);
        assert_eq!(set(SetAttr { size: Some(3), ..SetAttr::default() }).size, 3);
        assert_eq!(set(SetAttr { mode: Some(0o600), ..SetAttr::default() }).mode & 0o7777, 0o600);
        assert_eq!(set(SetAttr { uid: Some(9), ..SetAttr::default() }).uid, 9);
        let time = Time { sec: 1234, nsec: 5 };
        assert_eq!(set(SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() }).mtime, time);
    }
    assert_eq!(read(pool, handle), "con");
    ops::data::io::fallocate(pool, handle, 0, 0, 10).unwrap();
    ops::attrs::xattr::setxattr(pool, &ROOT, node, b"user.k", b"v", 0, false).unwrap();
    assert_eq!(ops::attrs::xattr::getxattr(pool, node, b"user.k", &mut []), Ok(1));
    // The kernel opens it again, through /proc/self/fd.
    let second = open(pool, node, OFlags::RDONLY);
    assert_eq!(ops::names::lookup::getattr(pool, node, Some(second)).unwrap().size, 10);
    // As on any filesystem, a file without its last name cannot be linked.
    assert_eq!(
        errno(ops::names::link::link(pool, &common::ROOT, node, NodeId::ROOT, b"again")),
        Errno::NOENT
    );
    for handle in [handle, second] {
        ops::data::open::release(pool, handle).unwrap();
    }
    assert_eq!(ops::names::lookup::getattr(pool, node, None).unwrap().size, 10);
    client.end().unwrap();
}

#[test]
fn a_tmpfile_can_be_linked() {
    let made = pool(&[Rw, Rw], create_last());
    fs::create_dir(made.on(0, "d")).unwrap();
    let mut client = made.client();
    let dir = client.walk("d").unwrap().node;
    let flags = (OFlags::TMPFILE | OFlags::RDWR).bits();
    let (entry, opened) = ops::data::create::tmpfile(&made.pool, &USER, dir, 0o666, flags).unwrap();
    client.count_lookup(entry);
    assert_eq!((entry.attr.mode & 0o777, entry.attr.uid, entry.attr.nlink), (0o644, 1000, 0));
    write(&made.pool, opened.handle, "content");
    assert!(names(&made.pool, dir).is_empty());
    let named = client
        .count_lookup(ops::names::link::link(&made.pool, &common::ROOT, entry.node, dir, b"f").unwrap());
    assert_eq!((named.node, named.attr.nlink), (entry.node, 1));
    assert_eq!(text(made.on(1, "d/f")), "content");
    ops::data::open::release(&made.pool, opened.handle).unwrap();
    assert_eq!(client.walk("d/f").unwrap().node, entry.node);
    client.end().unwrap();
}

#[test]
fn names_have_at_most_255_bytes() {
    let made = pool(&[Rw, Rw], create_last());
    let (longest, longer) = ("n".repeat(255), "n".repeat(256));
    let mut client = made.client();
    let make =
        |name: &str| ops::names::create::mkdir(&made.pool, &ROOT, NodeId::ROOT, name.as_bytes(), 0o755);
    client.count_lookup(make(&longest).unwrap());
    assert_eq!(errno(make(&longer)), Errno::NAMETOOLONG);
    assert_eq!(
        errno(ops::names::lookup::lookup(&made.pool, NodeId::ROOT, longer.as_bytes())),
        Errno::NAMETOOLONG
    );
    assert_eq!(names(&made.pool, NodeId::ROOT), [longest.as_str()]);
    let dir = client.walk(&longest).unwrap().node;
    let create = |name: &str| ops::data::create::create(&made.pool, &ROOT, dir, name.as_bytes(), 0o644, 0);
    assert_eq!(errno(create(&longer)), Errno::NAMETOOLONG);
    let (entry, opened) = create(&longest).unwrap();
    client.count_lookup(entry);
    ops::data::open::release(&made.pool, opened.handle).unwrap();
    ops::names::remove::unlink(&made.pool, dir, longest.as_bytes()).unwrap();
    ops::names::remove::rmdir(&made.pool, NodeId::ROOT, longest.as_bytes()).unwrap();
    client.end().unwrap();
}

/// Broken clients and fuzzers send FORGET with more than the lookup count.
#[test]
fn forgetting_more_than_was_looked_up_is_harmless() {
    let made = pool(&[Rw], create_first());
    put(made.on(0, "f"), "");
    let entry = ops::names::lookup::lookup(&made.pool, NodeId::ROOT, b"f").unwrap();
    ops::names::lookup::forget(&made.pool, entry.node, 1000);
    ops::names::lookup::forget(&made.pool, entry.node, 1);
    ops::names::lookup::forget(&made.pool, NodeId::ROOT, u64::MAX);
    ops::names::lookup::forget(&made.pool, NodeId(12345), 1);
    assert_eq!(ops::names::lookup::getattr(&made.pool, entry.node, None), Err(Error::Stale));
    assert_eq!(ops::settings::counts(&made.pool), (1, 0));
}

/// Without CAP_DAC_OVERRIDE, a thread gets EACCES from the branch as from an NFS server.
#[test]
fn nfsopenhack_opens_read_only_files_for_writing() {
    use canopy_pool::config::NfsOpenHack::{All, Git, Off};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    for (hack, git, other) in [(Off, false, false), (Git, true, false), (All, true, true)] {
        let made = pool(&[Rw], Config { nfs_open_hack: hack, ..create_first() });
        for (name, mode) in [("d/.git/f", 0o444), ("f", 0o440), ("g", 0o422)] {
            put(made.on(0, name), "old");
            chmod(&made.on(0, name), mode);
        }
        let mut client = made.client();
        let nodes = ["d/.git/f", "f", "g"].map(|name| client.walk(name).unwrap().node);
        let opened = std::thread::scope(|scope| {
            let unprivileged = scope.spawn(|| {
                let mut sets = capabilities(None).unwrap();
                sets.effective -= CapabilitySet::DAC_OVERRIDE;
                set_capabilities(None, sets).unwrap();
                let open = |node, flags: OFlags| {
                    let opened = ops::data::open::open(&made.pool, &common::ROOT, node, flags.bits(), false);
                    opened
                        .map(|opened| ops::data::open::release(&made.pool, opened.handle).unwrap())
                        .map_err(|e| e.errno())
                };
                assert!(nodes.iter().all(|&node| open(node, OFlags::RDONLY).is_ok()));
                nodes.map(|node| open(node, OFlags::RDWR))
            });
            unprivileged.join().unwrap()
        });
        let expected = |allowed| if allowed { Ok(()) } else { Err(Errno::ACCESS) };
        // Some users may write the last file, so its mode is not the reason for the error.
        assert_eq!(opened, [expected(git), expected(other), expected(false)], "{hack}");
        for (name, mode) in [("d/.git/f", 0o444), ("f", 0o440), ("g", 0o422)] {
            assert_eq!(fs::metadata(made.on(0, name)).unwrap().mode() & 0o7777, mode, "{hack} {name}");
        }
        client.end().unwrap();
    }
}

#[test]
fn forgotten_nodes_are_found_again_by_their_id() {
    let made = pool(&[Rw], create_first());
    put(made.on(0, "d/f"), "content");
    put(made.on(0, "d/g"), "");
    let look = |parent, name: &[u8]| {
        common::patiently(|| ops::names::lookup::lookup(&made.pool, parent, name)).unwrap()
    };
    let dir = look(NodeId::ROOT, b"d");
    let (f, g) = (look(dir.node, b"f"), look(dir.node, b"g"));
    let forget_all =
        || [f, g, dir].iter().for_each(|entry| ops::names::lookup::forget(&made.pool, entry.node, 1));
    forget_all();
    assert_eq!(ops::settings::counts(&made.pool), (1, 0));
    // An NFS server finds a node by its file handle, whether it has moved or not.
    let dir_again = look(dir.node, b".");
    ops::names::rename::rename(
        &made.pool,
        &ROOT,
        dir.node,
        b"f",
        NodeId::ROOT,
        b"moved",
        canopy_pool::RenameKind::Replace,
    )
    .unwrap();
    ops::names::lookup::forget(&made.pool, dir_again.node, 1);
    assert_eq!(ops::settings::counts(&made.pool), (1, 0));
    for (entry, parent, name) in
        [(f, NodeId::ROOT, &b"moved"[..]), (g, dir.node, b"g"), (dir, NodeId::ROOT, b"d")]
    {
        let found = look(entry.node, b".");
        assert_eq!((found.node, found.generation), (entry.node, entry.generation));
        let parent_node = if parent == NodeId::ROOT { None } else { Some(look(parent, b".").node) };
        assert_eq!(look(parent, name).node, entry.node);
        ops::names::lookup::forget(&made.pool, entry.node, 2);
        parent_node.into_iter().for_each(|node| ops::names::lookup::forget(&made.pool, node, 1));
    }
    assert_eq!(ops::settings::counts(&made.pool), (1, 0));
    // A replaced or removed file is stale, as NFS expects.
    let dir = look(NodeId::ROOT, b"d");
    ops::names::rename::rename(
        &made.pool,
        &ROOT,
        NodeId::ROOT,
        b"moved",
        dir.node,
        b"g",
        canopy_pool::RenameKind::Replace,
    )
    .unwrap();
    assert_eq!(
        errno(common::patiently(|| ops::names::lookup::lookup(&made.pool, g.node, b"."))),
        Errno::STALE
    );
    assert_eq!(look(dir.node, b"g").node, f.node);
    ops::names::remove::unlink(&made.pool, dir.node, b"g").unwrap();
    // The kernel has not forgotten it yet.
    assert_eq!(ops::names::lookup::getattr(&made.pool, f.node, None).unwrap().nlink, 0);
    ops::names::lookup::forget(&made.pool, f.node, 1);
    assert_eq!(
        errno(common::patiently(|| ops::names::lookup::lookup(&made.pool, f.node, b"."))),
        Errno::STALE
    );
    ops::names::lookup::forget(&made.pool, dir.node, 1);
    ops::names::remove::rmdir(&made.pool, NodeId::ROOT, b"d").unwrap();
    assert_eq!(ops::settings::counts(&made.pool), (1, 0));
}
