//! Whether the pool relies on what it knows of the branches or asks them: changes of attributes reach every copy of a file
//! and no other file, and a name that is too long is refused as such.

#![forbid(unsafe_code)]

mod common;

use canopy_base::error::Error;
use canopy_base::ids::NodeId;
use canopy_branch::branch::Mode::{self, Ro, Rw};
use canopy_branch::fs::pinned::pretend_older_kernel;
use canopy_branch::fs::stat::Time;
use canopy_policy::{Category, Policy};
use canopy_pool::coherence::changes::{Change, Client};
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::{SetAttr, SetTime};
use canopy_testkit::files::{put, text};
use common::{Made, ROOT, TestKernel, chmod, pool};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::Arc;

/// How many branches a pool has: one, a few, and more than the index of names can tell apart.
const SIZES: [usize; 3] = [1, 3, MANY];
const MANY: usize = 70;

/// Makes a pool whose directory `d` is on all branches. If changes are watched, it relies on what it knows of `d`.
fn made(modes: &[Mode], watched: bool) -> Made {
    let mut config = Config::default();
    config.policies.set_category(Category::Create, Policy::Ff);
    let made = pool(modes, config);
    ops::settings::connect(
        &made.pool,
        Arc::new(TestKernel { unwatched: !watched, ..TestKernel::default() }),
        false,
    );
    for branch in 0..modes.len() {
        fs::create_dir(made.on(branch, "d")).unwrap();
    }
    made
}

/// Looks up enough missing names that the pool knows the names of a directory.
fn know_names(made: &Made, dir: NodeId) {
    for number in 0..20 {
        assert_eq!(
            ops::names::lookup::lookup(&made.pool, dir, format!("none{number}").as_bytes()).err(),
            Some(Error::Absent)
        );
    }
}

fn every_pool(test: impl Fn(&Made, usize, bool)) {
    for branches in SIZES {
        for watched in [true, false] {
            let made = made(&vec![Rw; branches], watched);
            test(&made, branches, watched);
        }
    }
}

fn set(made: &Made, node: NodeId, set: SetAttr) -> Result<canopy_branch::fs::stat::Attr, Errno> {
    ops::attrs::setattr::setattr(&made.pool, &ROOT, node, None, &set).map_err(Error::errno)
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Makes all changes of a file and checks them on the branches `holders`.
fn assert_changes_reach(made: &Made, node: NodeId, name: &str, holders: &[usize]) {
    let at = |sec| SetTime::At(Time { sec, nsec: 9 });
    let attr = set(made, node, SetAttr { uid: Some(12), gid: Some(34), ..mode(0o640) }).unwrap();
    assert_eq!((attr.mode & 0o7777, attr.uid, attr.gid), (0o640, 12, 34));
    let size = SetAttr { size: Some(3), ..SetAttr::default() };
    assert_eq!(set(made, node, size).unwrap().size, 3);
    let times = SetAttr { atime: Some(at(5)), mtime: Some(at(6)), ..SetAttr::default() };
    assert_eq!(set(made, node, times).unwrap().mtime, Time { sec: 6, nsec: 9 });
    ops::attrs::xattr::setxattr(&made.pool, &ROOT, node, b"user.one", b"first", 0, false).unwrap();
    ops::attrs::xattr::setxattr(&made.pool, &ROOT, node, b"user.two", b"second", 0, false).unwrap();
    ops::attrs::xattr::removexattr(&made.pool, &ROOT, node, b"user.one").unwrap();
    for &branch in holders {
        let path = made.on(branch, name);
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o640, 12, 34), "branch {branch}");
        assert_eq!((meta.mtime(), meta.mtime_nsec(), meta.atime()), (6, 9, 5), "branch {branch}");
        assert_eq!(text(&path).len(), 3, "branch {branch}");
        assert_eq!(rustix::fs::getxattr(&path, "user.one", &mut [0; 9][..]), Err(Errno::NODATA));
        assert_eq!(rustix::fs::getxattr(&path, "user.two", &mut [0; 9][..]), Ok(6));
    }
    let mut buffer = [0; 200];
    assert_eq!(ops::attrs::xattr::getxattr(&made.pool, node, b"user.two", &mut buffer), Ok(6));
    assert_eq!(
        (&buffer[..6], ops::attrs::xattr::getxattr(&made.pool, node, b"user.two", &mut [])),
        (&b"second"[..], Ok(6))
    );
    assert_eq!(
        ops::attrs::xattr::getxattr(&made.pool, node, b"user.one", &mut buffer).map_err(Error::errno),
        Err(Errno::NODATA)
    );
    let listed = ops::attrs::xattr::listxattr(&made.pool, &ROOT, node, &mut buffer).unwrap();
    assert!(buffer[..listed].split(|&byte| byte == 0).any(|name| name == b"user.two"));
}

#[test]
fn changes_reach_a_copy_that_was_just_made_on_another_branch() {
    for older in [false, true] {
        pretend_older_kernel(older);
        every_pool(|made, branches, watched| {
            let (own, other) = (branches / 2, branches - 1);
            put(made.on(own, "d/f"), "content");
            let mut client = made.client();
            let dir = client.walk("d").unwrap().node;
            let node = client.walk("d/f").unwrap().node;
            know_names(made, dir);
            assert_changes_reach(made, node, "d/f", &[own]);
            if own != other {
                put(made.on(other, "d/f"), "other content");
                if watched {
                    ops::external_changes::tell(
                        &made.pool,
                        Change::Holders { dir, name: b"f" },
                        Client::Outside,
                    );
                }
                // The new copy does not have it: the shown copy's result counts.
                ops::attrs::xattr::removexattr(&made.pool, &ROOT, node, b"user.two").unwrap();
                assert_changes_reach(made, node, "d/f", &[own, other]);
            }
            client.end().unwrap();
        });
    }
    pretend_older_kernel(false);
}

/// The watcher may not have reported it yet.
#[test]
fn a_file_that_took_the_name_is_neither_changed_nor_read() {
    every_pool(|made, branches, _| {
        let own = branches - 1;
        put(made.on(own, "d/f"), "content");
        symlink("target", made.on(own, "d/l")).unwrap();
        let mut client = made.client();
        let dir = client.walk("d").unwrap().node;
        let (file, link) = (client.walk("d/f").unwrap().node, client.walk("d/l").unwrap().node);
        know_names(made, dir);
        assert_eq!(ops::names::lookup::readlink(&made.pool, link).unwrap(), b"target");
        put(made.on(own, "new"), "something else");
        chmod(&made.on(own, "new"), 0o751);
        rustix::fs::setxattr(made.on(own, "new"), "user.k", b"v", XattrFlags::empty()).unwrap();
        symlink("elsewhere", made.on(own, "newlink")).unwrap();
        fs::rename(made.on(own, "new"), made.on(own, "d/f")).unwrap();
        fs::rename(made.on(own, "newlink"), made.on(own, "d/l")).unwrap();
        let before = fs::metadata(made.on(own, "d/f")).unwrap();
        let stale = Err(Errno::STALE);
        assert_eq!(set(made, file, mode(0o600)).map(drop), stale);
        assert_eq!(set(made, file, SetAttr { uid: Some(1), ..SetAttr::default() }).map(drop), stale);
        assert_eq!(set(made, file, SetAttr { size: Some(0), ..SetAttr::default() }).map(drop), stale);
        let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        assert_eq!(set(made, file, now).map(drop), stale);
        let pool = &made.pool;
        assert_eq!(
            ops::attrs::xattr::setxattr(pool, &ROOT, file, b"user.n", b"", 0, false).map_err(Error::errno),
            stale
        );
        assert_eq!(ops::attrs::xattr::removexattr(pool, &ROOT, file, b"user.k").map_err(Error::errno), stale);
        assert_eq!(
            ops::attrs::xattr::getxattr(pool, file, b"user.k", &mut [0; 9]).map(drop).map_err(Error::errno),
            stale
        );
        assert_eq!(
            ops::attrs::xattr::listxattr(pool, &ROOT, file, &mut [0; 99]).map(drop).map_err(Error::errno),
            stale
        );
        assert_eq!(ops::names::lookup::readlink(pool, link).map(drop).map_err(Error::errno), stale);
        let after = fs::metadata(made.on(own, "d/f")).unwrap();
        assert_eq!((after.ctime(), after.ctime_nsec()), (before.ctime(), before.ctime_nsec()));
        client.end().unwrap();
    });
}

#[test]
fn a_file_is_found_by_another_of_its_names() {
    every_pool(|made, branches, watched| {
        let own = branches - 1;
        put(made.on(own, "d/f"), "content");
        fs::hard_link(made.on(own, "d/f"), made.on(own, "top")).unwrap();
        let mut client = made.client();
        let node = client.walk("top").unwrap().node;
        assert_eq!(client.walk("d/f").unwrap().node, node);
        let dir = client.walk("d").unwrap().node;
        know_names(made, dir);
        put(made.on(own, "new"), "something else");
        fs::rename(made.on(own, "new"), made.on(own, "d/f")).unwrap();
        if watched {
            ops::external_changes::tell(&made.pool, Change::Holders { dir, name: b"f" }, Client::Outside);
        }
        let kept = mode_of(&made.on(own, "d/f"));
        assert_changes_reach(made, node, "top", &[own]);
        assert_eq!(mode_of(&made.on(own, "d/f")), kept);
        client.end().unwrap();
    });
}

#[test]
fn a_file_whose_directory_has_moved_on_its_branch_is_not_confused_with_its_namesake() {
    every_pool(|made, branches, watched| {
        let own = branches - 1;
        put(made.on(own, "d/f"), "content");
        let mut client = made.client();
        let dir = client.walk("d").unwrap().node;
        let node = client.walk("d/f").unwrap().node;
        know_names(made, dir);
        fs::rename(made.on(own, "d"), made.on(own, "away")).unwrap();
        fs::create_dir(made.on(own, "d")).unwrap();
        put(made.on(own, "d/f"), "namesake");
        if watched {
            ops::external_changes::tell(&made.pool, Change::Places, Client::Outside);
            ops::external_changes::tell(
                &made.pool,
                Change::Holders { dir: NodeId::ROOT, name: b"d" },
                Client::Outside,
            );
        }
        assert_eq!(set(made, node, mode(0o600)).map(drop), Err(Errno::STALE));
        assert_eq!((mode_of(&made.on(own, "d/f")), mode_of(&made.on(own, "away/f"))), (0o644, 0o644));
        client.end().unwrap();
    });
}

#[test]
fn a_file_without_a_name_changes_by_what_holds_it() {
    every_pool(|made, branches, _| {
        for opened in [true, false] {
            let own = branches - 1;
            put(made.on(own, "d/f"), "content");
            let held = fs::File::open(made.on(own, "d/f")).unwrap();
            let mut client = made.client();
            let dir = client.walk("d").unwrap().node;
            let node = client.walk("d/f").unwrap().node;
            let handle =
                opened.then(|| ops::data::open::open(&made.pool, &ROOT, node, 2, false).unwrap().handle);
            ops::names::remove::unlink(&made.pool, dir, b"f").unwrap();
            // A new file of the same name is another file.
            put(made.on(own, "d/f"), "namesake");
            let before = mode_of(&made.on(own, "d/f"));
            for given in [handle, None] {
                assert_eq!(
                    ops::attrs::setattr::setattr(&made.pool, &ROOT, node, given, &mode(0o604)).unwrap().mode
                        & 0o7777,
                    0o604
                );
            }
            ops::attrs::xattr::setxattr(&made.pool, &ROOT, node, b"user.k", b"v", 0, false).unwrap();
            assert_eq!(ops::attrs::xattr::getxattr(&made.pool, node, b"user.k", &mut [0; 9]), Ok(1));
            assert_eq!(held.metadata().unwrap().mode() & 0o7777, 0o604);
            assert_eq!(mode_of(&made.on(own, "d/f")), before);
            if let Some(handle) = handle {
                ops::data::open::release(&made.pool, handle).unwrap();
            }
            fs::remove_file(made.on(own, "d/f")).unwrap();
            client.end().unwrap();
        }
    });
}

#[test]
fn an_open_file_changes_with_its_copies() {
    every_pool(|made, branches, _| {
        let (own, other) = (0, branches - 1);
        put(made.on(own, "d/f"), "content");
        if own != other {
            put(made.on(other, "d/f"), "other content");
        }
        let mut client = made.client();
        let dir = client.walk("d").unwrap().node;
        let node = client.walk("d/f").unwrap().node;
        know_names(made, dir);
        let handle = ops::data::open::open(&made.pool, &ROOT, node, 2, false).unwrap().handle;
        let attr = ops::attrs::setattr::setattr(&made.pool, &ROOT, node, Some(handle), &mode(0o604)).unwrap();
        assert_eq!(attr.mode & 0o7777, 0o604);
        assert_eq!((mode_of(&made.on(own, "d/f")), mode_of(&made.on(other, "d/f"))), (0o604, 0o604));
        // Data changes in the open file alone.
        let size = SetAttr { size: Some(1), ..SetAttr::default() };
        assert_eq!(
            ops::attrs::setattr::setattr(&made.pool, &ROOT, node, Some(handle), &size).unwrap().size,
            1
        );
        assert_eq!(text(made.on(own, "d/f")), "c");
        assert!(own == other || text(made.on(other, "d/f")) == "other content");
        ops::data::open::release(&made.pool, handle).unwrap();
        client.end().unwrap();
    });
}

/// While one branch alone has the directory, no other is asked about the names in it.
#[test]
fn an_open_file_changes_with_a_copy_whose_directory_was_just_made() {
    for watched in [true, false] {
        let made = made(&[Rw, Rw, Rw], watched);
        put(made.on(1, "d/sub/f"), "content");
        let mut client = made.client();
        let dir = client.walk("d").unwrap().node;
        let sub = client.walk("d/sub").unwrap().node;
        let node = client.walk("d/sub/f").unwrap().node;
        let handle = ops::data::open::open(&made.pool, &ROOT, node, 2, false).unwrap().handle;
        let change = |to| {
            ops::attrs::setattr::setattr(&made.pool, &ROOT, node, Some(handle), &mode(to)).unwrap().mode
                & 0o7777
        };
        assert_eq!((change(0o604), mode_of(&made.on(1, "d/sub/f"))), (0o604, 0o604));
        put(made.on(2, "d/sub/f"), "other content");
        if watched {
            ops::external_changes::tell(&made.pool, Change::Places, Client::Outside);
            ops::external_changes::tell(&made.pool, Change::Holders { dir, name: b"sub" }, Client::Outside);
            ops::external_changes::tell(
                &made.pool,
                Change::Holders { dir: sub, name: b"f" },
                Client::Outside,
            );
        }
        assert_eq!(change(0o640), 0o640);
        assert_eq!([1, 2].map(|branch| mode_of(&made.on(branch, "d/sub/f"))), [0o640, 0o640]);
        ops::data::open::release(&made.pool, handle).unwrap();
        client.end().unwrap();
    }
}

#[test]
fn a_copy_on_a_read_only_branch_stays_as_it_is() {
    for watched in [true, false] {
        let made = made(&[Rw, Ro, Rw], watched);
        for branch in [0, 1] {
            put(made.on(branch, "d/f"), "content");
        }
        put(made.on(1, "d/g"), "content");
        let mut client = made.client();
        let dir = client.walk("d").unwrap().node;
        let (both, sole) = (client.walk("d/f").unwrap().node, client.walk("d/g").unwrap().node);
        know_names(&made, dir);
        let kept = fs::metadata(made.on(1, "d/f")).unwrap();
        assert_changes_reach(&made, both, "d/f", &[0]);
        assert_eq!(fs::metadata(made.on(1, "d/f")).unwrap().ctime_nsec(), kept.ctime_nsec());
        let refused = Err(Errno::ROFS);
        assert_eq!(set(&made, sole, mode(0o600)).map(drop), refused);
        assert_eq!(set(&made, sole, SetAttr { size: Some(0), ..SetAttr::default() }).map(drop), refused);
        let attribute = ops::attrs::xattr::setxattr(&made.pool, &ROOT, sole, b"user.k", b"", 0, false);
        assert_eq!(attribute.map_err(Error::errno), refused);
        assert_eq!(text(made.on(1, "d/g")), "content");
        client.end().unwrap();
    }
}

#[test]
fn a_directory_changes_where_it_was_just_made() {
    for watched in [true, false] {
        let made = made(&[Rw, Rw, Rw], watched);
        fs::create_dir(made.on(1, "d/sub")).unwrap();
        let mut client = made.client();
        let dir = client.walk("d").unwrap().node;
        let node = client.walk("d/sub").unwrap().node;
        know_names(&made, dir);
        know_names(&made, node);
        assert_eq!(set(&made, node, mode(0o701)).unwrap().mode & 0o7777, 0o701);
        fs::create_dir(made.on(2, "d/sub")).unwrap();
        if watched {
            ops::external_changes::tell(&made.pool, Change::Places, Client::Outside);
            ops::external_changes::tell(&made.pool, Change::Holders { dir, name: b"sub" }, Client::Outside);
        }
        let attr = set(&made, node, SetAttr { gid: Some(7), ..mode(0o705) }).unwrap();
        assert_eq!((attr.mode & 0o7777, attr.gid), (0o705, 7));
        ops::attrs::xattr::setxattr(&made.pool, &ROOT, node, b"user.k", b"v", 0, false).unwrap();
        for branch in [1, 2] {
            assert_eq!(mode_of(&made.on(branch, "d/sub")), 0o705, "branch {branch}");
            let found = rustix::fs::getxattr(made.on(branch, "d/sub"), "user.k", &mut [0; 9][..]);
            assert_eq!(found, Ok(1), "branch {branch}");
        }
        assert_eq!(ops::attrs::xattr::getxattr(&made.pool, node, b"user.k", &mut [0; 9]), Ok(1));
        // A directory that was removed meanwhile.
        ops::names::remove::rmdir(&made.pool, dir, b"sub").unwrap();
        assert_eq!(set(&made, node, mode(0o700)).unwrap().mode & 0o7777, 0o700);
        client.end().unwrap();
    }
}

/// Requests on these may wait in the line of their branch.
#[test]
fn a_directory_is_cached_once_several_of_its_files_were_searched_for() {
    for watched in [true, false] {
        let made = made(&[Rw; MANY], watched);
        let last = MANY - 1;
        let files = [("d", "f"), ("d", "g"), ("e", "h")];
        for (dir, name) in files {
            put(made.on(last, &format!("{dir}/{name}")), "x");
        }
        let nodes = files.map(|(dir, name)| {
            let dir = ops::names::lookup::lookup(&made.pool, NodeId::ROOT, dir.as_bytes()).unwrap().node;
            ops::names::lookup::lookup(&made.pool, dir, name.as_bytes()).unwrap().node
        });
        let cached = || ops::tally::tally(&made.pool).cached_dirs;
        let search = |number: usize| {
            assert_eq!(ops::names::lookup::getattr(&made.pool, nodes[number], None).unwrap().size, 1)
        };
        ops::external_changes::tell(&made.pool, Change::Missed, Client::Outside);
        assert_eq!(cached(), 0);
        // One of each directory in turn: nothing says that there will be others.
        [0, 2, 1, 2, 0].into_iter().for_each(search);
        assert_eq!(cached(), 0);
        [1, 2].into_iter().for_each(search);
        assert_eq!(cached() > 0, watched);
        ops::external_changes::tell(
            &made.pool,
            Change::Holders { dir: NodeId::ROOT, name: b"d" },
            Client::Outside,
        );
        fs::remove_file(made.on(last, "d/g")).unwrap();
        assert_eq!(ops::names::lookup::getattr(&made.pool, nodes[1], None).err(), Some(Error::Stale));
    }
}

#[test]
fn a_directory_is_cached_once_one_of_its_files_was_searched_for_again_and_again() {
    let made = made(&[Rw; MANY], true);
    put(made.on(MANY - 1, "d/f"), "x");
    let dir = ops::names::lookup::lookup(&made.pool, NodeId::ROOT, b"d").unwrap().node;
    let node = ops::names::lookup::lookup(&made.pool, dir, b"f").unwrap().node;
    ops::external_changes::tell(&made.pool, Change::Missed, Client::Outside);
    let search = || ops::names::lookup::getattr(&made.pool, node, None).map(drop).unwrap();
    // As a player does before it plays a film.
    (0..4).for_each(|_| search());
    assert_eq!(ops::tally::tally(&made.pool).cached_dirs, 0);
    (0..8).for_each(|_| search());
    assert!(ops::tally::tally(&made.pool).cached_dirs > 0);
}

#[test]
fn the_only_branch_of_open_files_and_directories_is_known() {
    let made = made(&[Rw, Rw], true);
    fs::create_dir(made.on(1, "own")).unwrap();
    put(made.on(1, "own/f"), "content");
    let ids: Vec<_> = ops::settings::branches(&made.pool).iter().map(|branch| branch.id).collect();
    let mut client = made.client();
    let [on_both, own, file] = ["d", "own", "own/f"].map(|path| client.walk(path).unwrap().node);
    [on_both, own].into_iter().for_each(|dir| know_names(&made, dir));
    let known = |node| ops::branch_deadlines::only_branch_of(&made.pool, node);
    assert_eq!([known(own), known(on_both), known(file)], [Some(ids[1]), None, None]);
    let opened = ops::data::open::open(&made.pool, &ROOT, file, 0, false).unwrap();
    assert_eq!(known(file), Some(ids[1]));
    ops::data::open::release(&made.pool, opened.handle).unwrap();
    assert_eq!(known(file), None);
    fs::create_dir(made.on(0, "own")).unwrap();
    ops::external_changes::tell(&made.pool, Change::Places, Client::Outside);
    assert_eq!(known(own), None);
}

#[test]
fn a_name_that_is_too_long_for_the_branches_is_refused_as_such() {
    every_pool(|made, branches, watched| {
        let dir = ops::names::lookup::lookup(&made.pool, NodeId::ROOT, b"d").unwrap().node;
        let name = |length| vec![b'n'; length];
        for known in [false, true] {
            let what = format!("{branches} branches, watched: {watched}, known: {known}");
            assert_eq!(
                ops::names::lookup::lookup(&made.pool, dir, &name(255)).err(),
                Some(Error::Absent),
                "{what}"
            );
            for length in [256, 1024] {
                let answer = ops::names::lookup::lookup(&made.pool, dir, &name(length))
                    .map(|_| ())
                    .map_err(Error::errno);
                assert_eq!(answer, Err(Errno::NAMETOOLONG), "{what}");
            }
            know_names(made, dir);
        }
    });
}
