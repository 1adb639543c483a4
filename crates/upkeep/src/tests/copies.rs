//! Commands about copies: several of one file, their checksums, and what differs.

use super::parsed;
use crate::double::TestPool;
use crate::{Error, copies, dedup, dup, verify};
use std::fs;

fn at(pool: &TestPool) -> String {
    pool.mountpoint().to_str().unwrap().to_owned()
}

/// Puts the same file on two branches.
fn twins(pool: &TestPool, path: &str, content: &[u8]) {
    pool.put(0, path, content);
    pool.put(1, path, content);
    let [one, other] = [0, 1].map(|at| pool.branch(at).join(path));
    let time = fs::metadata(one).unwrap().modified().unwrap();
    fs::File::options().write(true).open(other).unwrap().set_modified(time).unwrap();
}

#[test]
fn one_of_equal_copies_goes() {
    let pool = TestPool::new(2, "");
    twins(&pool, "d/f", b"content");
    dedup(&parsed(&[&at(&pool)])).unwrap_err();
    assert_eq!(pool.holders("d/f"), [0, 1], "nobody has said yes");
    dedup(&parsed(&[&at(&pool), "--yes"])).unwrap();
    assert_eq!(pool.holders("d/f").len(), 1);
    assert_eq!(pool.kernel().read("d/f").unwrap(), b"content");
}

#[test]
fn copies_that_differ_stay() {
    let pool = TestPool::new(2, "");
    pool.put(0, "f", b"one");
    pool.put(1, "f", b"two");
    let _ = dedup(&parsed(&[&at(&pool), "--yes"]));
    assert_eq!(pool.holders("f"), [0, 1]);
    let second = pool.branch(1).to_str().unwrap().to_owned();
    dedup(&parsed(&[&at(&pool), "--keep", &second, "--differing", "--yes"])).unwrap();
    assert_eq!(pool.holders("f"), [1]);
}

#[test]
fn on_one_disk_no_second_copy_is_made() {
    let pool = TestPool::new(2, "");
    pool.put(0, "f", b"content");
    let made = dup(&parsed(&[&at(&pool), "f"]));
    assert!(matches!(made, Err(Error::NotCopied(1))), "{made:?}");
    assert_eq!(pool.holders("f"), [0]);
}

#[test]
fn damage_is_found_and_mended() {
    let pool = TestPool::new(2, "");
    twins(&pool, "f", b"content");
    verify(&parsed(&[&at(&pool), "--yes", "--eager"])).unwrap();
    verify(&parsed(&[&at(&pool), "--dry-run", "--eager"])).unwrap();
    // Bytes rot: no time changes.
    let rotten = pool.branch(1).join("f");
    let time = fs::metadata(&rotten).unwrap().modified().unwrap();
    fs::write(&rotten, b"CONTENT").unwrap();
    fs::File::options().write(true).open(&rotten).unwrap().set_modified(time).unwrap();
    let found = verify(&parsed(&[&at(&pool), "--dry-run", "--eager"]));
    assert!(found.is_err() && fs::read(&rotten).unwrap() == b"CONTENT", "{found:?}");
    let mended = verify(&parsed(&[&at(&pool), "--yes", "--eager"]));
    assert_eq!(fs::read(&rotten).unwrap(), b"content", "{mended:?}");
    verify(&parsed(&[&at(&pool), "--dry-run", "--eager"])).unwrap();
}

#[test]
fn nothing_was_set_aside_in_a_new_pool() {
    let pool = TestPool::new(2, "");
    copies(&parsed(&[&at(&pool), "--json"])).unwrap();
    let back = copies(&parsed(&[&at(&pool), "--put-back", "/nowhere"]));
    assert!(back.is_err());
}
