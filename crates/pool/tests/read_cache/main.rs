//! Files are read from copies on another disk, and never from one that is not right.

#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;

mod asked;
mod follow;
mod originals;
mod spool;

use canopy_base::ids::{HandleId, NodeId};
use canopy_branch::branch::Mode::Rw;
use canopy_policy::placement::Pattern;
use canopy_policy::read_cache::{CacheRule, CacheRules, Room, When};
use canopy_pool::config::Config;
use canopy_pool::{CacheFigures, SetAttr, ops};
use common::{Made, TestKernel, administrator, over, pool};
use rustix::fs::OFlags;
use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// A pool in memory with its cache on the disk of temporary files.
struct Rig {
    made: Made,
    ssd: TempDir,
}

fn config(ssd: &Path, room: Room, when: When) -> Config {
    let paths = vec![Pattern::new("films/").unwrap()];
    let rule = CacheRule { dirs: vec![ssd.to_owned()], paths, room, when, spool: true };
    Config { read_cache: CacheRules(vec![rule]), ..Config::default() }
}

fn connect(made: &Made) {
    let kernel = TestKernel { unwatched: true, ..TestKernel::default() };
    ops::settings::connect(&made.pool, Arc::new(kernel), false);
    ops::read_cache::set_rests(&made.pool, RESTS / 2);
}

/// A file rests for so long before it is copied.
const RESTS: Duration = Duration::from_millis(200);

/// Makes a pool with these files in it, which rest.
fn rig(room: Room, when: When, files: &[&str]) -> Rig {
    let ssd = tempfile::tempdir().unwrap();
    let made = pool(&[Rw], config(ssd.path(), room, when));
    connect(&made);
    fs::create_dir(made.on(0, "films")).unwrap();
    files.iter().for_each(|name| fs::write(made.on(0, name), "original").unwrap());
    std::thread::sleep(RESTS);
    ops::read_cache::tend(&made.pool);
    Rig { made, ssd }
}

impl Rig {
    /// The same disks and copies, served by another process, which has looked at them.
    fn of_the_next_process(self, when: When) -> Rig {
        let Rig { made, ssd } = self;
        let config = config(ssd.path(), Room::Size(1 << 20), when);
        let pool = over(&made.branches, &[Rw], config);
        let again = Made { pool, branches: made.branches.clone(), home: made.home };
        connect(&again);
        let rig = Rig { made: again, ssd };
        rig.tend();
        rig
    }

    fn node(&self, path: &str) -> NodeId {
        let step =
            |at, name: &str| ops::names::lookup::lookup(&self.made.pool, at, name.as_bytes()).unwrap().node;
        path.split('/').fold(NodeId::ROOT, step)
    }

    fn open(&self, path: &str, flags: OFlags) -> HandleId {
        let opened =
            ops::data::open::open(&self.made.pool, &administrator(), self.node(path), flags.bits(), false);
        opened.unwrap().handle
    }

    fn read(&self, handle: HandleId) -> String {
        let mut buffer = [0; 64];
        let length = ops::data::io::read(&self.made.pool, handle, 0, &mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    fn close(&self, handle: HandleId) {
        ops::data::open::release(&self.made.pool, handle).unwrap();
    }

    fn content(&self, path: &str) -> String {
        let handle = self.open(path, OFlags::RDONLY);
        let text = self.read(handle);
        self.close(handle);
        text
    }

    fn tend(&self) {
        ops::read_cache::tend(&self.made.pool);
    }

    fn copies(&self) -> Vec<PathBuf> {
        let all =
            fs::read_dir(self.ssd.path().join(".canopy-cache")).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| !path.ends_with("reads")).collect()
    }

    /// Reads a file, so that it has a copy, and marks the copy.
    fn cache(&self, path: &str) {
        assert_eq!(self.content(path), "original");
        self.tend();
        let copies = self.copies();
        assert_eq!(copies.len(), 1);
        assert_eq!(fs::read_to_string(&copies[0]).unwrap(), "original");
        fs::write(&copies[0], "the copy").unwrap();
        assert_eq!(self.content(path), "the copy");
    }

    fn figures(&self) -> CacheFigures {
        let [figures] = &ops::read_cache::figures(&self.made.pool)[..] else { panic!("one directory") };
        figures.clone()
    }

    fn hits(&self) -> (u64, u64) {
        let figures = self.figures();
        (figures.hits, figures.misses)
    }
}

#[test]
fn what_was_read_is_read_from_its_copy_until_somebody_changes_it() {
    let rig = rig(Room::Size(1 << 20), When::Opened, &["films/a", "b"]);
    assert_eq!(rig.content("b"), "original");
    rig.cache("films/a");
    assert_eq!(rig.hits(), (1, 1));
    let figures = rig.figures();
    assert_eq!((figures.files, figures.hit_bytes, figures.missed_bytes, figures.read_bytes), (1, 8, 8, 8));

    // A writer takes it away from readers that have it open.
    let reader = rig.open("films/a", OFlags::RDONLY);
    assert_eq!(rig.read(reader), "the copy");
    let writer = rig.open("films/a", OFlags::WRONLY);
    assert_eq!(rig.read(reader), "original");
    ops::data::io::write(&rig.made.pool, writer, 0, b"WRITTEN!", Default::default()).unwrap();
    assert_eq!(rig.read(reader), "WRITTEN!");
    rig.close(writer);
    rig.close(reader);
    assert_eq!(rig.content("films/a"), "WRITTEN!");
}

#[test]
fn a_truncation_by_name_reaches_readers() {
    let rig = rig(Room::Size(1 << 20), When::Opened, &["films/a"]);
    rig.cache("films/a");
    let reader = rig.open("films/a", OFlags::RDONLY);
    let set = SetAttr { size: Some(4), ..SetAttr::default() };
    ops::attrs::setattr::setattr(&rig.made.pool, &administrator(), rig.node("films/a"), None, &set).unwrap();
    assert_eq!(rig.read(reader), "orig");
    rig.close(reader);
}

#[test]
fn a_change_on_the_branch_is_noticed_whatever_its_times_say() {
    let rig = rig(Room::Size(1 << 20), When::Opened, &["films/a"]);
    rig.cache("films/a");
    let at = rig.made.on(0, "films/a");
    let before = fs::metadata(&at).unwrap().modified().unwrap();
    let open = rig.open("films/a", OFlags::RDONLY);
    fs::write(&at, "directly").unwrap();
    File::options().write(true).open(&at).unwrap().set_times(FileTimes::new().set_modified(before)).unwrap();
    assert_eq!(rig.content("films/a"), "directly", "another reader joins the one that has it open");
    assert_eq!(rig.read(open), "directly");
    rig.close(open);
    assert_eq!(rig.content("films/a"), "directly");
}

#[test]
fn another_file_of_the_name_is_another_file_and_a_removed_one_takes_its_copy_along() {
    let rig = rig(Room::Size(1 << 20), When::Opened, &["films/a", "films/b"]);
    rig.cache("films/a");
    let (dir, to) = (rig.node("films"), (rig.node("films"), b"a"));
    ops::names::rename::rename(
        &rig.made.pool,
        &administrator(),
        dir,
        b"b",
        to.0,
        to.1,
        ops::names::rename::RenameKind::Replace,
    )
    .unwrap();
    assert_eq!(rig.content("films/a"), "original");
    rig.tend();
    let texts: Vec<_> = rig.copies().iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    assert!(!texts.contains(&"the copy".to_owned()), "{texts:?}");
}

#[test]
fn hard_links_are_one_file() {
    let rig = rig(Room::Size(1 << 20), When::Opened, &["films/a"]);
    fs::hard_link(rig.made.on(0, "films/a"), rig.made.on(0, "films/b")).unwrap();
    std::thread::sleep(RESTS);
    rig.cache("films/a");
    assert_eq!(rig.content("films/b"), "the copy");
}

#[test]
fn a_file_is_copied_once_it_has_been_read_often_enough() {
    let twice = When::Read { times: 2, within: Duration::from_secs(3600) };
    let rig = rig(Room::Size(1 << 20), twice, &["films/a"]);
    rig.content("films/a");
    rig.tend();
    assert!(rig.copies().is_empty());
    // What comes at once is the same read.
    rig.content("films/a");
    rig.tend();
    assert!(rig.copies().is_empty());
    std::thread::sleep(Duration::from_millis(6100));
    rig.cache("films/a");
}

#[test]
fn what_is_read_seldom_gives_way() {
    // Copies take whole blocks.
    let rig = rig(Room::Size(4096 + 8), When::Opened, &["films/a", "films/b"]);
    rig.cache("films/a");
    std::thread::sleep(Duration::from_millis(6100));
    assert_eq!(rig.content("films/a"), "the copy");
    rig.content("films/b");
    rig.tend();
    assert_eq!(rig.content("films/a"), "the copy", "it has been read twice");
    std::thread::sleep(Duration::from_millis(5100));
    for _ in 0..2 {
        rig.content("films/b");
        rig.tend();
        std::thread::sleep(Duration::from_millis(5100));
    }
    rig.content("films/b");
    rig.tend();
    assert_eq!(rig.content("films/a"), "original");
    assert_eq!(rig.copies().len(), 1);
}

#[test]
fn the_next_process_proves_each_copy_or_drops_it() {
    let rig = rig(Room::Size(1 << 20), When::Opened, &["films/a"]);
    rig.cache("films/a");
    let home = rig.ssd.path().join(".canopy-cache");
    fs::write(home.join(".canopy-clone.of-one-that-was-killed"), "half").unwrap();
    let rig = rig.of_the_next_process(When::Opened);
    assert_eq!(rig.copies().len(), 1);
    assert_eq!(rig.content("films/a"), "the copy");
    fs::write(&rig.copies()[0], "cut").unwrap();
    assert_eq!(rig.content("films/a"), "original", "one that is not whole");
}

#[test]
fn a_cache_on_the_files_own_disk_is_of_no_use() {
    let mut rig = rig(Room::Size(1 << 20), When::Opened, &["films/a"]);
    rig.ssd = tempfile::tempdir_in(rig.made.home.path()).unwrap();
    let config = config(rig.ssd.path(), Room::Size(1 << 20), When::Opened);
    rig.made.pool = over(&rig.made.branches, &[Rw], config);
    connect(&rig.made);
    rig.tend();
    rig.content("films/a");
    rig.tend();
    assert!(rig.copies().is_empty());
}
