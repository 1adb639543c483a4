//! What a crash leaves, at every step of a move, and what the next mount makes of it.

use super::*;
use canopy_testkit::files::put;

/// A note, as a move from the first to the second branch of `names` writes it.
fn note(disks: &Disks, names: &[&str]) -> PathBuf {
    let source = disks.disks[0].path().to_str().unwrap();
    let mut fields = vec!["canopy move 1", source];
    fields.extend(names);
    let path = disks.on(1, ".canopy-clone.move.dead.1");
    fs::write(&path, fields.join("\0") + "\0").unwrap();
    common::chmod(&path, 0o600);
    path
}

/// Two files that are alike, times included.
fn twin(disks: &Disks, name: &str, content: &[u8]) {
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
    put(disks.on(1, "d/.canopy-clone.dead.2"), b"who");
    // A directory on its way to be one, and what somebody else is at.
    fs::create_dir_all(disks.on(1, ".canopy-clone.dead.1/e")).unwrap();
    put(disks.on(1, "d/.canopy-clone.alive.2"), b"who");
    note(&disks, &["d/f"]);
    disks.pool.recover();
    assert_eq!(exists(&disks, "d/f"), [true, false]);
    assert_eq!(disks.unfinished_copies(), [disks.on(1, "d/.canopy-clone.alive.2")]);
}

/// Of `link-cow` nothing is left but a copy aside: the name leads to the one or the other.
#[test]
fn a_crash_during_link_cow_leaves_the_link() {
    let disks = Disks::small_and_large();
    put(disks.on(1, "d/f"), b"whole");
    put(disks.on(1, "d/.canopy-clone.dead.2"), b"who");
    let path = disks.on(1, ".canopy-clone.move.dead.1");
    fs::write(&path, "canopy move 1\0\0d/f\0").unwrap();
    common::chmod(&path, 0o600);
    disks.pool.recover();
    assert_eq!(fs::read(disks.on(1, "d/f")).unwrap(), b"whole");
    assert_eq!(disks.unfinished_copies(), NONE);
}

/// A note that was cut off is one of nothing that was begun; of a later version, it is not ours to judge.
#[test]
fn truncated_journal_entries_go_and_those_of_later_versions_stay() {
    let disks = Disks::small_and_large();
    twin(&disks, "f", b"whole");
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
    twin(&disks, "d/g", b"whole");
    put(disks.on(0, "d/f"), b"gone");
    fs::remove_file(disks.on(0, "d/f")).unwrap();
    fs::hard_link(disks.on(0, "d/g"), disks.on(0, "d/f")).unwrap();
    fs::hard_link(disks.on(1, "d/g"), disks.on(1, "d/.canopy-clone.dead.2")).unwrap();
    note(&disks, &["d/f", "d/g"]);
    disks.pool.recover();
    assert_eq!((exists(&disks, "d/f"), exists(&disks, "d/g")), ([true, false], [true, false]));
    assert_eq!(disks.unfinished_copies(), NONE);
}

#[test]
fn a_crash_while_old_names_are_removed_leaves_the_copy() {
    let disks = Disks::small_and_large();
    twin(&disks, "d/g", b"whole");
    fs::hard_link(disks.on(1, "d/g"), disks.on(1, "d/f")).unwrap();
    note(&disks, &["d/f", "d/g"]);
    disks.pool.recover();
    assert_eq!((exists(&disks, "d/f"), exists(&disks, "d/g")), ([false, true], [false, true]));
    assert_eq!(disks.unfinished_copies(), NONE);
}

#[test]
fn copies_that_differ_are_both_kept() {
    let disks = Disks::small_and_large();
    twin(&disks, "f", b"whole");
    fs::write(disks.on(1, "f"), b"later").unwrap();
    note(&disks, &["f"]);
    disks.pool.recover();
    assert_eq!(exists(&disks, "f"), [true, true]);
    assert_eq!(disks.unfinished_copies(), NONE);
}

/// What somebody writes, unseen by the pool, is not removed from under him.
#[test]
fn a_file_open_for_writing_is_left_for_the_next_mount() {
    for complete in [true, false] {
        let disks = Disks::small_and_large();
        twin(&disks, "f", b"whole");
        let names: &[&str] = if complete { &["f"] } else { &["f", "missing"] };
        let note = note(&disks, names);
        let surplus = if complete { 0 } else { 1 };
        let writer = fs::File::options().append(true).open(disks.on(surplus, "f")).unwrap();
        disks.pool.recover();
        assert_eq!(exists(&disks, "f"), [true, true]);
        assert!(note.exists());
        drop(writer);
        disks.pool.recover();
        assert!(!disks.on(surplus, "f").exists() && disks.on(1 - surplus, "f").exists());
        assert_eq!(disks.unfinished_copies(), NONE);
    }
}

#[test]
fn a_move_from_an_absent_branch_waits_for_that_branch() {
    let disks = Disks::small_and_large();
    twin(&disks, "f", b"whole");
    let note = note(&disks, &["f"]);
    let alone = common::over(&[disks.on(1, "")], &[Mode::Rw], Config::default());
    alone.recover();
    assert!(note.exists() && disks.on(1, "f").exists());
    disks.pool.recover();
    assert_eq!(exists(&disks, "f"), [false, true]);
    assert!(!note.exists());
}

/// The root of a branch may be open to everybody.
#[test]
fn journal_entries_of_other_users_are_ignored() {
    let disks = Disks::small_and_large();
    twin(&disks, "f", b"whole");
    let path = note(&disks, &["f"]);
    std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
    disks.pool.recover();
    assert_eq!(exists(&disks, "f"), [true, true]);
    std::os::unix::fs::chown(&path, Some(0), Some(0)).unwrap();
    common::chmod(&path, 0o666);
    disks.pool.recover();
    assert_eq!(exists(&disks, "f"), [true, true]);
    // Nothing leads out of a branch.
    fs::write(disks.disks[1].path().parent().unwrap().join(".canopy-clone.dead.x"), "outside").unwrap();
    fs::remove_file(&path).unwrap();
    note(&disks, &["../f"]);
    disks.pool.recover();
    assert!(disks.disks[1].path().parent().unwrap().join(".canopy-clone.dead.x").exists());
    assert_eq!(exists(&disks, "f"), [true, true]);
}
