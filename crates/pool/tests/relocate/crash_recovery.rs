//! What the next mount makes of the state that a crash leaves, at every step of a move.

use super::*;
use canopy_testkit::files::put;

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
    disks.pool.recover();
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
    disks.pool.recover();
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
        disks.pool.recover();
        assert_eq!(path.exists(), !gone, "{text:?}");
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
    disks.pool.recover();
    assert_eq!((exists(&disks, "d/f"), exists(&disks, "d/g")), ([true, false], [true, false]));
    assert_eq!(disks.unfinished_copies(), NONE);
}

#[test]
fn a_crash_while_old_names_are_removed_leaves_the_copy() {
    let disks = Disks::small_and_large();
    put_on_both(&disks, "d/g", b"whole");
    fs::hard_link(disks.on(1, "d/g"), disks.on(1, "d/f")).unwrap();
    journal_entry(&disks, &["d/f", "d/g"]);
    disks.pool.recover();
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
        disks.pool.recover();
        for name in ["d/f", "d/g"] {
            assert_eq!(exists(&disks, name), [true, complete], "{name}");
        }
        assert_eq!(disks.unfinished_copies(), NONE);
    }
}

#[test]
fn copies_that_differ_are_both_kept() {
    let disks = Disks::small_and_large();
    put_on_both(&disks, "f", b"whole");
    fs::write(disks.on(1, "f"), b"later").unwrap();
    journal_entry(&disks, &["f"]);
    disks.pool.recover();
    assert_eq!(exists(&disks, "f"), [true, true]);
    assert_eq!(disks.unfinished_copies(), NONE);
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
        disks.pool.recover();
        assert_eq!(exists(&disks, "f"), [true, true]);
        assert!(entry.exists());
        drop(writer);
        disks.pool.recover();
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
    alone.recover();
    assert!(entry.exists() && disks.on(1, "f").exists());
    disks.pool.recover();
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
    disks.pool.recover();
    assert_eq!(exists(&disks, "f"), [true, true]);
    std::os::unix::fs::chown(&path, Some(0), Some(0)).unwrap();
    common::chmod(&path, 0o666);
    disks.pool.recover();
    assert_eq!(exists(&disks, "f"), [true, true]);
    // A name in an entry must not lead out of a branch.
    fs::write(disks.disks[1].path().parent().unwrap().join(".canopy-clone.dead.x"), "outside").unwrap();
    fs::remove_file(&path).unwrap();
    journal_entry(&disks, &["../f"]);
    disks.pool.recover();
    assert!(disks.disks[1].path().parent().unwrap().join(".canopy-clone.dead.x").exists());
    assert_eq!(exists(&disks, "f"), [true, true]);
}
