//! Copies that were asked for.

use super::*;
use canopy_pool::ops::read_cache::{AddState, Refusal, add, drop_copies, list};

/// Asks for a copy until there is an answer.
fn ask(rig: &Rig, path: &str) -> AddState {
    loop {
        match add(&rig.made.pool, path.as_bytes()) {
            AddState::Waits { .. } | AddState::Copying { .. } => rig.tend(),
            state => return state,
        }
    }
}

fn paths(rig: &Rig) -> Vec<String> {
    let text = |path: &[u8]| String::from_utf8(path.to_vec()).unwrap();
    let mut all: Vec<_> = list(&rig.made.pool).iter().map(|copy| text(&copy.path)).collect();
    all.sort();
    all
}

#[test]
fn only_what_was_added_has_a_copy_until_it_is_dropped() {
    let rig = rig(Room::Size(1 << 20), When::Added, &["films/a", "films/b", "c"]);
    rig.content("films/b");
    rig.tend();
    assert!(rig.copies().is_empty());
    assert_eq!(ask(&rig, "films/a"), AddState::Cached { size: 8 });
    assert_eq!(ask(&rig, "films/a"), AddState::Cached { size: 8 });
    fs::write(&rig.copies()[0], "the copy").unwrap();
    assert_eq!(rig.content("films/a"), "the copy");
    let [copy] = &list(&rig.made.pool)[..] else { panic!("one copy") };
    assert_eq!((&copy.path[..], copy.size, copy.hits, copy.added), (&b"films/a"[..], 8, 1, false));
    assert!(copy.used > 0 && copy.dir == rig.ssd.path());
    let absent = Refusal::Failed(rustix::io::Errno::NOENT);
    for (path, why) in [("c", Refusal::NoCache), ("films", Refusal::NoCache), ("films/none", absent)] {
        assert_eq!(ask(&rig, path), AddState::Refused(why), "{path}");
    }
    assert_eq!(drop_copies(&rig.made.pool, |path| path == b"films/none"), (0, 0));
    assert_eq!(drop_copies(&rig.made.pool, |path| path == b"films/a").0, 1);
    assert!(rig.copies().is_empty() && list(&rig.made.pool).is_empty());
    assert_eq!(rig.content("films/a"), "original");
}

#[test]
fn what_was_added_stays_until_it_was_read_and_takes_nothing_of_its_kind_away() {
    // Copies take whole blocks.
    let rig = rig(Room::Size(4096 + 8), When::Opened, &["films/a", "films/b"]);
    assert_eq!(ask(&rig, "films/a"), AddState::Cached { size: 8 });
    let full = AddState::Refused(Refusal::Failed(rustix::io::Errno::NOSPC));
    assert_eq!(ask(&rig, "films/b"), full);
    rig.content("films/b");
    rig.tend();
    assert_eq!(paths(&rig), ["films/a"]);
    rig.content("films/a");
    assert_eq!(ask(&rig, "films/b"), AddState::Cached { size: 8 });
    assert_eq!(paths(&rig), ["films/b"]);
}

#[test]
fn the_next_process_knows_what_was_added_and_its_path() {
    let rig = rig(Room::Size(1 << 20), When::Added, &["films/a"]);
    ask(&rig, "films/a");
    rig.tend();
    let rig = rig.of_the_next_process(When::Added);
    let [copy] = &list(&rig.made.pool)[..] else { panic!("one copy") };
    assert!(copy.added && copy.path == b"films/a", "{copy:?}");
}
