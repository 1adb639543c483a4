use super::rows::tests::row;
use super::*;

const DIR: u64 = 77;

fn open(bound: u64) -> Catalogue {
    let catalogue = Catalogue::default();
    catalogue.open(tempfile::tempfile().unwrap(), bound, Rules::default());
    catalogue.allow(true);
    catalogue
}

fn handle(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

fn hash(number: u64) -> u64 {
    handle_hash(&handle(number))
}

/// Tells of a name in a directory, or of its target alone.
fn change(catalogue: &Catalogue, entry: Option<(u64, &str)>, target: Option<u64>, names: bool, on_dir: bool) {
    let (dir, file) = (entry.map(|(dir, _)| handle(dir)), target.map(handle));
    let entry = dir.as_ref().zip(entry).map(|(dir, (_, name))| (&dir[..], name.as_bytes()));
    catalogue.changed(Reported { entry, target: file.as_ref().map(|file| &file[..]), names, on_dir });
}

/// Learns of a directory at a path, in directories with the numbers that follow its own, with files of these numbers.
fn learn(catalogue: &Catalogue, path: &str, dir: u64, files: &[u64], since: u64) {
    let file = |number: &u64| row(&format!("f{number}"), 100 + number, since, &[hash(*number)]);
    let above = catalogue.unknown_above(path.as_bytes());
    catalogue.learn_names(Listed {
        path: path.as_bytes().into(),
        handles: Handles::from_slice(&[hash(dir)]),
        rows: files.iter().map(file).collect(),
        above: above
            .into_iter()
            .zip(dir + 1..)
            .map(|(path, dir)| (path, Handles::from_slice(&[hash(dir)])))
            .collect(),
        since,
    });
}

fn is_there(catalogue: &Catalogue, path: &str, name: &str) -> Option<bool> {
    match catalogue.find(path.as_bytes(), name.as_bytes()) {
        Found::Unknown => None,
        Found::Absent => Some(false),
        Found::There(_) => Some(true),
    }
}

#[test]
fn what_was_learnt_is_known_until_it_changes() {
    let catalogue = open(1 << 20);
    assert_eq!(is_there(&catalogue, "a", "f1"), None);
    learn(&catalogue, "a", DIR, &[1, 2, 3], catalogue.now());
    let known = |name: &str| is_there(&catalogue, "a", name);
    assert_eq!((known("f1"), known("f4")), (Some(true), Some(false)));
    assert!(catalogue.page(b"a", 0, |_| true).is_some_and(|page| page.rows.len() == 3));
    assert!(catalogue.page(b"a", 102, |_| true).is_some_and(|page| &*page.rows[0].name == b"f3"));
    assert!(catalogue.page(b"a", 5, |_| true).is_none(), "a position of another listing");
    // By whatever name a file is changed.
    change(&catalogue, Some((9, "elsewhere")), Some(1), false, false);
    assert_eq!((known("f1"), known("f2"), known("f4")), (None, Some(true), Some(false)));
    assert!(catalogue.page(b"a", 0, |_| true).unwrap().rows[0].facts.is_none());
    change(&catalogue, Some((DIR, "f4")), Some(4), true, false);
    assert_eq!((known("f4"), known("f2"), known("f5")), (None, Some(true), Some(false)));
    assert!(catalogue.page(b"a", 0, |_| true).is_none());
    // A name that was removed is asked for, and so is one that was made again.
    change(&catalogue, Some((DIR, "f2")), Some(2), true, false);
    assert_eq!(known("f2"), None);
    let Some(facts) = row("f2", 2, catalogue.now(), &[hash(20)]).facts else { unreachable!() };
    let is_file = |facts: &Facts| Facts {
        attr: canopy_branch::fs::stat::Attr { mode: 0o100_000, ..facts.attr },
        ..facts.clone()
    };
    catalogue.learn(b"a", b"f2", is_file(&facts));
    assert_eq!(known("f2"), Some(true));
    catalogue.clear();
    assert_eq!(known("f3"), None);
}

#[test]
fn what_changes_while_it_is_looked_at_is_not_learnt() {
    for change_meanwhile in [
        &(|it: &Catalogue| change(it, Some((DIR, "new")), Some(5), true, false)) as &dyn Fn(&Catalogue),
        &|it| change(it, Some((1000, "dir")), Some(6), true, true),
        &Catalogue::clear,
    ] {
        let catalogue = open(1 << 20);
        let since = catalogue.now();
        change_meanwhile(&catalogue);
        learn(&catalogue, "a", DIR, &[1], since);
        assert_eq!(is_there(&catalogue, "a", "f1"), None);
        learn(&catalogue, "a", DIR, &[1], catalogue.now());
        assert_eq!(is_there(&catalogue, "a", "f1"), Some(true));
    }
}

#[test]
fn a_directory_that_comes_or_goes_makes_all_below_unknown() {
    let catalogue = open(1 << 20);
    for name in ["b", "x"] {
        learn(&catalogue, "a", 10, &[1], catalogue.now());
        learn(&catalogue, "a/b", 20, &[2], catalogue.now());
        learn(&catalogue, "a/b/c", 30, &[3], catalogue.now());
        learn(&catalogue, "a/bc", 40, &[4], catalogue.now());
        change(&catalogue, Some((10, name)), None, true, true);
        let stays = (name == "x").then_some(true);
        assert_eq!(is_there(&catalogue, "a/b", "f2"), stays);
        assert_eq!(is_there(&catalogue, "a/b/c", "f3"), stays);
        assert_eq!(is_there(&catalogue, "a/bc", "f4"), Some(true));
        assert_eq!(is_there(&catalogue, "a", "f1"), Some(true));
    }
}

#[test]
fn a_file_that_changes_unreported_is_asked_for() {
    let catalogue = open(1 << 20);
    let known = || is_there(&catalogue, "", "f1");
    catalogue.unreported(&handle(1), true);
    learn(&catalogue, "", DIR, &[1, 2], catalogue.now());
    assert_eq!((known(), is_there(&catalogue, "", "f2")), (None, Some(true)));
    for ends in [&(|| catalogue.unreported(&handle(1), false)) as &dyn Fn(), &|| catalogue.all_reported()] {
        ends();
        assert_eq!(known(), None, "it has changed");
        learn(&catalogue, "", DIR, &[1, 2], catalogue.now());
        assert_eq!(known(), Some(true));
        catalogue.unreported(&handle(1), true);
        assert_eq!(known(), None);
    }
}

#[test]
fn where_not_all_is_reported_nothing_is_known() {
    let catalogue = open(1 << 20);
    learn(&catalogue, "", DIR, &[1], catalogue.now());
    catalogue.allow(true);
    assert_eq!(is_there(&catalogue, "", "f1"), Some(true));
    catalogue.allow(false);
    assert_eq!(is_there(&catalogue, "", "f1"), None);
    catalogue.allow(true);
    assert_eq!(is_there(&catalogue, "", "f1"), None);
}

#[test]
fn attributes_are_learnt_when_no_more_blocks_come_or_go_unseen() {
    let catalogue = open(1 << 20);
    for (rested, data_on, learnt) in [
        (9, None, false),
        (10, None, true),
        (59, Some(magic::EXT), false),
        (60, Some(magic::BTRFS), true),
        (659, Some(magic::XFS), false),
        (660, Some(magic::XFS), true),
        (-1, None, false),
    ] {
        assert_eq!(catalogue.lasting(rested, data_on).is_some(), learnt, "{rested} {data_on:?}");
    }
    catalogue.allow(false);
    assert_eq!(catalogue.lasting(10_000, None), None);
}

/// With more rows than are kept unpacked, and more than the store has room for: what was used last is known, and what is
/// known is right.
#[test]
fn what_is_not_used_makes_room() {
    const DIRS: u64 = 200;
    const FILES: u64 = 1000;
    let catalogue = open(4 << 20);
    let files = |dir: u64| (dir * FILES..(dir + 1) * FILES).collect::<Vec<_>>();
    for dir in 0..DIRS {
        learn(&catalogue, &format!("d{dir}"), 10_000_000 + 10 * dir, &files(dir), catalogue.now());
        assert_eq!(is_there(&catalogue, "d0", "f7"), Some(true), "it is used all the time");
    }
    let known = (0..DIRS).filter(|dir| {
        let name = format!("d{dir}");
        match is_there(&catalogue, &name, &format!("f{}", dir * FILES + 5)) {
            None => false,
            Some(there) => {
                assert!(there && is_there(&catalogue, &name, "f9999999") == Some(false));
                true
            }
        }
    });
    let known = known.count() as u64;
    assert!((40..DIRS).contains(&known), "{known}");
    let extents = catalogue.extents().unwrap();
    assert!(extents.directories == DIRS + 1 && extents.bytes <= 4 << 20, "{extents:?}");
}
