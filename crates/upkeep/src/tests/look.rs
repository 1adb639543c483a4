//! Commands that only look.

use super::parsed;
use crate::double::TestPool;
use crate::{Error, du, lost, ls, which};

#[test]
fn what_is_there_is_found_and_what_is_not_is_told() {
    let pool = TestPool::new(2, "");
    pool.put(0, "d/f", b"1");
    pool.put(1, "d/g", b"2");
    let path = |inside: &str| pool.mountpoint().join(inside).to_str().unwrap().to_owned();
    which(&parsed(&[&path("d/f"), &path("d")])).unwrap();
    which(&parsed(&[&path("d/f"), "--json"])).unwrap();
    let none = which(&parsed(&[&path("d/f"), &path("none")]));
    assert!(matches!(none, Err(Error::Incomplete { failed: 1, all: 2 })), "{none:?}");
    for words in [vec!["-R"], vec!["--json"], vec![]] {
        ls(&parsed(&[&[path("").as_str()], &words[..]].concat())).unwrap();
    }
    assert!(ls(&parsed(&[&path("none")])).is_err());
    for words in [vec!["--depth", "2"], vec!["--json", "--apparent-size"], vec![]] {
        du(&parsed(&[&[path("").as_str()], &words[..]].concat())).unwrap();
    }
}

#[test]
fn without_memory_nobody_knows_what_a_branch_held() {
    let pool = TestPool::new(2, "");
    let [at, branch] =
        [pool.mountpoint(), pool.branch(0).to_owned()].map(|path| path.to_str().unwrap().to_owned());
    assert!(lost(&parsed(&[&at, &branch])).is_err());
    assert!(lost(&parsed(&[&at, "/nowhere"])).is_err());
}
