//! Node ids of files that are created and removed within one tick of the clock. Needs root.

#![forbid(unsafe_code)]

mod common;

use canopy_pool::branch::Mode::Rw;
use canopy_pool::config::Config;
use canopy_pool::{Entry, NodeId, Pool};
use canopy_testkit::LoopFs;
use common::{ROOT, over};
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::sync::Arc;

fn make_file(pool: &Pool, name: &str) -> Entry {
    let flags = (OFlags::CREATE | OFlags::RDWR).bits();
    let (entry, opened) = pool.create(&ROOT, NodeId::ROOT, name.as_bytes(), 0o644, flags, false).unwrap();
    pool.release(opened.handle).unwrap();
    entry
}

fn make_dir(pool: &Pool, name: &str) -> Entry {
    pool.mkdir(&ROOT, NodeId::ROOT, name.as_bytes(), 0o755).unwrap()
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
            0 => pool.rmdir(NodeId::ROOT, name.as_bytes()).unwrap(),
            1 => pool.unlink(NodeId::ROOT, name.as_bytes()).unwrap(),
            // Replaced by a new file or directory.
            kind => {
                let other = if is_dir { make_dir(&pool, "other") } else { make_file(&pool, "other") };
                let before =
                    seen.insert((other.node, other.generation), format!("{kind} in place of {name}"));
                assert_eq!(before, None, "the replacement of {name} has the same id");
                let how = canopy_pool::RenameKind::Replace;
                pool.rename(&ROOT, NodeId::ROOT, b"other", NodeId::ROOT, name.as_bytes(), how).unwrap();
                pool.forget(other.node, 1);
                let gone = if is_dir { Pool::rmdir } else { Pool::unlink };
                gone(&pool, NodeId::ROOT, name.as_bytes()).unwrap();
            }
        }
        pool.forget(entry.node, 1);
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
            let (entry, opened) = pool.create(&ROOT, dir.node, name.as_bytes(), 0o644, flags, false).unwrap();
            pool.release(opened.handle).unwrap();
            pool.forget(entry.node, 1);
        }
        let births = branches.iter().filter_map(|branch| std::fs::metadata(branch.join(&name)).ok());
        let mut births: Vec<_> = births.map(|found| found.created().unwrap()).collect();
        let copies = births.len();
        births.sort();
        births.dedup();
        ties += i32::from(births.len() < copies);
        pool.forget(dir.node, 1);
        let again = pool.lookup(NodeId::ROOT, name.as_bytes()).unwrap();
        assert_eq!((again.node, again.generation), (dir.node, dir.generation), "{name}");
        pool.forget(dir.node, 1);
    }
    assert!(ties > 0, "no copies had equal birth times, so nothing was tested");
    drop(pool);
}
