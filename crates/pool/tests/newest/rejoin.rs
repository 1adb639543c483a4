//! What a branch has missed while it was away is made up for before its files are shown.

use super::copies::{Bed, copied};
use crate::common::{ROOT, TestKernel};
use canopy_base::error::Error;
use canopy_base::ids::NodeId;
use canopy_branch::branch::Branches;
use canopy_branch::fs::reserved::{ASIDE, JOURNAL};
use canopy_policy::Mode;
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::{Pool, RenameKind, SetAttr};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ABSENT: &str = "entity not found";

/// Returns what a branch has set aside: the paths without the numbers of the changes.
pub(super) fn set_aside(bed: &Bed, branch: usize) -> Vec<PathBuf> {
    fn files(dir: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).into_iter().flatten().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                files(&entry.path(), into)
            } else {
                into.push(entry.path())
            }
        }
    }
    let (root, mut found) = (bed.made.branches[branch].join(OsStr::from_bytes(ASIDE)), Vec::new());
    files(&root, &mut found);
    found.iter().map(|path| path.strip_prefix(&root).unwrap().iter().skip(1).collect()).collect()
}

#[test]
fn a_hard_link_that_was_replaced_meanwhile_is_no_name_of_the_old_file() {
    let bed = Bed::new(3);
    bed.create("d/f", "content of f");
    bed.link("d/f", "d/g");
    bed.copy("d/f", 0, 1).unwrap();
    bed.only(&[1, 2]);
    bed.create("d/new", "NEW G");
    bed.rename("d/new", "d/g", RenameKind::Replace).unwrap();
    bed.only(&[0, 1, 2]);
    assert_eq!((bed.read("d/f").as_str(), bed.read("d/g").as_str()), ("content of f", "NEW G"));
    assert_eq!(bed.on(0, "d/g"), ABSENT);
    bed.write("d/f", "CONTENT");
    assert_eq!((bed.read("d/f").as_str(), bed.read("d/g").as_str()), ("CONTENT of f", "NEW G"));
    bed.copy("d/f", 0, 1).unwrap();
    assert_eq!((bed.on(1, "d/f").as_str(), bed.read("d/g").as_str()), ("CONTENT of f", "NEW G"));
}

#[test]
fn links_renames_and_removals_are_made_up_for() {
    let bed = Bed::new(2);
    for name in ["d/linked", "d/renamed", "d/gone", "d/replaced", "d/sub/f"] {
        if name == "d/sub/f" {
            ops::names::create::mkdir(bed.pool(), &ROOT, bed.node("d"), b"sub", 0o755).unwrap();
        }
        bed.create(name, name);
        bed.copy(name, 0, 1).unwrap();
    }
    bed.only(&[0]);
    bed.link("d/linked", "d/link");
    bed.rename("d/renamed", "other/name", RenameKind::Replace).unwrap();
    bed.unlink("d/gone").unwrap();
    bed.unlink("d/replaced").unwrap();
    let dir = bed.node("d");
    ops::names::create::symlink(bed.pool(), &ROOT, dir, b"replaced", b"target").unwrap();
    bed.rename("d/sub", "other/sub", RenameKind::Replace).unwrap();
    bed.only(&[1, 0]);
    assert_eq!(bed.on(1, "d/link"), "d/linked");
    assert_eq!((bed.on(1, "d/renamed").as_str(), bed.on(1, "other/name").as_str()), (ABSENT, "d/renamed"));
    assert_eq!((bed.on(1, "d/sub/f").as_str(), bed.on(1, "other/sub/f").as_str()), (ABSENT, "d/sub/f"));
    assert!(bed.find("d/replaced").unwrap().attr.is_symlink());
    assert_eq!(bed.find("d/gone").err(), Some(Error::Absent));
    // Nothing was deleted.
    let mut aside = set_aside(&bed, 1);
    aside.sort();
    assert_eq!(aside, [Path::new("d/gone"), Path::new("d/replaced")]);
    // Clients see neither that nor the journal.
    for name in [ASIDE, JOURNAL] {
        assert_eq!(ops::names::lookup::lookup(bed.pool(), NodeId::ROOT, name).err(), Some(Error::Absent));
        assert_eq!(
            ops::names::create::mkdir(bed.pool(), &ROOT, NodeId::ROOT, name, 0o755).err(),
            Some(Error::Invalid)
        );
    }
}

/// They are shown of the branch that comes first, and that is the one which was away.
#[test]
fn attributes_of_directories_are_made_up_for() {
    use std::os::unix::fs::MetadataExt;
    let bed = Bed::new(2);
    for name in ["set", "renamed"] {
        ops::names::create::mkdir(bed.pool(), &ROOT, bed.node("d"), name.as_bytes(), 0o755).unwrap();
        bed.create(&format!("d/{name}/f"), "f");
        bed.copy(&format!("d/{name}/f"), 0, 1).unwrap();
    }
    bed.only(&[1]);
    let set = |path: &str, mode: u32| {
        let to = SetAttr { mode: Some(mode), uid: Some(7), ..SetAttr::default() };
        ops::attrs::setattr::setattr(bed.pool(), &ROOT, bed.node(path), None, &to).unwrap();
        let node = bed.node(path);
        ops::attrs::xattr::setxattr(bed.pool(), &ROOT, node, b"user.a", b"1", 0, false).unwrap();
    };
    set("d/set", 0o711);
    set("d/renamed", 0o722);
    bed.rename("d/renamed", "other/now", RenameKind::Replace).unwrap();
    ops::names::create::mkdir(bed.pool(), &ROOT, bed.node("other"), b"made", 0o700).unwrap();
    bed.create("other/made/f", "f");
    set("other/made", 0o733);
    bed.rename("d/set/f", "other/made/g", RenameKind::Replace).unwrap();
    bed.only(&[0, 1]);
    for (path, mode) in [("d/set", 0o711), ("other/now", 0o722), ("other/made", 0o733)] {
        let shown = bed.find(path).unwrap().attr;
        assert_eq!((shown.mode & 0o7777, shown.uid), (mode, 7), "{path}");
        let own = bed.made.branches[0].join(path);
        let meta = fs::metadata(&own).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.uid()), (mode, 7), "{path} on the branch");
        let mut value = [0; 8];
        assert_eq!(rustix::fs::getxattr(&own, "user.a", &mut value[..]), Ok(1), "{path}");
    }
}

/// A directory that comes from outside of the rule's paths takes the place of one that a branch still has.
#[test]
fn a_directory_that_was_replaced_meanwhile_keeps_no_old_file() {
    let bed = Bed::new(2);
    let mkdir = |dir: &str, name: &str| {
        ops::names::create::mkdir(bed.pool(), &ROOT, bed.node(dir), name.as_bytes(), 0o755).unwrap();
    };
    mkdir("d", "x");
    bed.create("d/x/f", "OLD");
    bed.copy("d/x/f", 0, 1).unwrap();
    bed.only(&[1]);
    bed.unlink("d/x/f").unwrap();
    ops::names::remove::rmdir(bed.pool(), bed.node("d"), b"x").unwrap();
    mkdir("other", "x");
    bed.create("other/x/f", "NEWER");
    bed.rename("other/x", "d/x", RenameKind::Replace).unwrap();
    bed.only(&[0, 1]);
    assert_eq!((bed.read("d/x/f").as_str(), bed.on(0, "d/x/f").as_str()), ("NEWER", ABSENT));
}

/// Both disks go on in turn, and in another order, also over restarts.
#[test]
fn branches_take_turns() {
    let bed = Bed::new(3);
    for name in ["d/a", "d/b", "d/c"] {
        bed.create(name, name);
        bed.copy(name, 0, 1).unwrap();
        bed.copy(name, 0, 2).unwrap();
    }
    bed.only(&[0, 1]);
    bed.unlink("d/a").unwrap();
    // Another process serves the pool.
    let list = bed.made.branches[..2].iter().cloned();
    let spec = |path| canopy_branch::branch::BranchSpec { path, mode: Mode::Rw, min_free: None };
    let branches = Branches::open(&list.map(spec).collect()).unwrap();
    let config = Config::clone(&bed.pool().config());
    let again = Pool::new(config, branches);
    ops::settings::connect(&again, Arc::new(TestKernel::default()), false);
    ops::settings::recover(&again);
    let dir = ops::names::lookup::lookup(&again, NodeId::ROOT, b"d").unwrap().node;
    ops::names::remove::unlink(&again, dir, b"b").unwrap();
    drop(again);
    bed.only(&[0]);
    bed.unlink("d/c").unwrap();
    bed.create("d/b", "anew");
    bed.only(&[2, 1, 0]);
    assert_eq!(bed.find("d/a").err(), Some(Error::Absent));
    assert_eq!(bed.find("d/c").err(), Some(Error::Absent));
    assert_eq!(bed.read("d/b"), "anew");
    for branch in [1, 2] {
        assert_eq!(["d/a", "d/b", "d/c"].map(|name| bed.on(branch, name)), [ABSENT; 3], "{branch}");
    }
    // With all of them there, nothing is noted.
    let size = || fs::metadata(bed.made.on(0, ".canopy-journal")).unwrap().len();
    let before = size();
    bed.create("d/x", "x");
    bed.rename("d/x", "d/y", RenameKind::Replace).unwrap();
    assert_eq!(size(), before);
}

/// A branch that was used without the others has changed, and so have they. Both contents are there, and what gives way is set
/// aside.
#[test]
fn a_branch_that_was_used_alone_loses_nothing() {
    let bed = Bed::new(2);
    bed.create("d/f", "both");
    bed.copy("d/f", 0, 1).unwrap();
    bed.only(&[1]);
    bed.unlink("d/f").unwrap();
    bed.create("d/f", "on the second");
    bed.create("d/only here", "second");
    // The first is used alone now; it knows nothing of that.
    bed.only(&[]);
    bed.only(&[0]);
    bed.write("d/f", "FIRST");
    bed.unlink("d/f").unwrap();
    bed.create("d/f", "on the first");
    bed.only(&[0, 1]);
    assert_eq!(bed.read("d/f"), "on the first");
    assert_eq!(bed.read("d/only here"), "second");
    assert_eq!(set_aside(&bed, 1), [Path::new("d/f")]);
    let kept = fs::read_dir(bed.made.on(1, ".canopy-aside")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(kept.join("d/f")).unwrap(), "on the second");
    // That is settled: what the second has noted alone is not replayed on the first later.
    bed.only(&[1, 0]);
    assert_eq!((bed.read("d/f").as_str(), bed.on(0, "d/f").as_str()), ("on the first", "on the first"));
    assert!(set_aside(&bed, 0).is_empty());
}

/// Clients go on while a branch comes back, and nothing of what they remove stays on it.
#[test]
fn what_changes_while_a_branch_comes_back_is_not_missed() {
    const FILES: usize = 200;
    let bed = Bed::new(2);
    for at in 0..FILES {
        bed.create(&format!("d/f{at}"), "text");
        bed.copy(&format!("d/f{at}"), 0, 1).unwrap();
    }
    bed.only(&[0]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for at in 0..FILES {
                if at % 2 == 0 {
                    bed.unlink(&format!("d/f{at}")).unwrap();
                } else {
                    bed.rename(&format!("d/f{at}"), &format!("d/g{at}"), RenameKind::Replace).unwrap();
                }
            }
        });
        for _ in 0..10 {
            bed.only(&[0, 1]);
            bed.only(&[0]);
        }
        bed.only(&[0, 1]);
    });
    for at in 0..FILES {
        let (old, new) = (format!("d/f{at}"), format!("d/g{at}"));
        let expected = if at % 2 == 0 { [ABSENT; 4] } else { [ABSENT, ABSENT, "text", "text"] };
        let found = [bed.on(0, &old), bed.on(1, &old), bed.on(0, &new), bed.on(1, &new)];
        assert_eq!(found, expected, "{at}");
    }
}

/// A branch that cannot be brought up to date is not shown.
#[test]
fn a_branch_that_cannot_be_changed_stays_out() {
    let bed = Bed::new(2);
    copied(&bed);
    bed.only(&[0]);
    bed.unlink("d/f").unwrap();
    bed.modes(&[(0, Mode::Rw), (1, Mode::Ro)]);
    assert_eq!(bed.find("d/f").err(), Some(Error::Absent));
    assert_eq!(ops::settings::branches(bed.pool()).len(), 1);
    bed.only(&[0, 1]);
    assert_eq!(ops::settings::branches(bed.pool()).len(), 2);
    assert_eq!((bed.find("d/f").err(), bed.on(1, "d/f").as_str()), (Some(Error::Absent), ABSENT));
    // One that misses nothing is shown.
    bed.modes(&[(0, Mode::Rw), (1, Mode::Ro)]);
    assert_eq!(ops::settings::branches(bed.pool()).len(), 2);
}

/// Without a rule there is no journal; one that is left would not tell of what changes then.
#[test]
fn journals_end_with_the_rules() {
    let bed = Bed::new(2);
    copied(&bed);
    let journals = || [0, 1].map(|branch| bed.made.on(branch, ".canopy-journal").exists());
    assert_eq!(journals(), [true; 2]);
    bed.only(&[0]);
    bed.unlink("d/f").unwrap();
    let with_rules = Config::clone(&bed.pool().config());
    let placement = canopy_policy::placement::Placement::default();
    ops::settings::reconfigure(bed.pool(), Config { placement, ..with_rules.clone() });
    bed.only(&[0, 1]);
    assert_eq!(journals(), [false; 2]);
    assert_eq!(bed.read("d/f"), "first", "as in a pool without rules");
    ops::settings::reconfigure(bed.pool(), with_rules);
    assert_eq!(journals(), [true; 2]);
    // Somebody else's file of that name stays, and the branch takes no part.
    bed.only(&[0]);
    fs::write(bed.made.on(1, ".canopy-journal"), "text").unwrap();
    bed.only(&[0, 1]);
    assert_eq!(bed.on(1, ".canopy-journal"), "text");
    assert_eq!(bed.open("d/f", 0).map(drop).err(), None::<Errno>);
}

/// Has a branch not answer, or answer again.
fn silence(bed: &Bed, branch: usize, silent: bool) {
    let all = ops::settings::branches(bed.pool());
    let id = all.iter().find(|it| it.path == bed.made.branches[branch]).unwrap().id;
    if silent {
        assert!(ops::branch_deadlines::set_silent(bed.pool(), id, true));
    } else {
        assert!(ops::owed::may_have_missed(bed.pool(), id));
        assert!(ops::owed::take_back(bed.pool(), id));
        assert!(!ops::owed::may_have_missed(bed.pool(), id));
    }
}

fn journal(bed: &Bed, branch: usize) -> Vec<u8> {
    fs::read(bed.made.on(branch, ".canopy-journal")).unwrap()
}

/// A branch that hangs for a while and is never given up is owed what it misses, as one that is away.
#[test]
fn a_branch_that_does_not_answer_is_brought_up_to_date_before_it_is_back() {
    let bed = Bed::new(3);
    for name in ["d/gone", "d/renamed", "d/replaced"] {
        bed.create(name, name);
        bed.copy(name, 0, 1).unwrap();
    }
    let before = [0, 1, 2].map(|branch| journal(&bed, branch));
    silence(&bed, 1, true);
    assert_eq!([0, 1, 2].map(|branch| journal(&bed, branch)), before, "no disk is touched for that");
    // Another change of branches, meanwhile, neither waits for it nor forgets it.
    ops::settings::set_branches(
        bed.pool(),
        Branches::clone(&ops::settings::branches(bed.pool())).without(&[]),
    );
    bed.unlink("d/gone").unwrap();
    bed.rename("d/renamed", "other/name", RenameKind::Replace).unwrap();
    bed.unlink("d/replaced").unwrap();
    bed.create("d/replaced", "anew");
    assert_eq!(journal(&bed, 1), before[1], "nothing is written to one that hangs");
    silence(&bed, 1, false);
    assert_eq!(["d/gone", "d/renamed", "d/replaced"].map(|name| bed.on(1, name)), [ABSENT; 3]);
    assert_eq!(bed.on(1, "other/name"), "d/renamed");
    assert_eq!((bed.find("d/gone").err(), bed.read("d/replaced").as_str()), (Some(Error::Absent), "anew"));
    let mut aside = set_aside(&bed, 1);
    aside.sort();
    assert_eq!(aside, [Path::new("d/gone"), Path::new("d/replaced")]);
    // All are there, so nothing is noted.
    let after = [0, 1, 2].map(|branch| journal(&bed, branch));
    bed.rename("other/name", "d/renamed", RenameKind::Replace).unwrap();
    assert_eq!([0, 1, 2].map(|branch| journal(&bed, branch)), after);
}

/// The process ends while a branch hangs. That it is owed something is on disk since before the first answer.
#[test]
fn what_a_hanging_branch_misses_is_known_to_the_next_process() {
    let bed = Bed::new(2);
    copied(&bed);
    silence(&bed, 0, true);
    bed.unlink("d/f").unwrap();
    let list = bed.made.branches.iter().cloned();
    let spec = |path| canopy_branch::branch::BranchSpec { path, mode: Mode::Rw, min_free: None };
    let branches = Branches::open(&list.map(spec).collect()).unwrap();
    let again = Pool::new(Config::clone(&bed.pool().config()), branches);
    ops::settings::connect(&again, Arc::new(TestKernel::default()), false);
    ops::settings::recover(&again);
    let dir = ops::names::lookup::lookup(&again, NodeId::ROOT, b"d").unwrap().node;
    assert_eq!(ops::names::lookup::lookup(&again, dir, b"f").err(), Some(Error::Absent));
    assert_eq!(set_aside(&bed, 0), [Path::new("d/f")]);
}

/// An operation that has begun before changes the branch as well. It has what it has done itself.
#[test]
fn what_a_branch_has_done_itself_is_not_done_again() {
    use canopy_base::path::PoolPath;
    use canopy_branch::journal::{Change, Journals, When};
    let bed = Bed::new(2);
    bed.create("d/f", "text");
    let branches = ops::settings::branches(bed.pool());
    let journals = Journals::default();
    assert!(journals.arrange(When::Now, &|_| true, &branches).is_empty());
    let hangs = branches[0].id;
    journals.leave_out(hangs);
    // It was about to be renamed there, and was, after all.
    fs::rename(bed.made.on(0, "d/f"), bed.made.on(0, "other/g")).unwrap();
    let path = |text: &str| PoolPath::from_slice(text.as_bytes());
    journals.note([hangs].into_iter(), &Change::Rename(path("d/f"), path("other/g")));
    journals.note([branches[1].id].into_iter(), &Change::Clear(path("d/x")));
    for when in [When::Before, When::Now] {
        assert!(journals.take_back(when, hangs, &branches).is_empty());
    }
    assert_eq!(bed.on(0, "other/g"), "text");
    assert!(!journals.owes());
}

/// Those that have a change are away in their turn when a branch comes back that has missed it. The third knows of it.
#[test]
fn who_is_left_knows_what_has_changed_elsewhere() {
    let bed = Bed::new(3);
    bed.create("d/f", "old");
    bed.create("d/gone", "old");
    bed.copy("d/gone", 0, 2).unwrap();
    bed.only(&[2, 1]);
    bed.unlink("d/gone").unwrap();
    bed.create("d/f", "new");
    assert_eq!(bed.on(2, "d/f"), "new");
    bed.only(&[0, 1]);
    assert_eq!(
        ["d/f", "d/gone"].map(|path| bed.find(path).err()),
        [Some(Error::Absent), Some(Error::Absent)]
    );
    bed.only(&[0, 1, 2]);
    assert_eq!((bed.read("d/f").as_str(), bed.on(0, "d/f").as_str()), ("new", ABSENT));
}

/// A branch that has come back brings up to date those that were away with it.
#[test]
fn who_comes_back_knows_what_others_are_owed() {
    let bed = Bed::new(3);
    bed.create("d/f", "old");
    bed.copy("d/f", 0, 2).unwrap();
    bed.only(&[1]);
    bed.create("d/f", "new");
    bed.only(&[1, 0]);
    bed.only(&[0, 2]);
    assert_eq!(bed.find("d/f").err(), Some(Error::Absent), "the new one is away");
    assert_eq!(bed.on(2, "d/f"), ABSENT);
    bed.only(&[0, 1, 2]);
    assert_eq!(bed.read("d/f"), "new");
}

/// Of two branches, each says that the other was away. But the second has got since, through the third, all that the first has
/// changed without it.
#[test]
fn branches_that_were_away_in_turn_were_not_used_apart() {
    let bed = Bed::new(3);
    bed.only(&[2]);
    bed.only(&[2, 1]);
    bed.create("d/f", "old");
    bed.only(&[0, 2]);
    bed.only(&[0, 1]);
    assert_eq!(bed.find("d/f").err(), Some(Error::Absent), "it is on the one that is away");
    bed.create("d/f", "new");
    // The one that is behind comes first in the list.
    bed.only(&[2, 1]);
    assert_eq!((bed.find("d/f").err(), bed.on(2, "d/f").as_str()), (Some(Error::Absent), ABSENT));
    bed.only(&[2, 1, 0]);
    assert_eq!(bed.read("d/f"), "new");
}

/// Rules end while a branch hangs. When they begin again, it has a journal like all others.
#[test]
fn a_branch_that_hung_as_the_rules_ended_takes_part_again() {
    let bed = Bed::new(2);
    copied(&bed);
    let with_rules = Config::clone(&bed.pool().config());
    let placement = canopy_policy::placement::Placement::default();
    silence(&bed, 1, true);
    ops::settings::reconfigure(bed.pool(), Config { placement, ..with_rules.clone() });
    let journals = || [0, 1].map(|branch| bed.made.on(branch, ".canopy-journal").exists());
    assert_eq!(journals(), [false, true], "nothing is read or written there");
    silence(&bed, 1, false);
    assert_eq!(journals(), [false; 2]);
    ops::settings::reconfigure(bed.pool(), with_rules);
    assert_eq!(journals(), [true; 2]);
    silence(&bed, 1, true);
    bed.unlink("d/f").unwrap();
    silence(&bed, 1, false);
    assert_eq!((bed.find("d/f").err(), bed.on(1, "d/f").as_str()), (Some(Error::Absent), ABSENT));
}

/// A replay was cut off after the attributes of a directory had been owed, and before it gave them.
#[test]
fn attributes_are_made_up_for_when_a_replay_was_cut_off() {
    use canopy_branch::journal::{Change, Record, Step, parse};
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    let bed = Bed::new(2);
    bed.create("d/f", "f");
    bed.copy("d/f", 0, 1).unwrap();
    bed.only(&[1]);
    let to = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    ops::attrs::setattr::setattr(bed.pool(), &ROOT, bed.node("other"), None, &to).unwrap();
    bed.rename("d/f", "d/g", RenameKind::Replace).unwrap();
    let at = parse(&journal(&bed, 1)).0.into_iter().find_map(|record| match record {
        Record::Change(at, change) if matches!(*change, Change::Rename(..)) => Some(at),
        _ => None,
    });
    let ino = fs::metadata(bed.made.on(0, "d/f")).unwrap().ino();
    let step = Record::Step(Step { at: at.unwrap(), ino, backwards: false });
    let mut log = fs::File::options().append(true).open(bed.made.on(0, ".canopy-journal")).unwrap();
    log.write_all(&step.to_bytes()).unwrap();
    bed.only(&[0, 1]);
    assert_eq!(bed.on(0, "d/g"), "f");
    assert_eq!(fs::metadata(bed.made.on(0, "other")).unwrap().mode() & 0o777, 0o700);
}
