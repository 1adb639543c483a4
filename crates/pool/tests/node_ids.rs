//! Node ids of files that are created and removed within one tick of the clock. Needs root.

#![forbid(unsafe_code)]

mod common;

use canopy_base::ids::NodeId;
use canopy_base::inode_number::InodeCalc;
use canopy_branch::branch::Mode::Rw;
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::{Entry, Pool, RenameKind};
use canopy_testkit::LoopFs;
use common::{ROOT, over};
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

fn make_file(pool: &Pool, name: &str) -> Entry {
    let flags = (OFlags::CREATE | OFlags::RDWR).bits();
    let (entry, opened) =
        ops::data::create::create(pool, &ROOT, NodeId::ROOT, name.as_bytes(), 0o644, flags).unwrap();
    ops::data::open::release(pool, opened.handle).unwrap();
    entry
}

fn make_dir(pool: &Pool, name: &str) -> Entry {
    ops::names::create::mkdir(pool, &ROOT, NodeId::ROOT, name.as_bytes(), 0o755).unwrap()
}

/// ext4 reuses the inode number of a removed file for the next one. Before Linux 6.13 nearly all of these files have equal
/// birth times, since then few.
#[test]
fn files_that_reuse_an_inode_number_within_a_tick_have_different_ids() {
    let disk = LoopFs::ext4(64 << 20);
    let branches = [disk.path().to_owned()];
    let pool: Arc<Pool> = over(&branches, &[Rw], Config::default());
    let mut seen: HashMap<(NodeId, u32), String> = HashMap::new();
    for round in 0..500 {
        let name = format!("n{round}");
        let is_dir = round % 2 == 0;
        let entry = if is_dir { make_dir(&pool, &name) } else { make_file(&pool, &name) };
        let before = seen.insert((entry.node, entry.generation), name.clone());
        assert_eq!(before, None, "{name} has the same id");
        match round % 4 {
            0 => ops::names::remove::rmdir(&pool, NodeId::ROOT, name.as_bytes()).unwrap(),
            1 => ops::names::remove::unlink(&pool, NodeId::ROOT, name.as_bytes()).unwrap(),
            // Replaced by a new file or directory.
            kind => {
                let other = if is_dir { make_dir(&pool, "other") } else { make_file(&pool, "other") };
                let before =
                    seen.insert((other.node, other.generation), format!("{kind} in place of {name}"));
                assert_eq!(before, None, "the replacement of {name} has the same id");
                let how = canopy_pool::RenameKind::Replace;
                ops::names::rename::rename(
                    &pool,
                    &ROOT,
                    NodeId::ROOT,
                    b"other",
                    NodeId::ROOT,
                    name.as_bytes(),
                    how,
                )
                .unwrap();
                ops::names::lookup::forget(&pool, other.node, 1);
                let gone = if is_dir { ops::names::remove::rmdir } else { ops::names::remove::unlink };
                gone(&pool, NodeId::ROOT, name.as_bytes()).unwrap();
            }
        }
        ops::names::lookup::forget(&pool, entry.node, 1);
    }
    drop(pool);
}

/// Copies of a directory on other branches do not change its id, even if their birth times are equal.
#[test]
fn copies_made_within_a_tick_do_not_change_the_id_of_a_directory() {
    let disks = [0; 4].map(|_| LoopFs::ext4(64 << 20));
    let branches = disks.each_ref().map(|disk| disk.path().to_owned());
    let pool: Arc<Pool> = over(&branches, &[Rw; 4], Config::default());
    let mut ties = 0;
    for round in 0..40 {
        let name = format!("d{round}");
        let dir = make_dir(&pool, &name);
        // The policy chooses branches at random.
        for file in 0..8 {
            let flags = (OFlags::CREATE | OFlags::RDWR).bits();
            let name = format!("f{file}");
            let (entry, opened) =
                ops::data::create::create(&pool, &ROOT, dir.node, name.as_bytes(), 0o644, flags).unwrap();
            ops::data::open::release(&pool, opened.handle).unwrap();
            ops::names::lookup::forget(&pool, entry.node, 1);
        }
        let births = branches.iter().filter_map(|branch| std::fs::metadata(branch.join(&name)).ok());
        let mut births: Vec<_> = births.map(|found| found.created().unwrap()).collect();
        let copies = births.len();
        births.sort();
        births.dedup();
        ties += i32::from(births.len() < copies);
        ops::names::lookup::forget(&pool, dir.node, 1);
        let again = ops::names::lookup::lookup(&pool, NodeId::ROOT, name.as_bytes()).unwrap();
        assert_eq!((again.node, again.generation), (dir.node, dir.generation), "{name}");
        ops::names::lookup::forget(&pool, dir.node, 1);
    }
    assert!(ties > 0, "no copies had equal birth times, so nothing was tested");
    drop(pool);
}

/// Every way to list a directory shows the number of a lookup, known or not.
fn number(pool: &Pool, name: &str) -> u64 {
    let listed = |plus: bool| {
        let mut found = None;
        let mut take = |entry: canopy_pool::DirEntry<'_>| {
            if entry.name == name.as_bytes() {
                found = Some(entry.ino);
            }
        };
        if plus {
            let give = |entry: canopy_pool::DirEntry<'_>, node: Option<canopy_pool::Entry>| {
                take(entry);
                node.into_iter().for_each(|node| ops::names::lookup::forget(pool, node.node, 1));
                std::time::Duration::ZERO
            };
            ops::readdir::readdirplus(pool, NodeId::ROOT, 0, |_| true, give).unwrap();
        } else {
            ops::readdir::readdir(pool, NodeId::ROOT, 0, |entry| {
                take(entry);
                true
            })
            .unwrap();
        }
        found
    };
    let unknown = [listed(false), listed(true)];
    let entry = ops::names::lookup::lookup(pool, NodeId::ROOT, name.as_bytes()).unwrap();
    let shown = Some(entry.attr.ino);
    assert_eq!(ops::names::lookup::getattr(pool, entry.node, None).unwrap().ino, entry.attr.ino);
    assert_eq!([unknown, [listed(false), listed(true)]], [[shown; 2]; 2], "{name}");
    ops::names::lookup::forget(pool, entry.node, 1);
    entry.attr.ino
}

/// Nothing is known in each step, as after a restart.
#[test]
fn a_directory_is_found_again_with_its_number() {
    let home = LoopFs::ext4(32 << 20);
    let branches = ["a", "b", "c"].map(|name| home.path().join(name));
    let dir = |branch: usize, name: &str| branches[branch].join(name);
    for branch in &branches {
        fs::create_dir(branch).unwrap();
    }
    let over = |order: &[usize], inode| {
        let list: Vec<_> = order.iter().map(|&branch| branches[branch].clone()).collect();
        common::over(&list, &vec![Rw; order.len()], Config { inode, ..Config::default() })
    };
    for inode in [InodeCalc::OldestHash, InodeCalc::OldestHash32] {
        let shown = |order: &[usize], name: &str| number(&over(order, inode), name);
        fs::create_dir(dir(1, "one")).unwrap();
        let one = shown(&[0, 1, 2], "one");
        assert_eq!(one >> 32 == 0, inode.has_32_bits());
        std::thread::sleep(std::time::Duration::from_millis(20));
        // Further copies, before it and behind it.
        fs::create_dir(dir(0, "one")).unwrap();
        fs::create_dir(dir(2, "one")).unwrap();
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
            assert_eq!(shown(&order, "one"), one, "{order:?}");
        }
        // Another takes its place, in which it was renamed directly or through the pool.
        let pool = over(&[0, 1, 2], inode);
        ops::names::rename::rename(
            &pool,
            &ROOT,
            NodeId::ROOT,
            b"one",
            NodeId::ROOT,
            b"two",
            RenameKind::Replace,
        )
        .unwrap();
        ops::names::create::mkdir(&pool, &ROOT, NodeId::ROOT, b"one", 0o755).unwrap();
        assert_eq!(number(&pool, "two"), one);
        assert_ne!(number(&pool, "one"), one);
        let other = number(&pool, "one");
        drop(pool);
        assert_eq!([shown(&[0, 1, 2], "two"), shown(&[0, 1, 2], "one")], [one, other]);
        // While its oldest copy is away, it has another number; and the same again afterwards.
        assert_ne!(shown(&[0, 2], "two"), one);
        assert_eq!(shown(&[0, 1, 2], "two"), one);
        // mergerfs's values stay what they say.
        let by_path = number(&over(&[0, 1, 2], InodeCalc::HybridHash), "two");
        assert_eq!(by_path, InodeCalc::HybridHash.inode(b"", b"two", 0, true));
        for branch in 0..3 {
            let _ = fs::remove_dir(dir(branch, "one"));
            fs::remove_dir(dir(branch, "two")).unwrap();
        }
    }
}

/// A change of the option reaches directories that are known, whatever they were numbered by.
#[test]
fn known_directories_are_numbered_anew_when_the_option_changes() {
    let made = common::pool(&[Rw; 2], Config::default());
    fs::create_dir_all(made.on(0, "d/below")).unwrap();
    let dir = ops::names::lookup::lookup(&made.pool, NodeId::ROOT, b"d").unwrap().node;
    let below = ops::names::lookup::lookup(&made.pool, dir, b"below").unwrap().node;
    for inode in InodeCalc::ALL {
        ops::settings::reconfigure(&made.pool, Config { inode, ..Config::default() });
        let number = |id| ops::names::lookup::getattr(&made.pool, id, None).unwrap().ino;
        let branch = made.branches[0].as_os_str().as_encoded_bytes();
        let own = |path: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(made.on(0, path)).unwrap());
        let oldest = inode.name().starts_with("oldest");
        for (id, path) in [(dir, "d"), (below, "d/below")] {
            let expected = inode.inode(branch, path.as_bytes(), own(path), !oldest);
            assert_eq!(number(id), expected, "{inode} {path}");
            assert!(!inode.has_32_bits() || number(id) >> 32 == 0, "{inode}");
        }
        assert_eq!(number(NodeId::ROOT) >> 32 == 0, inode.has_32_bits() || inode == InodeCalc::Passthrough);
        let mut own_entries = Vec::new();
        ops::readdir::readdir(&made.pool, below, 0, |entry| {
            own_entries.push(entry.ino);
            true
        })
        .unwrap();
        assert_eq!(own_entries, [number(below), number(dir)], "{inode}");
    }
}
