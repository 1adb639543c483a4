//! Commands that move files.

use super::parsed;
use crate::double::TestPool;
use crate::{Error, drain, move_files, tier};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

/// The pool and a branch, as words.
fn words(pool: &TestPool, branch: usize) -> [String; 2] {
    [pool.mountpoint(), pool.branch(branch).to_owned()].map(|path| path.to_str().unwrap().to_owned())
}

#[test]
fn a_file_moves_with_all_its_names() {
    let pool = TestPool::new(3, "");
    pool.put(0, "d/f", b"content");
    fs::hard_link(pool.branch(0).join("d/f"), pool.branch(0).join("g")).unwrap();
    let [at, to] = words(&pool, 2);
    move_files(&parsed(&[&at, "d/f", "--to", &to])).unwrap();
    assert_eq!((pool.holders("d/f"), pool.holders("g")), (vec![2], vec![2]));
    let stat = |name: &str| fs::metadata(pool.branch(2).join(name)).unwrap();
    assert_eq!((stat("g").nlink(), stat("g").ino()), (2, stat("d/f").ino()));
    assert_eq!(pool.kernel().read("g").unwrap(), b"content");
}

#[test]
fn a_directory_moves_with_all_below() {
    let pool = TestPool::new(2, "");
    pool.put(0, "d/e/f", b"1");
    pool.put(0, "d/g", b"2");
    pool.put(0, "other", b"3");
    symlink("g", pool.branch(0).join("d/link")).unwrap();
    let [at, to] = words(&pool, 1);
    move_files(&parsed(&[&at, "d", "--to", &to])).unwrap();
    for name in ["d/e/f", "d/g", "d/link"] {
        assert_eq!(pool.holders(name), [1], "{name}");
    }
    assert_eq!(pool.holders("other"), [0]);
}

#[test]
fn a_dry_run_moves_nothing() {
    let pool = TestPool::new(2, "");
    pool.put(0, "f", b"content");
    let [at, to] = words(&pool, 1);
    move_files(&parsed(&[&at, "f", "--to", &to, "--dry-run", "--json"])).unwrap();
    assert_eq!(pool.holders("f"), [0]);
}

#[test]
fn what_is_open_for_writing_stays() {
    let pool = TestPool::new(2, "");
    let file = pool.kernel().create("f", 0o1).unwrap();
    let [from] = pool.holders("f")[..] else { panic!("on one branch") };
    let [at, to] = words(&pool, 1 - from);
    let moved = move_files(&parsed(&[&at, "f", "--to", &to]));
    assert!(matches!(moved, Err(Error::Left(1, 1))), "{moved:?}");
    assert_eq!(pool.holders("f"), [from]);
    pool.kernel().close(file);
    move_files(&parsed(&[&at, "f", "--to", &to])).unwrap();
    assert_eq!(pool.holders("f"), [1 - from]);
}

#[test]
fn a_branch_is_emptied_and_removed() {
    let pool = TestPool::new(3, "");
    for number in 0..20 {
        pool.put(1, &format!("d/{number}"), &[number]);
    }
    pool.put(0, "stays", b"here");
    let [at, branch] = words(&pool, 1);
    let removed = std::cell::RefCell::new(Vec::new());
    let remove = |pool: &Path, rest: &std::ffi::OsStr| {
        removed.borrow_mut().push((pool.to_owned(), rest.to_owned()));
        Ok(())
    };
    drain(&parsed(&[&at, &branch, "--remove", "--yes"]), &remove).unwrap();
    assert_eq!(fs::read_dir(pool.branch(1)).unwrap().count(), 0);
    for number in 0..20 {
        assert_eq!(pool.kernel().read(&format!("d/{number}")).unwrap(), [number]);
    }
    let removed = removed.into_inner();
    let [(of, rest)] = &removed[..] else { panic!("{removed:?}") };
    assert_eq!(of, &pool.mountpoint());
    assert!(!rest.to_str().unwrap().contains(&branch), "{rest:?}");
}

#[test]
fn a_branch_that_is_read_only_is_not_drained() {
    let pool = TestPool::new(2, "");
    let [first, second] = [0, 1].map(|at| pool.branch(at).to_str().unwrap().to_owned());
    let value = format!("{first}=RO:{second}=RW");
    pool.kernel().set_xattr(".mergerfs", "user.mergerfs.branches", value.as_bytes()).unwrap();
    pool.put(0, "f", b"content");
    let at = pool.mountpoint();
    let drained = drain(&parsed(&[at.to_str().unwrap(), &first]), &|_, _| Ok(()));
    assert!(matches!(drained, Err(Error::Branch { .. })), "{drained:?}");
    assert_eq!(pool.holders("f"), [0]);
}

#[test]
fn a_rule_places_files() {
    let pool = TestPool::new(2, "");
    pool.put(0, "films/f", b"1");
    pool.put(0, "music/g", b"2");
    let second = pool.branch(1).to_str().unwrap();
    let rule = format!("films/**={second}");
    pool.kernel().set_xattr(".mergerfs", "user.mergerfs.rules", rule.as_bytes()).unwrap();
    let [at, _] = words(&pool, 0);
    tier(&parsed(&[&at, "--once", "--now", "--eager"])).unwrap();
    assert_eq!((pool.holders("films/f"), pool.holders("music/g")), (vec![1], vec![0]));
}

#[test]
fn what_is_not_of_the_pool_is_refused() {
    let pool = TestPool::new(2, "");
    let [at, _] = words(&pool, 0);
    let nowhere = move_files(&parsed(&[&at, "f", "--to", "/nowhere"]));
    assert!(matches!(nowhere, Err(Error::NoBranch { .. })), "{nowhere:?}");
    let to = pool.branch(1).to_str().unwrap();
    let missing = move_files(&parsed(&[&at, "missing", "--to", to]));
    assert!(matches!(missing, Err(Error::Path { .. })), "{missing:?}");
}
