//! Merging, cloning and listing directories.

use super::*;
use crate::common::{ROOT, chmod, over, pool};
use canopy_branch::branch::Mode::Rw;
use canopy_pool::config::ReaddirMode;
use canopy_pool::ops;
use canopy_testkit::files::{put, text};
use rustix::fs::{IFlags, OFlags, XattrFlags};
use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

/// fsync(2) of a directory succeeded without any effect. Directories of /proc fail it with EINVAL, so a branch there shows
/// that the request reaches it.
#[test]
fn fsync_of_a_directory_reaches_every_branch() {
    let home = common::home();
    let plain = home.path().to_owned();
    let proc = Path::new("/proc").to_owned();
    for (branches, expected) in [
        (vec![plain.clone()], Ok(())),
        (vec![plain.clone(), proc.clone()], Err(Errno::INVAL)),
        (vec![proc, plain], Err(Errno::INVAL)),
    ] {
        let pool = over(&branches, &vec![Rw; branches.len()], create_first());
        for data_only in [true, false] {
            assert_eq!(
                ops::readdir::fsyncdir(&pool, NodeId::ROOT, data_only).map_err(|e| e.errno()),
                expected
            );
        }
    }
}

/// Two names with equal hashes were listed as one.
#[test]
fn every_name_is_listed_exactly_once() {
    let made = pool(&[Rw, Rw], create_first());
    let mut expected = BTreeSet::new();
    for index in 0..3000 {
        let name = format!("name-{index}");
        for branch in [0, 1] {
            if index % 3 != branch {
                fs::write(made.on(branch, &name), "").unwrap();
            }
        }
        expected.insert(name);
    }
    let names = names(&made.pool, NodeId::ROOT);
    assert_eq!(names.len(), expected.len());
    assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), expected);
}

fn directory_to_clone(path: &Path) {
    fs::create_dir_all(path).unwrap();
    rustix::fs::setxattr(path, "user.k", b"value", XattrFlags::empty()).unwrap();
    rustix::fs::chown(path, Some(rustix::fs::Uid::from_raw(1000)), Some(rustix::fs::Gid::from_raw(7)))
        .unwrap();
    chmod(path, 0o2775);
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

fn assert_cloned(path: &Path) {
    let meta = fs::metadata(path).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o2775, 1000, 7), "{}", path.display());
    let mut value = [0; 9];
    assert_eq!(rustix::fs::getxattr(path, "user.k", &mut value[..]), Ok(5), "{}", path.display());
}

/// Cloned directories lost set-group-ID, and became immutable if the original was.
#[test]
fn cloned_directories_have_all_attributes_and_take_new_files() {
    let made = pool(&[Rw, Rw], create_last());
    directory_to_clone(&made.on(0, "d/e"));
    directory_to_clone(&made.on(0, "d"));
    // Not every filesystem has the flag. Nothing can be created in an immutable directory itself, on any branch.
    let frozen = fs::File::open(made.on(0, "d")).unwrap();
    let is_frozen = rustix::fs::ioctl_setflags(&frozen, IFlags::IMMUTABLE).is_ok();
    let mut client = made.client();
    let dir = client.walk("d/e").unwrap().node;
    let (entry, opened) = ops::data::create::create(&made.pool, &USER, dir, b"f", 0o666, 0).unwrap();
    client.count_lookup(entry);
    ops::data::open::release(&made.pool, opened.handle).unwrap();
    if is_frozen {
        rustix::fs::ioctl_setflags(&frozen, IFlags::empty()).unwrap();
    }
    assert_cloned(&made.on(1, "d"));
    assert_cloned(&made.on(1, "d/e"));
    assert_eq!(fs::metadata(made.on(1, "d")).unwrap().mtime(), 1000);
    let file = fs::metadata(made.on(1, "d/e/f")).unwrap();
    assert_eq!(
        (file.uid(), file.gid()),
        (1000, 7),
        "the caller owns it, with the group of the set-group-ID directory"
    );
    assert_eq!(file.mode() & 0o7777, 0o644);
    assert_eq!(names_on(made.on(1, "")), ["d"]);
    client.end().unwrap();
}

/// Cloned directories belonged to root and lacked their attributes for a moment.
#[test]
fn cloned_directories_are_never_seen_half_made() {
    let made = pool(&[Rw, Rw], create_last());
    const COUNT: usize = 200;
    for index in 0..COUNT {
        directory_to_clone(&made.on(0, &format!("d{index}")));
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for name in names_on(made.on(1, "")) {
                    if name.starts_with('d') {
                        assert_cloned(&made.on(1, &name));
                    }
                }
            }
        });
        for index in 0..COUNT {
            let dir = ops::names::lookup::lookup(&made.pool, NodeId::ROOT, format!("d{index}").as_bytes())
                .unwrap()
                .node;
            ops::names::create::mkdir(&made.pool, &USER, dir, b"new", 0o755).unwrap();
            // Unfinished directories are not listed.
            assert_eq!(names(&made.pool, NodeId::ROOT).len(), COUNT);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(names_on(made.on(1, "")).len(), COUNT);
}

/// Several threads clone the same directories to the same branch at once.
#[test]
fn concurrent_clones_make_one_directory() {
    let made = pool(&[Rw, Rw], create_last());
    fs::create_dir_all(made.on(0, "a/b/c/d")).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let made = &made;
            scope.spawn(move || {
                let dir = made.client().walk("a/b/c/d").unwrap().node;
                let name = format!("f{thread}");
                ops::data::create::create(&made.pool, &ROOT, dir, name.as_bytes(), 0o644, 0).unwrap();
            });
        }
    });
    assert_eq!(names_on(made.on(1, "a/b/c/d")), ["f0", "f1", "f2", "f3"]);
    for dir in ["", "a", "a/b", "a/b/c"] {
        assert_eq!(names_on(made.on(1, dir)).len(), 1);
    }
}

#[test]
fn a_merged_directory_has_the_newest_times_and_a_correct_link_count() {
    let made = pool(&[Rw, Rw], create_first());
    fs::create_dir_all(made.on(0, "d/one")).unwrap();
    fs::create_dir_all(made.on(0, "d/two")).unwrap();
    fs::create_dir_all(made.on(1, "d")).unwrap();
    for (branch, seconds) in [(0, 1000), (1, 2000)] {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        fs::File::open(made.on(branch, "d")).unwrap().set_modified(time).unwrap();
    }
    let mut client = made.client();
    let attr = client.walk("d").unwrap().attr;
    assert_eq!(attr.mtime.sec, 2000, "an entry may have changed on any branch");
    let counted = fs::metadata(made.on(0, "d")).unwrap().nlink() == 4;
    assert_eq!(attr.nlink, if counted { 4 } else { 1 });
    // With subdirectories on both branches, some may be the same, so they are not counted.
    fs::create_dir(made.on(1, "d/one")).unwrap();
    let node = client.walk("d").unwrap().node;
    assert_eq!(ops::names::lookup::getattr(&made.pool, node, None).unwrap().nlink, 1);
    client.end().unwrap();
}

#[test]
fn every_readdir_mode_gives_the_same_listing() {
    let base = pool(&[Rw, Rw, Rw], create_first());
    for branch in 0..3 {
        for index in 0..500 {
            if index % (branch + 2) == 0 {
                put(base.on(branch, &format!("d/{index}")), "");
            }
        }
    }
    let ways = [
        ReaddirMode::Seq,
        ReaddirMode::Cosr { threads: 0, depth: 0 },
        ReaddirMode::Cosr { threads: 1, depth: 1 },
        ReaddirMode::Cor { threads: 0, depth: 0 },
        ReaddirMode::Cor { threads: 8, depth: 2 },
    ];
    let lists = ways.map(|readdir| {
        let pool = over(&base.branches, &[Rw; 3], Config { readdir, ..create_first() });
        let mut client = common::Client::new(pool.clone());
        let dir = client.walk("d").unwrap().node;
        let list = client.entries_from(dir, 0, usize::MAX).unwrap();
        client.end().unwrap();
        list
    });
    assert!(lists.iter().all(|list| *list == lists[0]));
    let expected = (0..500).filter(|i| i % 2 == 0 || i % 3 == 0 || i % 4 == 0).count();
    assert_eq!(lists[0].len(), expected + 2);
}

/// After telldir(3) and seekdir(3), entries that stay are listed once, whatever else changes.
#[test]
fn positions_stay_valid_while_the_directory_changes() {
    let made = pool(&[Rw, Rw], create_first());
    for index in 0..100 {
        put(made.on(index % 2, &format!("d/{index:03}")), "");
    }
    let mut client = made.client();
    let dir = client.walk("d").unwrap().node;
    let head = client.entries_from(dir, 0, 30).unwrap();
    let position = head.last().unwrap().next;
    let tail = client.entries_from(dir, position, usize::MAX).unwrap();
    for entry in head.iter().filter(|entry| entry.name[0] != b'.') {
        ops::names::remove::unlink(&made.pool, dir, &entry.name).unwrap();
    }
    client.count_lookup(ops::names::create::mkdir(&made.pool, &ROOT, dir, b"new", 0o755).unwrap());
    // A new entry may be listed or not.
    let mut now = client.entries_from(dir, position, usize::MAX).unwrap();
    now.retain(|entry| entry.name != b"new");
    assert!(now.iter().map(|entry| &entry.name).eq(tail.iter().map(|entry| &entry.name)));
    let again = client.entries_from(dir, 0, usize::MAX).unwrap();
    assert_eq!(again.len(), 2 + tail.len() + 1, "a rewound listing is current");
    client.end().unwrap();
}

#[test]
fn fifty_thousand_entries_on_four_branches_are_listed() {
    let made = pool(&[Rw; 4], create_first());
    for index in 0..50_000 {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            made.on(index % 4, &format!("{index}")),
            rustix::fs::FileType::RegularFile,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
    }
    let names = names(&made.pool, NodeId::ROOT);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 50_000);
    assert_eq!(names.len(), 50_000);
}

/// The tree is deeper than any path that a system call accepts.
#[test]
fn trees_deeper_than_path_max_work() {
    let made = pool(&[Rw, Rw], create_first());
    let name = [b'n'; 200];
    let mut at = vec![NodeId::ROOT];
    for _ in 0..60 {
        at.push(ops::names::create::mkdir(&made.pool, &ROOT, at[at.len() - 1], &name, 0o755).unwrap().node);
    }
    let bottom = at[at.len() - 1];
    let (entry, opened) =
        ops::data::create::create(&made.pool, &ROOT, bottom, b"f", 0o644, OFlags::RDWR.bits()).unwrap();
    write(&made.pool, opened.handle, "deep");
    ops::data::open::release(&made.pool, opened.handle).unwrap();
    // The same tree in a pool that creates on the other branch has to clone sixty directories.
    let other = over(&made.branches, &[Rw, Rw], create_last());
    let mut client = common::Client::new(other.clone());
    let path = vec![String::from_utf8(name.to_vec()).unwrap(); 60].join("/");
    let dir = client.walk(&path).unwrap().node;
    client.count_lookup(ops::names::create::mkdir(&other, &ROOT, dir, b"g", 0o755).unwrap());
    assert_eq!(names(&other, dir), ["f", "g"]);
    assert_eq!(names(&made.pool, bottom), ["f", "g"]);
    client.end().unwrap();
    let handle = open(&made.pool, entry.node, OFlags::RDONLY);
    assert_eq!(read(&made.pool, handle), "deep");
    ops::data::open::release(&made.pool, handle).unwrap();
    ops::names::rename::rename(
        &made.pool,
        &common::ROOT,
        bottom,
        b"f",
        NodeId::ROOT,
        b"up",
        canopy_pool::RenameKind::Replace,
    )
    .unwrap();
    ops::names::remove::rmdir(&made.pool, bottom, b"g").unwrap();
    for parent in at.iter().rev().skip(1) {
        ops::names::remove::rmdir(&made.pool, *parent, &name).unwrap();
    }
    assert_eq!(text(made.on(0, "up")), "deep");
    assert_eq!((names_on(made.on(0, "")).len(), names_on(made.on(1, "")).len()), (1, 0));
    ops::names::lookup::forget(&made.pool, entry.node, 1);
    for node in &at[1..] {
        ops::names::lookup::forget(&made.pool, *node, 1);
    }
    assert_eq!(ops::settings::counts(&made.pool), (1, 0));
}

#[test]
fn a_removed_directory_is_empty_and_refuses_new_names() {
    let made = pool(&[Rw, Rw], create_first());
    fs::create_dir(made.on(0, "d")).unwrap();
    let mut client = made.client();
    let dir = client.walk("d").unwrap().node;
    ops::names::remove::rmdir(&made.pool, NodeId::ROOT, b"d").unwrap();
    client.drop_name("d");
    assert!(client.entries_from(dir, 0, 9).unwrap().is_empty());
    assert_eq!(errno(ops::names::create::mkdir(&made.pool, &ROOT, dir, b"x", 0o755)), Errno::NOENT);
    assert_eq!(errno(ops::names::lookup::lookup(&made.pool, dir, b"x")), Errno::NOENT);
    assert_eq!(ops::names::lookup::getattr(&made.pool, dir, None).unwrap().mode & 0o170_000, 0o040_000);
    ops::readdir::fsyncdir(&made.pool, dir, false).unwrap();
    // A new directory of that name is another node.
    let next =
        client.count_lookup(ops::names::create::mkdir(&made.pool, &ROOT, NodeId::ROOT, b"d", 0o755).unwrap());
    assert_ne!(next.node, dir);
    assert_eq!(fs::metadata(made.on(0, "d")).unwrap().permissions().mode() & 0o777, 0o755);
    client.end().unwrap();
}
