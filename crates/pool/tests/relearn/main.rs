//! A directory that was looked at for the catalogue alone is known as after a client's walk, and no node comes of it.

#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;

use canopy_base::ids::NodeId;
use canopy_branch::branch::Mode::Rw;
use canopy_pool::coherence::catalogue::{Home, Rules, packed};
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::ops::readdir::relearn::relearn;
use canopy_pool::{DirEntry, Entry, Pool};
use common::{Made, ROOT, TestKernel, administrator};
use rustix::fs::{OFlags, XattrFlags};
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::Duration;

/// Prepares a pool whose changes are all told.
fn known(pool: &Arc<Pool>) {
    ops::settings::connect(pool, Arc::new(TestKernel::default()), false);
    let rules = Rules { rested: Duration::ZERO, written_back: Duration::ZERO, trimmed: Duration::ZERO };
    let catalogue = ops::external_changes::catalogue(pool);
    catalogue.open(tempfile::tempfile().expect("a file"), 1 << 24, rules);
    catalogue.allow(true);
}

/// Two branches with what names may lead to.
fn made() -> Made {
    let made = common::pool(&[Rw; 2], Config::default());
    for (branch, at) in made.branches.iter().zip(0..) {
        for dir in ["films/old", "music", "empty"] {
            fs::create_dir_all(branch.join(dir)).expect("directories");
        }
        fs::write(branch.join("films/both"), vec![b'x'; 100 * (at + 1)]).expect("a file");
        fs::write(branch.join(format!("films/only{at}")), "x").expect("a file");
        symlink("../there", branch.join(format!("music/link{at}"))).expect("a link");
        fs::hard_link(branch.join("films/both"), branch.join(format!("films/old/link{at}"))).expect("a link");
        fs::create_dir(branch.join(format!("films/dir{at}"))).expect("a directory");
    }
    let noted = made.on(1, "films/only1");
    rustix::fs::setxattr(&noted, "user.note", b"x", XattrFlags::empty()).expect("an attribute");
    // A directory on one branch, a file on the other.
    fs::write(made.on(0, "films/dir1"), "x").expect("a file");
    made
}

/// Walks as a client that asks for all there is.
fn walk(pool: &Pool, dir: NodeId) {
    let mut found: Vec<(Vec<u8>, Entry)> = Vec::new();
    let take = |entry: DirEntry<'_>, shown: Option<Entry>| {
        found.extend(shown.map(|shown| (entry.name.to_vec(), shown)));
        Duration::ZERO
    };
    ops::readdir::readdirplus(pool, dir, 0, |_| true, take).expect("a listing");
    for (name, entry) in found {
        ops::attrs::xattr::listxattr(pool, &administrator(), entry.node, &mut [0; 512]).expect("a list");
        if entry.attr.is_symlink() {
            ops::names::lookup::readlink(pool, entry.node).expect("a target");
        }
        if entry.attr.is_dir() && !matches!(&*name, b"." | b"..") {
            walk(pool, entry.node);
        }
    }
}

/// What is known of each directory.
fn all(pool: &Pool) -> Vec<Vec<u8>> {
    let homes: Vec<Home> =
        ops::settings::branches(pool).iter().map(|branch| Home { id: branch.id, dev: branch.dev }).collect();
    let catalogue = ops::external_changes::catalogue(pool);
    catalogue.known_directories().iter().filter_map(|path| catalogue.pack(path, &homes)).collect()
}

fn paths(pool: &Pool) -> Vec<Arc<[u8]>> {
    ops::external_changes::catalogue(pool).known_directories()
}

#[test]
fn it_is_known_as_after_a_walk_of_a_client() {
    // The time until which something is known is kept in seconds, and one may pass between the two.
    let mut last = [(); 3].map(|()| Vec::new());
    for _ in 0..5 {
        let made = made();
        // So that a later walk changes no access time (relatime), which must be later than the change.
        std::thread::sleep(Duration::from_millis(20));
        walk(&common::over(&made.branches, &[Rw; 2], Config::default()), NodeId::ROOT);
        known(&made.pool);
        walk(&made.pool, NodeId::ROOT);
        let other = common::over(&made.branches, &[Rw; 2], Config::default());
        known(&other);
        let nodes = |pool: &Pool| ops::external_changes::some_files(pool).len();
        for path in paths(&made.pool) {
            assert!(relearn(&other, &path));
        }
        assert_eq!(paths(&other), paths(&made.pool));
        assert_eq!(nodes(&other), 0, "a node has come of it");
        // A client that knows some of it does not change what is learnt.
        let third = common::over(&made.branches, &[Rw; 2], Config::default());
        known(&third);
        ops::names::lookup::lookup(&third, NodeId::ROOT, b"films").expect("it is there");
        for path in paths(&made.pool) {
            assert!(relearn(&third, &path));
        }
        last = [all(&made.pool), all(&other), all(&third)];
        if last[0] == last[1] && last[1] == last[2] {
            let films =
                all(&other).into_iter().find(|bytes| packed(bytes).is_some_and(|it| it.0 == b"films"));
            assert!(films.is_some_and(|films| films.len() > 300));
            return;
        }
    }
    let [one, other, third] = last;
    for ((one, other), third) in one.iter().zip(&other).zip(&third) {
        let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
        assert_eq!(shown(one), shown(other));
        assert_eq!(shown(one), shown(third));
    }
    panic!("it differs");
}

#[test]
fn what_cannot_be_known_is_not() {
    let made = made();
    let pool = &made.pool;
    known(pool);
    assert!(relearn(pool, b"films/none") && relearn(pool, b"films/both") && relearn(pool, b"films"));
    assert_eq!(paths(pool), [Arc::from(&b""[..]), Arc::from(&b"films"[..])]);
    // All of it is known already, so it is not looked at.
    let whole = all(pool);
    fs::write(made.on(0, "films/untold"), "x").expect("a file");
    assert!(relearn(pool, b"films"));
    assert_eq!(all(pool), whole);
    let catalogue = ops::external_changes::catalogue(pool);
    catalogue.clear();
    assert!(relearn(pool, b"films"));
    let closed = all(pool);
    catalogue.clear();
    // A file that a client has open may change without being told.
    let films = ops::names::lookup::lookup(pool, NodeId::ROOT, b"films").expect("it is there").node;
    let file = ops::names::lookup::lookup(pool, films, b"untold").expect("it is there").node;
    ops::data::open::open(pool, &ROOT, file, OFlags::RDWR.bits(), false).expect("it opens");
    catalogue.clear();
    assert!(relearn(pool, b"films"));
    assert!(sum(&all(pool)) + 50 < sum(&closed), "{closed:?}");
    catalogue.clear();
    ops::settings::connect(pool, Arc::new(TestKernel { unwatched: true, ..TestKernel::default() }), false);
    assert!(!relearn(pool, b"films"), "something may have been missed");
    ops::settings::connect(pool, Arc::new(TestKernel::default()), false);
    catalogue.allow(false);
    assert!(!relearn(pool, b"films"), "nothing may be known");
    catalogue.allow(true);
    assert_eq!(paths(pool), Vec::<Arc<[u8]>>::new());
}

fn sum(packed: &[Vec<u8>]) -> usize {
    packed.iter().map(Vec::len).sum()
}
