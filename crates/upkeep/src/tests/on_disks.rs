//! What depends on which disks the branches are on. Mounting them needs root.

use super::parsed;
use crate::double::TestPool;
use crate::{balance, consolidate, dedup, dup, tier};

fn at(pool: &TestPool) -> String {
    pool.mountpoint().to_str().unwrap().to_owned()
}

#[test]
fn a_directory_is_brought_together_where_most_of_it_is() {
    let pool = TestPool::on_disks(3, "");
    pool.put(0, "album/1", b"1");
    pool.put(1, "album/2", &[0; 9000]);
    pool.put(2, "album/3", b"3");
    pool.put(2, "else", b"4");
    let at = at(&pool);
    consolidate(&parsed(&[&at, "album"])).unwrap();
    for name in ["album/1", "album/2", "album/3"] {
        assert_eq!(pool.holders(name), [1], "{name}");
    }
    assert_eq!(pool.holders("else"), [2]);
}

#[test]
fn disks_become_evenly_full() {
    let pool = TestPool::on_disks(2, "");
    for number in 0..20 {
        pool.put(0, &format!("d/{number}"), &vec![number; 2 << 20]);
    }
    let at = at(&pool);
    balance(&parsed(&[&at, "--to", "10%", "--dry-run"])).unwrap();
    assert!(pool.holders("d") == [0], "a dry run moves nothing");
    balance(&parsed(&[&at, "--to", "10%", "--eager"])).unwrap();
    let on_second = (0..20).filter(|number| pool.holders(&format!("d/{number}")) == [1]).count();
    assert!((8..=12).contains(&on_second), "{on_second} of 20");
    balance(&parsed(&[&at, "--to", "10%", "--json"])).unwrap();
}

#[test]
fn files_leave_a_tier_that_is_too_full() {
    let pool = TestPool::on_disks(2, "");
    let [first, second] = [0, 1].map(|at| pool.branch(at).to_str().unwrap().to_owned());
    let tiers = format!("fast={first}|fuller than 50%;slow={second}");
    pool.kernel().set_xattr(".mergerfs", "user.mergerfs.tiers", tiers.as_bytes()).unwrap();
    for number in 0..20 {
        pool.put(0, &format!("{number}"), &vec![number; 2 << 20]);
    }
    let at = at(&pool);
    tier(&parsed(&[&at, "--once", "--now", "--eager"])).unwrap();
    let left = (0..20).filter(|number| pool.holders(&number.to_string()) == [0]).count();
    assert!((1..=16).contains(&left), "{left} of 20 stay: less than half of 64 MiB");
}

#[test]
fn a_rule_makes_copies() {
    let pool = TestPool::on_disks(3, "");
    pool.put(0, "d/f", b"content");
    pool.kernel().set_xattr(".mergerfs", "user.mergerfs.rules", b"**=copies 2").unwrap();
    let at = at(&pool);
    tier(&parsed(&[&at, "--once", "--now", "--eager"])).unwrap();
    assert_eq!(pool.holders("d/f").len(), 2);
    pool.kernel().unlink("d/f").unwrap();
    assert!(pool.holders("d/f").is_empty());
}

#[test]
fn a_second_copy_is_made_on_another_disk() {
    let pool = TestPool::on_disks(3, "");
    pool.put(0, "d/f", b"content");
    dup(&parsed(&[&at(&pool), "d", "--copies", "3", "--eager"])).unwrap();
    assert_eq!(pool.holders("d/f"), [0, 1, 2]);
    dedup(&parsed(&[&at(&pool), "--copies", "2", "--yes"])).unwrap();
    assert_eq!(pool.holders("d/f").len(), 2);
}
