//! What the next mount makes of the state that a crash leaves, at every step of a move.

use super::*;
use canopy_branch::branch::BranchSpec;
use canopy_pool::ops;
use canopy_testkit::files::put;
use std::path::Path;

/// Writes the journal entry of a move of `names` from the first to the second branch, and returns its path.
fn journal_entry(disks: &Disks, names: &[&str]) -> PathBuf {
    entry_of(disks, "canopy move 1", names)
}

fn entry_of(disks: &Disks, format: &str, names: &[&str]) -> PathBuf {
    let source = disks.disks[0].path().to_str().unwrap();
    let mut fields = vec![format, source];
    fields.extend(names);
    let path = disks.on(1, ".canopy-clone.move.dead.1");
    fs::write(&path, fields.join("\0") + "\0").unwrap();
    common::chmod(&path, 0o600);
    path
}

/// Makes the same file on both branches, with equal times.
fn put_on_both(disks: &Disks, name: &str, content: &[u8]) {
    for branch in [0, 1] {
        put(disks.on(branch, name), content);
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 5);
        fs::File::options()
            .write(true)
            .open(disks.on(branch, name))
            .unwrap()
            .set_times(fs::FileTimes::new().set_modified(time))
            .unwrap();
    }
}

fn exists(disks: &Disks, name: &str) -> [bool; 2] {
    [disks.on(0, name).exists(), disks.on(1, name).exists()]
}

#[test]
fn a_crash_during_the_copy_leaves_the_original() {
    let disks = Disks::small_and_large();
    put(disks.on(0, "d/f"), b"whole");
    put(disks.on(1, "d/.canopy-clone.dead.2"), b"half");
    // An unfinished directory of the dead process, and an unfinished file of a living one.
    fs::create_dir_all(disks.on(1, ".canopy-clone.dead.1/e")).unwrap();
    put(disks.on(1, "d/.canopy-clone.alive.2"), b"half");
    journal_entry(&disks, &["d/f"]);
    ops::settings::recover(&disks.pool);
    assert_eq!(exists(&disks, "d/f"), [true, false]);
    assert_eq!(disks.unfinished_copies(), [disks.on(1, "d/.canopy-clone.alive.2")]);
}

/// A crash during `link-cow` leaves only an unfinished copy, because the last step replaces the name at once.
#[test]
fn a_crash_during_link_cow_leaves_the_link() {
    let disks = Disks::small_and_large();
    put(disks.on(1, "d/f"), b"whole");
    put(disks.on(1, "d/.canopy-clone.dead.2"), b"half");
    let path = disks.on(1, ".canopy-clone.move.dead.1");
    fs::write(&path, "canopy move 1\0\0d/f\0").unwrap();
    common::chmod(&path, 0o600);
    ops::settings::recover(&disks.pool);
    assert_eq!(fs::read(disks.on(1, "d/f")).unwrap(), b"whole");
    assert_eq!(disks.unfinished_copies(), NONE);
}

/// A truncated entry belongs to a move that had not begun. An entry of a later version is left to that version.
#[test]
fn truncated_journal_entries_go_and_those_of_later_versions_stay() {
    let disks = Disks::small_and_large();
    put_on_both(&disks, "f", b"whole");
    for (text, gone) in [("", true), ("canopy move 1\0/so", true), ("canopy move 2\0\0f\0", false)] {
        let path = disks.on(1, ".canopy-clone.move.dead.1");
        fs::write(&path, text).unwrap();
        common::chmod(&path, 0o600);
        ops::settings::recover(&disks.pool);
        assert_eq!(path.exists(), !gone, "{text:?}");
        assert_eq!(told(&disks.pool).len(), usize::from(!gone), "{text:?}");
        assert_eq!(exists(&disks, "f"), [true, true], "{text:?}");
    }
}

#[test]
fn a_crash_while_names_are_linked_leaves_the_original() {
    let disks = Disks::small_and_large();
    put_on_both(&disks, "d/g", b"whole");
    put(disks.on(0, "d/f"), b"gone");
    fs::remove_file(disks.on(0, "d/f")).unwrap();
    fs::hard_link(disks.on(0, "d/g"), disks.on(0, "d/f")).unwrap();
    fs::hard_link(disks.on(1, "d/g"), disks.on(1, "d/.canopy-clone.dead.2")).unwrap();
    journal_entry(&disks, &["d/f", "d/g"]);
    ops::settings::recover(&disks.pool);
    assert_eq!((exists(&disks, "d/f"), exists(&disks, "d/g")), ([true, false], [true, false]));
    assert_eq!(disks.unfinished_copies(), NONE);
}

#[test]
fn a_crash_while_old_names_are_removed_leaves_the_copy() {
    let disks = Disks::small_and_large();
    put_on_both(&disks, "d/g", b"whole");
    fs::hard_link(disks.on(1, "d/g"), disks.on(1, "d/f")).unwrap();
    journal_entry(&disks, &["d/f", "d/g"]);
    ops::settings::recover(&disks.pool);
    assert_eq!((exists(&disks, "d/f"), exists(&disks, "d/g")), ([false, true], [false, true]));
    assert_eq!(disks.unfinished_copies(), NONE);
}

/// A copy whose original stays gets all names or none.
#[test]
fn a_crash_of_a_copy_leaves_the_original() {
    for complete in [false, true] {
        let disks = Disks::small_and_large();
        put_on_both(&disks, "d/g", b"whole");
        fs::hard_link(disks.on(0, "d/g"), disks.on(0, "d/f")).unwrap();
        let last = if complete { "d/f" } else { "d/.canopy-clone.dead.2" };
        fs::hard_link(disks.on(1, "d/g"), disks.on(1, last)).unwrap();
        entry_of(&disks, "canopy copy 1", &["d/f", "d/g"]);
        ops::settings::recover(&disks.pool);
        for name in ["d/f", "d/g"] {
            assert_eq!(exists(&disks, name), [true, complete], "{name}");
        }
        assert_eq!(disks.unfinished_copies(), NONE);
    }
}

/// What the pool tells of moves that are not finished.
fn told(pool: &Pool) -> Vec<String> {
    ops::settings::branches(pool)
        .iter()
        .flat_map(|branch| ops::settings::unfinished_moves(pool, branch.id))
        .collect()
}

fn set_modified(path: impl AsRef<Path>, seconds_from_now: i64) {
    let now = std::time::SystemTime::now();
    let by = std::time::Duration::from_secs(seconds_from_now.unsigned_abs());
    let time = if seconds_from_now < 0 { now - by } else { now + by };
    fs::File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_times(fs::FileTimes::new().set_modified(time))
        .unwrap();
}

/// What stays of a move that was cut off, by which of the files was changed since, and whether the target has all names.
/// An entry of which it cannot be told stays, and is told.
#[test]
fn of_files_that_differ_the_newer_stays() {
    const LATER: i64 = 3600;
    const BEFORE: i64 = -3600;
    for (complete, changes, expected) in [
        (true, &[(0, LATER)][..], [true, false]),
        (true, &[(1, LATER)], [false, true]),
        (false, &[(0, LATER)], [true, false]),
        (false, &[(1, LATER)], [true, true]),
        (true, &[(1, BEFORE)], [true, true]),
        (true, &[(0, BEFORE)], [true, true]),
    ] {
        let disks = Disks::small_and_large();
        put_on_both(&disks, "f", b"whole");
        let names: &[&str] = if complete { &["f"] } else { &["f", "missing"] };
        let entry = journal_entry(&disks, names);
        for (branch, when) in changes {
            fs::write(disks.on(*branch, "f"), b"changed").unwrap();
            set_modified(disks.on(*branch, "f"), *when);
        }
        for _ in 0..2 {
            ops::settings::recover(&disks.pool);
            assert_eq!(exists(&disks, "f"), expected, "{complete} {changes:?}");
            let undecided = expected == [true, true];
            assert_eq!(entry.exists(), undecided, "{complete} {changes:?}");
            let told = told(&disks.pool);
            assert_eq!(told.iter().any(|why| why.contains("differ")), undecided, "{told:?}");
        }
        // The user decides.
        if entry.exists() {
            fs::remove_file(disks.on(1, "f")).unwrap();
            ops::settings::recover(&disks.pool);
            assert!(!entry.exists() && exists(&disks, "f") == [true, false]);
        }
    }
}

/// A branch that comes back while the pool is used: clients see the newer file, and nothing is removed that they use.
#[test]
fn a_move_is_finished_when_its_other_branch_comes() {
    for (first, changed) in [(0, false), (0, true), (1, false), (1, true)] {
        let disks = Disks::small_and_large();
        put_on_both(&disks, "f", b"whole");
        let entry = journal_entry(&disks, &["f"]);
        let root = |branch: usize| disks.disks[branch].path().to_owned();
        let pool = common::over(&[root(first)], &[Mode::Rw], Config::default());
        ops::settings::recover(&pool);
        assert!(entry.exists());
        assert_eq!(told(&pool).len(), first, "{:?}", told(&pool));
        if changed {
            fs::write(disks.on(first, "f"), b"changed").unwrap();
            set_modified(disks.on(first, "f"), 3600);
        }
        let spec = |branch| BranchSpec { path: root(branch), mode: Mode::Rw, min_free: None };
        let list = [spec(1 - first), spec(first)].into_iter().collect();
        ops::settings::set_branches(&pool, ops::settings::branches(&pool).update(&list).unwrap());
        assert!(disks.on(first, "f").exists() && !disks.on(1 - first, "f").exists(), "{first} {changed}");
        assert!(!entry.exists() && told(&pool).is_empty(), "{:?}", told(&pool));
    }
}

/// The pool does not remove a file that a program has open for writing on the branch.
#[test]
fn a_file_open_for_writing_is_left_for_the_next_mount() {
    for complete in [true, false] {
        let disks = Disks::small_and_large();
        put_on_both(&disks, "f", b"whole");
        let names: &[&str] = if complete { &["f"] } else { &["f", "missing"] };
        let entry = journal_entry(&disks, names);
        let surplus = if complete { 0 } else { 1 };
        let writer = fs::File::options().append(true).open(disks.on(surplus, "f")).unwrap();
        ops::settings::recover(&disks.pool);
        assert_eq!(exists(&disks, "f"), [true, true]);
        assert!(entry.exists());
        drop(writer);
        ops::settings::recover(&disks.pool);
        assert!(!disks.on(surplus, "f").exists() && disks.on(1 - surplus, "f").exists());
        assert_eq!(disks.unfinished_copies(), NONE);
    }
}

#[test]
fn a_move_from_an_absent_branch_waits_for_that_branch() {
    let disks = Disks::small_and_large();
    put_on_both(&disks, "f", b"whole");
    let entry = journal_entry(&disks, &["f"]);
    let alone = common::over(&[disks.on(1, "")], &[Mode::Rw], Config::default());
    ops::settings::recover(&alone);
    assert!(entry.exists() && disks.on(1, "f").exists());
    ops::settings::recover(&disks.pool);
    assert_eq!(exists(&disks, "f"), [false, true]);
    assert!(!entry.exists());
}

/// The root of a branch may be writable for every user.
#[test]
fn journal_entries_of_other_users_are_ignored() {
    let disks = Disks::small_and_large();
    put_on_both(&disks, "f", b"whole");
    let path = journal_entry(&disks, &["f"]);
    std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
    ops::settings::recover(&disks.pool);
    assert_eq!(exists(&disks, "f"), [true, true]);
    std::os::unix::fs::chown(&path, Some(0), Some(0)).unwrap();
    common::chmod(&path, 0o666);
    ops::settings::recover(&disks.pool);
    assert_eq!(exists(&disks, "f"), [true, true]);
    // A name in an entry must not lead out of a branch.
    fs::write(disks.disks[1].path().parent().unwrap().join(".canopy-clone.dead.x"), "outside").unwrap();
    fs::remove_file(&path).unwrap();
    journal_entry(&disks, &["../f"]);
    ops::settings::recover(&disks.pool);
    assert!(disks.disks[1].path().parent().unwrap().join(".canopy-clone.dead.x").exists());
    assert_eq!(exists(&disks, "f"), [true, true]);
}
