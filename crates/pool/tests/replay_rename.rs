//! Renames that another process had begun when it died: the next one makes the remaining steps.

#![forbid(unsafe_code)]

mod common;

use canopy_base::ids::NodeId;
use canopy_branch::branch::Mode::Rw;
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::{RENAME_INTENT_WORDS, RenameIntent, RenameKind};
use common::{Made, ROOT, pool};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of an intent (`replay_rename.rs`): one more than the branch of the last step, what it moved, which are done.
const CURRENT: usize = 2;
const MOVES: usize = 3;
const DONE: usize = 12;

/// A pool over three branches, and the intent of a rename that it has made.
struct Bed {
    made: Made,
    words: [AtomicU64; RENAME_INTENT_WORDS],
}

impl Bed {
    /// `files`: branch, name, content.
    fn new(files: &[(usize, &str, &str)]) -> Bed {
        let made = pool(&[Rw; 3], Config::default());
        files.iter().for_each(|(branch, name, text)| fs::write(made.on(*branch, name), text).unwrap());
        Bed { made, words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    fn rename(&self, kind: RenameKind) {
        let intent = Some(RenameIntent::new(&self.words));
        ops::names::rename::rename_noted(
            &self.made.pool,
            &ROOT,
            (NodeId::ROOT, b"old"),
            (NodeId::ROOT, b"new"),
            kind,
            intent,
        )
        .unwrap();
    }

    fn again(&self, kind: RenameKind) {
        let intent = RenameIntent::new(&self.words);
        ops::names::replay_rename::replay_rename(
            &self.made.pool,
            &ROOT,
            (NodeId::ROOT, b"old"),
            (NodeId::ROOT, b"new"),
            kind,
            intent,
        )
        .unwrap();
    }

    /// Makes the intent one of a process that died during a step: before it was made, or after.
    fn died_at(&self, branch: usize, moves: u64) {
        self.words[DONE].fetch_and((1 << branch) - 1, Ordering::Relaxed);
        self.words[MOVES].store(moves, Ordering::Relaxed);
        self.words[CURRENT].store(branch as u64 + 1, Ordering::Relaxed);
    }

    fn ino(&self, branch: usize, name: &str) -> u64 {
        fs::metadata(self.made.on(branch, name)).unwrap().ino()
    }

    /// What the branches have under the old and the new name.
    fn found(&self) -> Vec<(Option<String>, Option<String>)> {
        let text = |branch, name| fs::read_to_string(self.made.on(branch, name)).ok();
        (0..3).map(|branch| (text(branch, "old"), text(branch, "new"))).collect()
    }

    fn put(&self, branch: usize, name: &str, text: &str) {
        fs::write(self.made.on(branch, name), text).unwrap();
    }
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn a_rename_that_was_not_begun_is_made() {
    let bed = Bed::new(&[(1, "old", "source"), (2, "new", "target")]);
    bed.again(RenameKind::Replace);
    assert_eq!(bed.found(), [(None, None), (None, some("source")), (None, None)]);
}

#[test]
fn a_rename_that_was_made_is_not_made_again() {
    for marked in [true, false] {
        let bed = Bed::new(&[(1, "old", "source")]);
        let moves = bed.ino(1, "old");
        bed.rename(RenameKind::Replace);
        if !marked {
            bed.died_at(1, moves);
        }
        bed.again(RenameKind::Replace);
        bed.again(RenameKind::Replace);
        assert_eq!(bed.found(), [(None, None), (None, some("source")), (None, None)]);
    }
}

#[test]
fn a_rename_whose_only_step_was_not_made_is_made() {
    for target in [None, Some("target")] {
        let bed = Bed::new(&[(1, "old", "source")]);
        bed.rename(RenameKind::Replace);
        fs::rename(bed.made.on(1, "new"), bed.made.on(1, "old")).unwrap();
        target.into_iter().for_each(|text| bed.put(1, "new", text));
        bed.died_at(1, bed.ino(1, "old"));
        bed.again(RenameKind::Replace);
        assert_eq!(bed.found(), [(None, None), (None, some("source")), (None, None)]);
    }
}

/// The branches hold: the source; source and target; the target.
const COPIES: [(usize, &str, &str); 4] =
    [(0, "old", "source"), (1, "old", "source"), (1, "new", "target"), (2, "new", "target")];

fn renamed() -> [(Option<String>, Option<String>); 3] {
    [(None, some("source")), (None, some("source")), (None, None)]
}

#[test]
fn a_rename_of_several_copies_is_completed_from_each_step() {
    // Nothing was made.
    let bed = Bed::new(&COPIES);
    bed.rename(RenameKind::Replace);
    assert_eq!(bed.found(), renamed());
    fs::rename(bed.made.on(0, "new"), bed.made.on(0, "old")).unwrap();
    let source = bed.ino(0, "old");
    let before_second = |bed: &Bed| {
        fs::rename(bed.made.on(1, "new"), bed.made.on(1, "old")).unwrap();
        bed.put(1, "new", "target");
        bed.put(2, "new", "target");
    };
    before_second(&bed);
    bed.died_at(0, source);
    bed.again(RenameKind::Replace);
    assert_eq!(bed.found(), renamed(), "before the first step");
    // The first step was made: marked, not marked, and the process that found it not marked died in turn.
    for (branch, name) in [(1, "old"), (0, "new")] {
        before_second(&bed);
        bed.died_at(branch, bed.ino(branch, name));
        bed.again(RenameKind::Replace);
        assert_eq!(bed.found(), renamed(), "after the first step, at branch {branch}");
    }
    // The second was made: the target has the old name there.
    bed.put(1, "old", "target");
    bed.put(2, "new", "target");
    bed.died_at(1, bed.ino(1, "new"));
    bed.again(RenameKind::Replace);
    assert_eq!(bed.found(), renamed(), "after the second step");
    // All were made, and one target was removed.
    bed.put(2, "new", "target");
    bed.again(RenameKind::Replace);
    assert_eq!(bed.found(), renamed(), "before the last target was removed");
}

#[test]
fn an_exchange_is_completed_from_each_step() {
    let exchanged = [(None, some("source")), (some("target"), some("source")), (some("target"), None)];
    for (made, moved) in [(0, "old"), (1, "old"), (2, "new")] {
        for died_after in [false, true] {
            let bed = Bed::new(&COPIES);
            bed.rename(RenameKind::Exchange);
            assert_eq!(bed.found(), exchanged);
            // Takes back all steps after those that were made.
            for branch in made..3 {
                fs::remove_file(bed.made.on(branch, "old")).ok();
                fs::remove_file(bed.made.on(branch, "new")).ok();
            }
            COPIES
                .iter()
                .filter(|(branch, ..)| *branch >= made)
                .for_each(|(branch, name, text)| bed.put(*branch, name, text));
            bed.died_at(made, bed.ino(made, moved));
            if died_after {
                match made {
                    0 => fs::rename(bed.made.on(0, "old"), bed.made.on(0, "new")).unwrap(),
                    1 => {
                        fs::rename(bed.made.on(1, "new"), bed.made.on(1, "aside")).unwrap();
                        fs::rename(bed.made.on(1, "old"), bed.made.on(1, "new")).unwrap();
                        fs::rename(bed.made.on(1, "aside"), bed.made.on(1, "old")).unwrap();
                    }
                    _ => fs::rename(bed.made.on(2, "new"), bed.made.on(2, "old")).unwrap(),
                }
            }
            bed.again(RenameKind::Exchange);
            assert_eq!(bed.found(), exchanged, "step {made}, made: {died_after}");
        }
    }
}

/// What a rename of a directory moves is found under its new name, on each branch.
#[test]
fn a_directory_is_renamed_on_the_rest_of_its_branches() {
    let bed = Bed::new(&[]);
    for branch in 0..3 {
        fs::create_dir(bed.made.on(branch, "old")).unwrap();
        bed.put(branch, &format!("old/{branch}"), "text");
    }
    bed.rename(RenameKind::Replace);
    for branch in [1, 2] {
        fs::rename(bed.made.on(branch, "new"), bed.made.on(branch, "old")).unwrap();
    }
    bed.died_at(1, bed.ino(1, "old"));
    bed.again(RenameKind::Replace);
    let dir = ops::names::lookup::lookup(&bed.made.pool, NodeId::ROOT, b"new").unwrap().node;
    for branch in 0..3 {
        assert!(!bed.made.on(branch, "old").exists());
        ops::names::lookup::lookup(&bed.made.pool, dir, branch.to_string().as_bytes()).unwrap();
    }
}
