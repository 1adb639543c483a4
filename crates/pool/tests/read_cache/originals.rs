//! The originals of copies are kept in memory, so that opening them asks no disk, and hold nothing back.

use super::{RESTS, Rig, rig};
use canopy_policy::placement::Pattern;
use canopy_policy::read_cache::{Room, When};
use canopy_policy::trash::{Keep, TrashRule, TrashRules};
use canopy_pool::config::Config;
use canopy_pool::ops;
use std::fs;
use std::time::Duration;

/// Returns the descriptors of this process that lead to a file of the branch, whether it still has a name or not.
fn descriptors(rig: &Rig, name: &str) -> Vec<String> {
    let path = rig.made.on(0, name).to_str().unwrap().to_owned();
    let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = all.filter_map(|entry| fs::read_link(entry.path()).ok()?.into_os_string().into_string().ok());
    links.filter(|link| link.starts_with(&path)).collect()
}

#[test]
fn the_original_of_a_copy_stays_in_memory_until_it_goes() {
    let rig = rig(Room::Size(1 << 20), When::Opened, &["films/a", "films/b", "films/c"]);
    // For each file: twice to read it, and once more below.
    let lookups = 3;
    for name in ["films/a", "films/b", "films/c"] {
        assert_eq!(rig.content(name), "original");
        rig.tend();
        assert_eq!(descriptors(&rig, name).len(), 1, "{name} has been copied");
        assert_eq!(rig.content(name), "original");
        assert_eq!(descriptors(&rig, name).len(), 1, "one is enough for {name}");
    }
    // Through the pool its room is there at once.
    let dir = rig.node("films");
    let node = rig.node("films/a");
    ops::names::remove::unlink(&rig.made.pool, dir, b"a").unwrap();
    // The pool keeps it for whoever has looked it up.
    ops::names::lookup::forget(&rig.made.pool, node, lookups);
    assert_eq!(descriptors(&rig, "films/a"), [""; 0]);
    // A change on the branch is noticed in the next round. Who has another name stays.
    fs::hard_link(rig.made.on(0, "films/c"), rig.made.on(0, "films/d")).unwrap();
    fs::remove_file(rig.made.on(0, "films/b")).unwrap();
    fs::remove_file(rig.made.on(0, "films/c")).unwrap();
    rig.tend();
    assert_eq!(descriptors(&rig, "films/b"), [""; 0]);
    assert_eq!(descriptors(&rig, "films/c").len(), 1);
    // Who drops the copy does not want the file.
    ops::read_cache::drop_copies(&rig.made.pool, |_| true);
    assert_eq!(descriptors(&rig, "films/c"), [""; 0]);
}

/// The trash makes room by removing files, which has to be there then.
#[test]
fn what_goes_to_the_trash_is_not_kept_in_memory() {
    let rig = rig(Room::Size(1 << 20), When::Opened, &["films/a"]);
    let config = Config::clone(&rig.made.pool.config());
    let trash = TrashRules(vec![TrashRule {
        path: Pattern::new("**").unwrap(),
        except: vec![],
        keep: Keep::For(Duration::from_secs(3600)),
        overwritten: false,
        alarm: None,
    }]);
    ops::settings::reconfigure(&rig.made.pool, Config { trash, ..config });
    rig.cache("films/a");
    let trashed = || {
        let home = rig.made.on(0, ".canopy-trash");
        let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let links = all.filter_map(|entry| fs::read_link(entry.path()).ok());
        links.filter(|link| link.starts_with(&home) && link.ends_with("films/a")).count()
    };
    let (dir, node) = (rig.node("films"), rig.node("films/a"));
    ops::names::remove::unlink(&rig.made.pool, dir, b"a").unwrap();
    assert_eq!(fs::read_dir(rig.made.on(0, ".canopy-trash")).unwrap().count(), 1);
    ops::names::lookup::forget(&rig.made.pool, node, 3);
    assert_eq!(trashed(), 0);
}

#[test]
fn the_next_process_keeps_it_from_the_first_open_on() {
    let rig = rig(Room::Size(1 << 20), When::Opened, &["films/a"]);
    rig.cache("films/a");
    let rig = rig.of_the_next_process(When::Opened);
    std::thread::sleep(RESTS);
    assert_eq!(descriptors(&rig, "films/a"), [""; 0]);
    assert_eq!(rig.content("films/a"), "the copy");
    assert_eq!(descriptors(&rig, "films/a").len(), 1);
    assert_eq!(rig.content("films/a"), "the copy");
}
