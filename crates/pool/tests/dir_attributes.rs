//! The attributes of a merged directory are right after every change, although the pool remembers those of its copies.

#![forbid(unsafe_code)]

mod common;

use canopy_base::ids::NodeId;
use canopy_branch::branch::Mode::Rw;
use canopy_branch::fs::stat::{Attr, Time};
use canopy_policy::{Category, Policy};
use canopy_pool::coherence::changes::{self, Client};
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::{RenameKind, SetAttr};
use canopy_testkit::files::put;
use common::{Made, ROOT, TestKernel, pool};
use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags, Timespec, Timestamps, statx, utimensat};
use std::fs;
use std::sync::Arc;

const BRANCHES: usize = 5;
/// A branch to which the create policy leads only by what it has.
const OTHER: usize = 3;

fn made(config: Config) -> (Made, NodeId) {
    let mut config = config;
    config.policies.set_category(Category::Create, Policy::Ff);
    let made = pool(&[Rw; BRANCHES], config);
    ops::settings::connect(&made.pool, Arc::new(TestKernel::default()), false);
    for branch in 0..BRANCHES {
        fs::create_dir(made.on(branch, "d")).unwrap();
    }
    for (branch, name) in [(0, "first"), (OTHER, "other"), (OTHER, "other2")] {
        put(made.on(branch, "d").join(name), "x");
        fs::create_dir(made.on(branch, "d").join(format!("{name}.dir"))).unwrap();
    }
    fs::hard_link(made.on(OTHER, "d/other"), made.on(OTHER, "d/linked")).unwrap();
    let dir = ops::names::lookup::lookup(&made.pool, NodeId::ROOT, b"d").unwrap().node;
    (made, dir)
}

/// What the branches say: the latest times of all copies.
fn on_branches(made: &Made, path: &str) -> [Time; 3] {
    let mut latest = [Time::default(); 3];
    for branch in 0..BRANCHES {
        let found = statx(CWD, made.on(branch, path), AtFlags::empty(), StatxFlags::BASIC_STATS).unwrap();
        let times = [found.stx_atime, found.stx_mtime, found.stx_ctime];
        for (latest, time) in latest.iter_mut().zip(times) {
            *latest = (*latest).max(Time { sec: time.tv_sec, nsec: time.tv_nsec });
        }
    }
    latest
}

fn times(attr: &Attr) -> [Time; 3] {
    [attr.atime, attr.mtime, attr.ctime]
}

/// Makes the directory old on all branches, as another process may, and has the pool remember it.
fn make_old(made: &Made, dir: NodeId) {
    let old = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    for branch in 0..BRANCHES {
        let times = Timestamps { last_access: old, last_modification: old };
        utimensat(CWD, made.on(branch, "d"), &times, AtFlags::empty()).unwrap();
    }
    ops::external_changes::tell(&made.pool, changes::Change::Attributes(dir), Client::Outside);
    for _ in 0..2 {
        assert_eq!(
            times(&ops::names::lookup::getattr(&made.pool, dir, None).unwrap()),
            on_branches(made, "d")
        );
    }
}

type Change = (&'static str, fn(&Made, NodeId));

const CHANGES: &[Change] = &[
    ("mknod", |made, dir| {
        ops::names::create::mknod(&made.pool, &ROOT, dir, b"made", 0o100_644, (0, 0)).unwrap();
    }),
    ("mkdir", |made, dir| {
        ops::names::create::mkdir(&made.pool, &ROOT, dir, b"made.dir", 0o755).unwrap();
    }),
    ("symlink", |made, dir| {
        ops::names::create::symlink(&made.pool, &ROOT, dir, b"made.link", b"target").unwrap();
    }),
    ("create", |made, dir| {
        let flags = OFlags::RDWR.bits();
        let (_, opened) =
            ops::data::create::create(&made.pool, &ROOT, dir, b"created", 0o644, flags).unwrap();
        ops::data::open::release(&made.pool, opened.handle).unwrap();
    }),
    ("link", |made, dir| {
        let file = ops::names::lookup::lookup(&made.pool, dir, b"other").unwrap().node;
        ops::names::link::link(&made.pool, &ROOT, file, dir, b"other.link").unwrap();
    }),
    ("unlink", |made, dir| ops::names::remove::unlink(&made.pool, dir, b"other.link").unwrap()),
    ("rename", |made, dir| {
        ops::names::rename::rename(&made.pool, &ROOT, dir, b"other", dir, b"renamed", RenameKind::Replace)
            .unwrap();
    }),
    ("replace", |made, dir| {
        ops::names::rename::rename(&made.pool, &ROOT, dir, b"renamed", dir, b"first", RenameKind::Replace)
            .unwrap();
    }),
    ("exchange", |made, dir| {
        ops::names::rename::rename(
            &made.pool,
            &ROOT,
            dir,
            b"other.dir",
            dir,
            b"other2.dir",
            RenameKind::Exchange,
        )
        .unwrap();
    }),
    ("rename out", |made, dir| {
        ops::names::rename::rename(
            &made.pool,
            &ROOT,
            dir,
            b"other2",
            NodeId::ROOT,
            b"out",
            RenameKind::Replace,
        )
        .unwrap();
    }),
    ("rename in", |made, dir| {
        ops::names::rename::rename(&made.pool, &ROOT, NodeId::ROOT, b"out", dir, b"in", RenameKind::Replace)
            .unwrap();
    }),
    ("rename a directory out", |made, dir| {
        ops::names::rename::rename(
            &made.pool,
            &ROOT,
            dir,
            b"other.dir",
            NodeId::ROOT,
            b"out.dir",
            RenameKind::Replace,
        )
        .unwrap();
    }),
    ("rmdir", |made, dir| ops::names::remove::rmdir(&made.pool, dir, b"other2.dir").unwrap()),
    ("chmod", |made, dir| {
        let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        ops::attrs::setattr::setattr(&made.pool, &ROOT, dir, None, &set).unwrap();
    }),
    ("setxattr", |made, dir| {
        ops::attrs::xattr::setxattr(&made.pool, &ROOT, dir, b"trusted.a", b"value", 0, false).unwrap();
    }),
    ("removexattr", |made, dir| {
        ops::attrs::xattr::removexattr(&made.pool, &ROOT, dir, b"trusted.a").unwrap()
    }),
    ("listing", |made, dir| {
        ops::readdir::readdir(&made.pool, dir, 0, |_| true).unwrap();
    }),
    ("a clone", |made, dir| {
        // Made on one branch; a file of another one then takes its directory there.
        let new = ops::names::create::mkdir(&made.pool, &ROOT, dir, b"new", 0o755).unwrap().node;
        ops::names::lookup::getattr(&made.pool, dir, None).unwrap();
        ops::names::rename::rename(&made.pool, &ROOT, dir, b"in", new, b"in", RenameKind::Replace).unwrap();
        assert!(made.on(OTHER, "d/new/in").exists());
    }),
    ("a rename of the directory", |made, dir| {
        ops::names::rename::rename(
            &made.pool,
            &ROOT,
            NodeId::ROOT,
            b"d",
            NodeId::ROOT,
            b"e",
            RenameKind::Replace,
        )
        .unwrap();
        assert_eq!(
            times(&ops::names::lookup::getattr(&made.pool, dir, None).unwrap()),
            on_branches(made, "e")
        );
        ops::names::rename::rename(
            &made.pool,
            &ROOT,
            NodeId::ROOT,
            b"e",
            NodeId::ROOT,
            b"d",
            RenameKind::Replace,
        )
        .unwrap();
    }),
];

#[test]
fn a_change_through_the_pool_shows_at_once() {
    let (made, dir) = made(Config::default());
    for (name, change) in CHANGES {
        make_old(&made, dir);
        let before = times(&ops::names::lookup::getattr(&made.pool, dir, None).unwrap());
        // Later than the clock tick of `before`.
        canopy_testkit::files::wait_for_clock_tick();
        change(&made, dir);
        let after = times(&ops::names::lookup::getattr(&made.pool, dir, None).unwrap());
        assert_eq!(after, on_branches(&made, "d"), "{name}");
        assert_ne!(after, before, "{name}");
    }
}

#[test]
fn a_copy_that_replaces_a_link_shows_at_once() {
    let (made, dir) = made(Config { link_cow: true, ..Config::default() });
    let file = ops::names::lookup::lookup(&made.pool, dir, b"linked").unwrap().node;
    make_old(&made, dir);
    let opened = ops::data::open::open(&made.pool, &ROOT, file, OFlags::RDWR.bits(), false).unwrap();
    ops::data::open::release(&made.pool, opened.handle).unwrap();
    let links = |name| std::os::unix::fs::MetadataExt::nlink(&fs::metadata(made.on(OTHER, name)).unwrap());
    assert_eq!([links("d/linked"), links("d/other")], [1, 1]);
    assert_eq!(times(&ops::names::lookup::getattr(&made.pool, dir, None).unwrap()), on_branches(&made, "d"));
}
