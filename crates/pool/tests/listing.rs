//! Large directories are listed in parts. Entries that do not change are listed, whatever changes between two parts and
//! whichever client or daemon continues.

mod common;

use canopy_base::ids::NodeId;
use canopy_base::inode_number::InodeCalc;
use canopy_branch::branch::Mode::Rw;
use canopy_pool::coherence::changes::{Change, Client};
use canopy_pool::config::{Config, ReaddirMode};
use canopy_pool::ops;
use canopy_pool::{Pool, RenameKind};
use canopy_testkit::{FaultyFs, Kind, LoopFs, ScratchDir};
use common::{Made, TestKernel};
use std::cell::Cell;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// More entries than a few buffers of getdents(2) hold.
const FILES: usize = 5000;

fn pool(branches: usize) -> Made {
    pool_with(branches, Config::default())
}

fn pool_with(branches: usize, config: Config) -> Made {
    let made = common::pool(&vec![Rw; branches], config);
    fill(&made, FILES);
    made
}

fn fill(made: &Made, files: usize) {
    for index in 0..made.branches.len() {
        fs::create_dir(made.on(index, "d")).expect("a directory");
        for file in 0..files {
            fs::write(made.on(index, &format!("d/{index}.{file}")), "").expect("a file");
        }
    }
}

fn dir_of(pool: &Pool) -> NodeId {
    ops::names::lookup::lookup(pool, NodeId::ROOT, b"d").expect("a directory").node
}

/// A reader of a listing, like a process that has the directory open.
struct Reader {
    pool: Arc<Pool>,
    dir: NodeId,
    position: u64,
    /// How often each name was listed.
    listed: HashMap<String, u32>,
}

impl Reader {
    fn open(made: &Made) -> Reader {
        Reader { pool: made.pool.clone(), dir: dir_of(&made.pool), position: 0, listed: HashMap::new() }
    }

    /// Reads at most this many entries, and returns their names.
    fn some(&mut self, plus: bool, entries: u32) -> Vec<String> {
        let Reader { pool, dir, position, listed } = self;
        let (left, from) = (Cell::new(entries), *position);
        let room = || left.replace(left.get().saturating_sub(1)) > 0;
        let mut names = Vec::new();
        let mut take = |name: &[u8], next| {
            *position = next;
            names.push(String::from_utf8_lossy(name).into_owned());
        };
        if plus {
            let mut nodes = Vec::new();
            let give = |entry: canopy_pool::DirEntry<'_>, node: Option<canopy_pool::Entry>| {
                take(entry.name, entry.next);
                nodes.extend(node.map(|node| node.node));
                Duration::ZERO
            };
            ops::readdir::readdirplus(pool, *dir, from, |_| room(), give).expect("a listing");
            nodes.into_iter().for_each(|node| ops::names::lookup::forget(pool, node, 1));
        } else {
            let give = |entry: canopy_pool::DirEntry<'_>| {
                let room = room();
                if room {
                    take(entry.name, entry.next);
                }
                room
            };
            ops::readdir::readdir(pool, *dir, from, give).expect("a listing");
        }
        names.iter().for_each(|name| *listed.entry(name.clone()).or_default() += 1);
        names
    }

    /// Reads all remaining entries, with nodes or without.
    fn rest(mut self, plus: bool) -> HashMap<String, u32> {
        while !self.some(plus, 300).is_empty() {}
        self.listed
    }

    /// Continues at the same position with a new pool, as after a restart of the daemon.
    fn restart_pool(&mut self, branches: &[PathBuf]) {
        self.pool = common::over(branches, &vec![Rw; branches.len()], Config::default());
        self.dir = dir_of(&self.pool);
    }
}

fn assert_all_listed_once(listed: &HashMap<String, u32>, branches: usize) {
    for name in (0..branches).flat_map(|index| (0..FILES).map(move |file| format!("{index}.{file}"))) {
        assert_eq!(listed.get(&name), Some(&1), "{name}");
    }
    assert_eq!(listed.len(), branches * FILES + 2, "only . and .. besides");
}

#[test]
fn a_listing_continues_from_any_position() {
    continues_from_any_position(&pool(2), i64::MAX as u64);
}

/// Programs of 32 bits get positions that they can keep, and other programs may go on with them.
#[test]
fn a_listing_of_31_bits_continues_from_any_position() {
    for inode in InodeCalc::ALL.into_iter().filter(|calc| calc.has_32_bits()) {
        let made = pool_with(2, Config { inode, ..Config::default() });
        continues_from_any_position(&made, i32::MAX as u64);
    }
}

fn continues_from_any_position(made: &Made, most: u64) {
    let mut reader = Reader::open(made);
    let whole = Reader::open(made).rest(false);
    assert_all_listed_once(&whole, 2);
    let mut places = vec![(0, 0)];
    loop {
        let given = reader.some(false, 611).len();
        if given == 0 {
            break;
        }
        assert!(reader.position <= most, "{:#x}", reader.position);
        places.push((reader.position, places.last().expect("a place").1 + given));
    }
    // Continues from each position as after seekdir(3), also with a pool that has listed nothing yet.
    for plus in [true, false] {
        for &(position, given) in places.iter().rev() {
            let mut again = Reader { position, ..Reader::open(made) };
            if plus {
                again.restart_pool(&made.branches);
            }
            let listed = again.rest(plus);
            assert_eq!(listed.len(), 2 * FILES + 2 - given, "{position:#x}");
            assert!(listed.values().all(|&times| times == 1));
        }
    }
    assert_all_listed_once(&Reader::open(made).rest(true), 2);
}

#[test]
fn a_name_on_several_branches_is_listed_once() {
    for plus in [true, false] {
        let made = common::pool(&[Rw; 3], Config::default());
        for index in 0..3 {
            fs::create_dir(made.on(index, "d")).expect("a directory");
            for file in (0..1500).filter(|file| file % 3 != index) {
                fs::create_dir(made.on(index, &format!("d/{file}"))).expect("a directory");
            }
        }
        let mut reader = Reader::open(&made);
        while !reader.some(plus, 100).is_empty() {
            reader.restart_pool(&made.branches);
        }
        assert_eq!(reader.listed.len(), 1502);
        assert!(reader.listed.values().all(|&times| times == 1));
        let listed = Reader::open(&made).rest(plus);
        assert!(listed.len() == 1502 && listed.values().all(|&times| times == 1));
    }
}

/// A client that removes the names of each part before it reads the next gets every other name. An NFS server does so for
/// rm(1), and continues after the daemon restarts.
fn removing_listed_names_skips_no_others(what: &str, home: &Path, dirs: &[&Path]) {
    const FEW: usize = 1000;
    for (round, plus, again) in [(0, false, false), (1, true, false), (2, false, true), (3, true, true)] {
        let branch = |(index, dir): (usize, &&Path)| dir.join(format!("{}-{round}-{index}", dirs.len()));
        let branches: Vec<PathBuf> = dirs.iter().enumerate().map(branch).collect();
        branches.iter().for_each(|branch| fs::create_dir(branch).expect("a branch"));
        let pool = common::over(&branches, &vec![Rw; branches.len()], Config::default());
        let made = Made { pool, branches, home: tempfile::tempdir_in(home).expect("a home") };
        fill(&made, FEW);
        let mut reader = Reader::open(&made);
        loop {
            if again {
                reader.restart_pool(&made.branches);
            }
            let names = reader.some(plus, 100);
            if names.is_empty() {
                break;
            }
            for name in names.iter().filter(|name| !name.starts_with('.')) {
                // One name in ten stays.
                if !name.ends_with('7') {
                    let _ = ops::names::remove::unlink(&reader.pool, reader.dir, name.as_bytes());
                }
            }
        }
        for name in (0..made.branches.len()).flat_map(|index| (0..FEW).map(move |n| format!("{index}.{n}"))) {
            assert!(reader.listed.contains_key(&name), "{what}, {plus}, {again}: {name} was left out");
        }
        let left = Reader::open(&made).rest(false).len();
        assert_eq!(left, 2 + made.branches.len() * FEW / 10, "{what}");
        // Where positions are indexes, a position behind a removed name is lost, and names may be listed twice.
        let stable_positions = !what.contains("indexes");
        assert!(
            !stable_positions || reader.listed.values().all(|&times| times == 1),
            "{what}, {plus}, {again}"
        );
    }
}

#[test]
fn removing_listed_names_skips_no_others_on_any_filesystem() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs] {
        let disks = [LoopFs::new(kind, 400 << 20), LoopFs::new(kind, 400 << 20)];
        let home = common::home();
        let dirs = [disks[0].path(), disks[1].path()];
        removing_listed_names_skips_no_others(&format!("{kind:?}"), home.path(), &dirs[..1]);
        removing_listed_names_skips_no_others(&format!("two of {kind:?}"), home.path(), &dirs);
    }
}

#[test]
fn removing_listed_names_skips_no_others_where_positions_are_indexes() {
    let scratch = ScratchDir::new("canopy-listing-", &["well"]);
    let faulty = FaultyFs::mount(&scratch.dir());
    let (well, home) = (scratch.path("well"), common::home());
    removing_listed_names_skips_no_others("positions are indexes", home.path(), &[faulty.path(), &well]);
}

/// XFS lists names by their place in the directory. A name that is recreated while its old place is taken moves to the
/// end.
#[test]
fn a_name_whose_position_changes_is_listed_once() {
    for plus in [true, false] {
        let disk = LoopFs::xfs(320 << 20);
        let branches = vec![disk.path().to_owned()];
        let pool = common::over(&branches, &[Rw], Config::default());
        let made = Made { pool, branches, home: common::home() };
        fill(&made, FILES);
        let mut reader = Reader::open(&made);
        reader.some(true, 1500);
        let files = reader.listed.keys().filter(|name| !name.starts_with('.'));
        let paths: Vec<_> = files.map(|name| made.on(0, &format!("d/{name}"))).collect();
        paths.iter().for_each(|path| fs::remove_file(path).expect("removed"));
        for at in 0..paths.len() {
            fs::write(made.on(0, &format!("d/m.{at}")), "").expect("a file that takes their place");
        }
        paths.iter().for_each(|path| fs::write(path, "").expect("recreated"));
        let mut listed = reader.rest(plus);
        assert!(listed.values().all(|&times| times == 1));
        listed.retain(|name, _| !name.starts_with("m."));
        assert_all_listed_once(&listed, 1);
    }
}

/// Files move from one branch to another: by the pool, which locks the tree, or on the branches.
#[test]
fn files_that_move_to_a_branch_already_listed_are_still_listed() {
    for (plus, by_the_pool, readdir) in [
        (true, true, ReaddirMode::Seq),
        (false, true, ReaddirMode::Cosr { threads: 2, depth: 0 }),
        (true, false, ReaddirMode::Seq),
        (false, false, ReaddirMode::Cosr { threads: 2, depth: 0 }),
    ] {
        let made = pool(2);
        ops::settings::reconfigure(&made.pool, Config { min_free: 0, readdir, ..Config::default() });
        let mut reader = Reader::open(&made);
        reader.some(plus, 1500);
        for file in 0..FILES {
            let name = format!("d/1.{file}");
            fs::rename(made.on(1, &name), made.on(0, &name)).expect("moved");
        }
        if by_the_pool {
            fs::create_dir(made.on(0, "x")).expect("a directory");
            ops::names::lookup::lookup(&made.pool, NodeId::ROOT, b"x").expect("found");
            ops::names::rename::rename(
                &made.pool,
                &common::ROOT,
                NodeId::ROOT,
                b"x",
                NodeId::ROOT,
                b"y",
                RenameKind::Replace,
            )
            .expect("renamed");
        }
        assert_all_listed_once(&reader.rest(plus), 2);
    }
}

/// New names may be listed or not, but the loop ends.
#[test]
fn renaming_listed_names_terminates() {
    let made = pool(2);
    let mut reader = Reader::open(&made);
    loop {
        let names = reader.some(true, 300);
        if names.is_empty() {
            break;
        }
        for name in names.iter().filter(|name| !name.starts_with('.')) {
            let new = format!("{name}'");
            ops::names::rename::rename(
                &reader.pool,
                &common::ROOT,
                reader.dir,
                name.as_bytes(),
                reader.dir,
                new.as_bytes(),
                RenameKind::Replace,
            )
            .expect("renamed");
        }
    }
    for name in (0..2).flat_map(|index| (0..FILES).map(move |file| format!("{index}.{file}"))) {
        assert_eq!(reader.listed.get(&name), Some(&1), "{name}");
    }
}

#[test]
fn the_listing_of_a_removed_directory_ends() {
    let made = pool(1);
    let mut reader = Reader::open(&made);
    assert_eq!(reader.some(true, 100).len(), 100);
    fs::remove_dir_all(made.on(0, "d")).expect("removed");
    let listed = reader.rest(false);
    assert!(listed.len() < FILES && listed.values().all(|&times| times == 1));
}

/// Covers more readers than the pool keeps cursors for, each at another position.
#[test]
fn each_of_many_readers_gets_every_name() {
    let made = pool(2);
    let mut readers: Vec<Reader> = (0..150).map(|_| Reader::open(&made)).collect();
    for (number, reader) in readers.iter_mut().enumerate() {
        reader.some(number % 2 == 0, 30 * number as u32);
    }
    for (number, reader) in readers.into_iter().enumerate() {
        if number % 10 == 9 {
            assert_all_listed_once(&reader.rest(number % 3 == 0), 2);
        }
    }
}

/// A node is left out while the kernel's attributes are valid, unless its file has changed.
#[test]
fn readdirplus_omits_nodes_that_the_kernel_knows() {
    const FEW: usize = 100;
    let made = common::pool(&[Rw; 2], Config::default());
    ops::settings::connect(&made.pool, Arc::new(TestKernel::default()), false);
    fill(&made, FEW);
    let dir = dir_of(&made.pool);
    let nodes_of = |time: Duration| {
        let mut given = Vec::new();
        let take = |entry: canopy_pool::DirEntry<'_>, node: Option<canopy_pool::Entry>| {
            given.extend(node.map(|node| (String::from_utf8_lossy(entry.name).into_owned(), node.node)));
            time
        };
        ops::readdir::readdirplus(&made.pool, dir, 0, |_| true, take).expect("a listing");
        given
    };
    // One node more than needed may be returned: it tells the kernel whether READDIRPLUS is worthwhile.
    let others = |given: &[(String, NodeId)], wanted: &[&str]| {
        let missing = wanted.iter().filter(|name| !given.iter().any(|(given, _)| given == **name)).count();
        assert_eq!(missing, 0, "{given:?}");
        given.len() - wanted.len()
    };
    const FOR_LONG: Duration = Duration::from_secs(86_400);
    // Attributes without a validity are not cached by the kernel.
    assert_eq!(nodes_of(Duration::ZERO).len(), 2 * FEW);
    let all = nodes_of(FOR_LONG);
    assert_eq!(all.len(), 2 * FEW);
    let node = |name: &str| all.iter().find(|(given, _)| given == name).expect("a name").1;
    assert!(others(&nodes_of(FOR_LONG), &[]) <= 1);
    // A new name, one that changed on the branch, and one that is open for writing.
    let created =
        ops::data::create::create(&made.pool, &common::ROOT, dir, b"new", 0o644, 1).expect("a file");
    ops::data::open::release(&made.pool, created.1.handle).expect("closed");
    ops::external_changes::tell(&made.pool, Change::Attributes(node("0.5")), Client::Outside);
    let opened = ops::data::open::open(&made.pool, &common::ROOT, node("1.7"), 2, false).expect("open");
    let changed = ["new", "0.5", "1.7"];
    assert!(others(&nodes_of(FOR_LONG), &changed) <= 1);
    // A written file is included as long as it is open, and once more after that.
    assert!(others(&nodes_of(FOR_LONG), &["1.7"]) <= 1);
    ops::data::open::release(&made.pool, opened.handle).expect("closed");
    assert!(others(&nodes_of(FOR_LONG), &["1.7"]) <= 1);
    assert!(others(&nodes_of(FOR_LONG), &[]) <= 1);
    // Forgotten nodes are included again, and all nodes after changes may have been missed.
    ops::names::lookup::forget(&made.pool, node("0.9"), 10);
    assert!(others(&nodes_of(FOR_LONG), &["0.9"]) <= 1);
    ops::external_changes::tell(&made.pool, Change::Missed, Client::Outside);
    assert_eq!(nodes_of(FOR_LONG).len(), 2 * FEW + 1);
}
