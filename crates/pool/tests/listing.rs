//! Large directories are listed in pieces. Whatever happens between two of them, what nobody has touched is listed exactly
//! once, and nothing is listed twice.

mod common;

use canopy_pool::branch::Mode::Rw;
use canopy_pool::config::{Config, ReaddirMode};
use canopy_pool::{HandleId, NodeId, RenameKind};
use canopy_testkit::LoopFs;
use common::Made;
use std::cell::Cell;
use std::collections::HashMap;
use std::fs;

/// More than a few buffers of getdents(2) hold.
const FILES: usize = 5000;

fn pool(branches: usize) -> Made {
    let made = common::pool(&vec![Rw; branches], Config::default());
    fill(&made);
    made
}

fn fill(made: &Made) {
    for index in 0..made.branches.len() {
        fs::create_dir(made.on(index, "d")).expect("a directory");
        for file in 0..FILES {
            fs::write(made.on(index, &format!("d/{index}.{file}")), "").expect("a file");
        }
    }
}

struct Reader<'a> {
    made: &'a Made,
    handle: HandleId,
    position: u64,
    /// How often each was listed.
    listed: HashMap<String, u32>,
}

impl<'a> Reader<'a> {
    fn open(made: &'a Made) -> Reader<'a> {
        let dir = made.pool.lookup(NodeId::ROOT, b"d").expect("a directory").node;
        let handle = made.pool.opendir(dir).expect("an open directory");
        Reader { made, handle, position: 0, listed: HashMap::new() }
    }

    /// Reads some entries with their nodes; true if there are names that have not been read from the branches yet.
    fn plus(&mut self, entries: u32) -> bool {
        let left = Cell::new(entries);
        let room = |_: &[u8]| left.replace(left.get().saturating_sub(1)) > 0;
        let mut nodes = Vec::new();
        let Reader { position, listed, .. } = self;
        let unread = self.made.pool.readdirplus(self.handle, *position, room, |entry, node| {
            *position = entry.next;
            *listed.entry(String::from_utf8_lossy(entry.name).into_owned()).or_default() += 1;
            nodes.extend(node.map(|node| node.node));
        });
        nodes.into_iter().for_each(|node| self.made.pool.forget(node, 1));
        unread.expect("a listing")
    }

    /// All that is left, with nodes or without.
    fn rest(mut self, plus: bool) -> HashMap<String, u32> {
        loop {
            let before = self.position;
            if plus {
                self.plus(300);
            } else {
                let Reader { made, handle, position, listed } = &mut self;
                let mut left = 300;
                let from = *position;
                let read = made.pool.readdir(*handle, from, |entry| {
                    if left == 0 {
                        return false;
                    }
                    left -= 1;
                    *position = entry.next;
                    *listed.entry(String::from_utf8_lossy(entry.name).into_owned()).or_default() += 1;
                    true
                });
                read.expect("a listing");
            }
            if self.position == before {
                self.made.pool.releasedir(self.handle).expect("closed");
                return self.listed;
            }
        }
    }
}

fn all_once(listed: &HashMap<String, u32>, branches: usize) {
    for name in (0..branches).flat_map(|index| (0..FILES).map(move |file| format!("{index}.{file}"))) {
        assert_eq!(listed.get(&name), Some(&1), "{name}");
    }
    assert_eq!(listed.len(), branches * FILES + 2, "nothing else but . and ..");
}

#[test]
fn the_first_names_do_not_wait_for_the_last() {
    let made = pool(2);
    let mut reader = Reader::open(&made);
    assert!(reader.plus(100));
    assert_eq!(reader.listed.len(), 100);
    // Whoever serves has the rest read.
    let mut pieces = 1;
    while made.pool.read_on(reader.handle) {
        pieces += 1;
    }
    assert!(pieces > 4, "{pieces}");
    fs::remove_dir_all(made.on(0, "d")).expect("removed");
    fs::remove_dir_all(made.on(1, "d")).expect("removed");
    assert!(!reader.plus(100), "all of it has been read");
    all_once(&reader.rest(false), 2);
    assert!(!made.pool.read_on(HandleId(12345)), "no such listing");
}

#[test]
fn it_can_be_read_from_any_position() {
    let made = pool(1);
    let reader = Reader::open(&made);
    let whole = Reader::open(&made).rest(false);
    all_once(&whole, 1);
    // A server of NFS comes back so, to a handle that has listed nothing.
    let behind = Reader { position: FILES as u64 - 98, ..reader };
    assert_eq!(behind.rest(true).len(), 100);
    all_once(&Reader::open(&made).rest(true), 1);
}

/// XFS lists by where a name lies in the directory: at its end, if it was made anew when there was no room before.
#[test]
fn a_name_that_is_met_again_is_not_listed_again() {
    for plus in [true, false] {
        let disk = LoopFs::xfs(320 << 20);
        let branches = vec![disk.path().to_owned()];
        let pool = common::over(&branches, &[Rw], Config::default());
        let made = Made { pool, branches, home: common::home() };
        fill(&made);
        let mut reader = Reader::open(&made);
        assert!(reader.plus(1500));
        let files = reader.listed.keys().filter(|name| !name.starts_with('.'));
        let paths: Vec<_> = files.map(|name| made.on(0, &format!("d/{name}"))).collect();
        paths.iter().for_each(|path| fs::remove_file(path).expect("removed"));
        for at in 0..paths.len() {
            fs::write(made.on(0, &format!("d/m.{at}")), "").expect("what takes their room");
        }
        paths.iter().for_each(|path| fs::write(path, "").expect("made again"));
        let mut listed = reader.rest(plus);
        assert!(listed.values().all(|&times| times == 1));
        listed.retain(|name, _| !name.starts_with("m."));
        all_once(&listed, 1);
    }
}

/// The pool moves a file from a full branch to another, with the tree held.
#[test]
fn what_moves_to_where_the_listing_has_been_is_listed() {
    for (plus, readdir) in [(true, ReaddirMode::Seq), (false, ReaddirMode::Cosr { threads: 2, depth: 0 })] {
        let made = pool(2);
        made.pool.reconfigure(Config { min_free: 0, readdir, ..Config::default() });
        let mut reader = Reader::open(&made);
        assert!(reader.plus(1500));
        for file in 0..FILES {
            let name = format!("d/1.{file}");
            fs::rename(made.on(1, &name), made.on(0, &name)).expect("moved");
        }
        fs::create_dir(made.on(0, "x")).expect("a directory");
        made.pool.lookup(NodeId::ROOT, b"x").expect("found");
        made.pool
            .rename(&common::ROOT, NodeId::ROOT, b"x", NodeId::ROOT, b"y", RenameKind::Replace)
            .expect("renamed");
        all_once(&reader.rest(plus), 2);
    }
}

#[test]
fn a_directory_that_goes_meanwhile_ends() {
    let made = pool(1);
    let mut reader = Reader::open(&made);
    assert!(reader.plus(100));
    fs::remove_dir_all(made.on(0, "d")).expect("removed");
    let listed = reader.rest(false);
    assert!(listed.len() < FILES && listed.values().all(|&times| times == 1));
}
