//! What works and what fails while a branch hangs, and that everything works afterwards.

use super::rig::{LOOKS, PATIENCE, Rig, assert_timed_out, in_time};
use canopy_fuse::Opcode;
use canopy_testkit::Fault;
use canopy_testkit::cmd::wait_until;
use rustix::fs::statvfs;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn names(dir: &Path) -> BTreeSet<String> {
    let dir = dir.to_owned();
    in_time(move || {
        let entries = fs::read_dir(dir).expect("a listing");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect()
    })
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[track_caller]
fn assert_recovers(rig: &Rig) {
    rig.heal();
    assert_eq!(names(&rig.at("d")), set(&["a", "b", "c"]));
    for (path, expected) in [("d/a", "a"), ("d/b", "b"), ("d/c", "c"), ("only-b", "b")] {
        let path = rig.at(path);
        assert_eq!(in_time(move || fs::read_to_string(path)).expect("a file"), expected);
    }
    let new = rig.at("d/new");
    in_time(move || fs::write(&new, "new").and_then(|()| fs::remove_file(&new))).expect("a new file");
}

/// The first request to the branch waits for the deadline. Later ones fail at once.
#[test]
fn names_on_other_branches_are_found_and_those_on_the_hung_branch_time_out() {
    for rig in Rig::over_each_transport("") {
        rig.faulty.set_all(Fault::Hang);
        let path = rig.at("only-b");
        assert_timed_out(in_time(move || fs::metadata(path)));
        rig.wait_until_known_to_hang();
        for (path, found) in
            [("d/a", true), ("d/c", true), ("only-a", true), ("d/b", false), ("nowhere", false)]
        {
            let full = rig.at(path);
            let answer = in_time(move || fs::metadata(full));
            if found {
                assert!(answer.is_ok_and(|stat| stat.len() == 1), "{path}")
            } else {
                assert_timed_out(answer)
            }
        }
        assert_eq!(names(&rig.at("d")), set(&["a", "c"]));
        // statfs counts only the branches that answer.
        let point = rig.at("");
        let room = in_time(move || statvfs(&point)).expect("statfs");
        assert_eq!(room.f_blocks * room.f_frsize, 512 << 20);
        // Files on the other branches can be changed, renamed and removed.
        let (a, c) = (rig.at("d/a"), rig.at("d/c"));
        in_time(move || {
            fs::write(&a, "more")?;
            fs::rename(&a, a.with_file_name("c"))?;
            fs::remove_file(&c)
        })
        .expect("changes");
        assert_eq!(names(&rig.at("d")), set(&[]));
        fs::write(rig.well[0].path().join("d/a"), "a").expect("a file");
        fs::write(rig.well[1].path().join("d/c"), "c").expect("a file");
        assert_recovers(&rig);
        rig.pool.umount();
    }
}

/// Only one kind of request hangs at a time. The branch answers all others.
#[test]
fn a_branch_recovers_when_only_one_kind_of_request_hangs() {
    for rig in Rig::over_each_transport("passthrough.io=off,cache.files=off") {
        rig.faulty.set(Fault::Hang, LOOKS);
        let path = rig.at("d/b");
        assert_timed_out(in_time(move || fs::metadata(path)));
        rig.wait_until_known_to_hang();
        let path = rig.at("d/a");
        in_time(move || fs::metadata(path)).expect("a file of another branch");
        assert_recovers(&rig);

        rig.faulty.set(Fault::Hang, &[Opcode::Opendir, Opcode::Readdir]);
        rig.wait_until_known_to_hang();
        assert_eq!(names(&rig.at("d")), set(&["a", "c"]));
        assert_recovers(&rig);

        rig.faulty.set(Fault::Hang, &[Opcode::Statfs]);
        let point = rig.at("");
        in_time(move || statvfs(&point).map_err(Into::into)).or_else(expect_time_out).expect("statfs");
        rig.wait_until_known_to_hang();
        let point = rig.at("");
        in_time(move || statvfs(&point)).expect("statfs");
        assert_recovers(&rig);

        let mut open = File::open(rig.at("d/b")).expect("a file");
        rig.faulty.set(Fault::Hang, &[Opcode::Read]);
        let mut read = open.try_clone().expect("a file");
        assert_timed_out(in_time(move || read.read(&mut [0; 8])));
        let path = rig.at("d/b");
        assert_timed_out(in_time(move || fs::metadata(path)));
        let path = rig.at("d/c");
        in_time(move || fs::read(path)).expect("a file of another branch");
        rig.heal();
        open.rewind().expect("a seek");
        let mut text = String::new();
        open.read_to_string(&mut text).expect("a read");
        assert_eq!(text, "b");
        drop(open);
        assert_recovers(&rig);
        rig.pool.umount();
    }
}

fn expect_time_out(error: std::io::Error) -> std::io::Result<rustix::fs::StatVfs> {
    assert_timed_out::<()>(Err(error));
    Ok(statvfs("/")?)
}

/// A write either succeeds or fails with an error. A write that timed out may still reach the disk later.
#[test]
fn a_write_that_hangs_fails_and_is_not_torn() {
    for rig in Rig::over_each_transport("passthrough.io=off,cache.files=off") {
        let file = OpenOptions::new().write(true).open(rig.at("d/b")).expect("a file");
        rig.faulty.set(Fault::Hang, &[Opcode::Write]);
        let written = file.try_clone().expect("a file");
        assert_timed_out(in_time(move || written.write_at(&[7; 4096], 0)));
        let after = file.try_clone().expect("a file");
        assert_timed_out(in_time(move || after.write_at(&[8; 4096], 4096)));
        // The write that failed at once has written nothing.
        assert_eq!(fs::read(rig.faulty.backing_dir().join("d/b")).expect("a file"), b"b");
        rig.heal();
        file.write_at(&[9; 4096], 8192).expect("a write");
        let there = fs::read(rig.at("d/b")).expect("a file");
        assert_eq!((there.len(), &there[8192..]), (12288, &[9; 4096][..]));
        assert!(there[..4096] == [7; 4096], "the write in flight has completed");
        assert!(there[4096..8192] == [0; 4096]);
        drop(file);
        rig.pool.umount();
    }
}

/// Operations on other branches go on while the branch hangs, and while more clients wait for it than there are workers.
#[test]
fn writers_on_other_branches_continue() {
    for rig in Rig::over_each_transport("") {
        let stop = AtomicBool::new(false);
        let rounds: [AtomicU64; 4] = Default::default();
        std::thread::scope(|scope| {
            let writers = rounds.iter().zip(0..).map(|(rounds, number): (_, u64)| {
                let path = rig.at(if number % 2 == 0 { "d/a" } else { "d/c" });
                let stop = &stop;
                scope.spawn(move || {
                    let file = OpenOptions::new().read(true).write(true).open(path).expect("a file");
                    while !stop.load(Ordering::Relaxed) {
                        let round = rounds.load(Ordering::Relaxed);
                        file.write_at(&round.to_ne_bytes(), 4096 * number).expect("a write");
                        let mut back = [0; 8];
                        file.read_exact_at(&mut back, 4096 * number).expect("a read");
                        assert_eq!(u64::from_ne_bytes(back), round);
                        file.metadata().expect("attributes");
                        rounds.store(round + 1, Ordering::Relaxed);
                    }
                })
            });
            let writers: Vec<_> = writers.collect();
            let go_on = || {
                let before = rounds.each_ref().map(|rounds| rounds.load(Ordering::Relaxed));
                let further =
                    || rounds.iter().zip(before).all(|(now, then)| now.load(Ordering::Relaxed) > then + 10);
                wait_until(PATIENCE, || further() || writers.iter().any(|writer| writer.is_finished()))
                    && further()
            };
            let before = go_on();
            rig.faulty.set_all(Fault::Hang);
            // More clients wait for the branch than there are workers.
            let waiting: Vec<_> = (0..12)
                .map(|_| {
                    let path = rig.at("only-b");
                    scope.spawn(move || (0..3).for_each(|_| _ = fs::metadata(&path)))
                })
                .collect();
            let beside = go_on();
            waiting.into_iter().for_each(|thread| thread.join().expect("an end"));
            let after = go_on();
            stop.store(true, Ordering::Relaxed);
            writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
            assert!(before && beside && after, "{before} {beside} {after}");
        });
        assert_listing_after_heal(&rig);
        rig.pool.umount();
    }
}

fn assert_listing_after_heal(rig: &Rig) {
    rig.heal();
    assert_eq!(names(&rig.at("d")), set(&["a", "b", "c"]));
}

/// A stuck request holds the directory lock. A rename that waits for that lock must not block other requests.
#[test]
fn renaming_a_directory_does_not_freeze_the_pool() {
    for rig in Rig::over_each_transport("") {
        fs::create_dir(rig.well[0].path().join("mine")).expect("mkdir");
        rig.faulty.set(Fault::Hang, &[Opcode::Getattr, Opcode::Lookup, Opcode::Statx]);
        let path = rig.at("only-b");
        assert_timed_out(in_time(move || fs::metadata(path)));
        rig.wait_until_known_to_hang();
        let (from, to) = (rig.at("mine"), rig.at("yours"));
        assert_timed_out(in_time(move || fs::rename(from, to)));
        let path = rig.at("d/a");
        in_time(move || fs::metadata(path)).expect("a file");
        rig.heal();
        let (from, to) = (rig.at("mine"), rig.at("yours"));
        assert!(wait_until(PATIENCE, || fs::rename(&from, &to).is_ok()));
        assert!(rig.well[0].path().join("yours").is_dir());
        rig.pool.umount();
    }
}

/// The branch hangs repeatedly. Requests that timed out leave neither descriptors nor lookup counts behind.
#[test]
fn requests_that_time_out_leak_nothing() {
    for rig in Rig::over_each_transport("passthrough.io=off") {
        for _ in 0..3 {
            rig.faulty.set_all(Fault::Hang);
            let all: Vec<_> = ["only-b", "d/b", "nowhere"].map(|name| rig.at(name)).into();
            std::thread::scope(|scope| {
                for path in &all {
                    scope.spawn(move || {
                        let _ = fs::metadata(path);
                        let _ = File::open(path);
                        let _ = OpenOptions::new().write(true).create(true).truncate(false).open(path);
                    });
                }
            });
            rig.wait_until_known_to_hang();
            rig.heal();
        }
        let path = rig.at("d/made");
        let mut file = File::create(path).expect("a new file");
        file.write_all(b"text").expect("a write");
        drop(file);
        // Unmounting the pool checks for descriptors left on the branches. Unmounting the faulty branch fails if it is in use.
        assert!(wait_until(PATIENCE, || rig.faulty.hanging() == 0));
        rig.pool.umount();
    }
}

/// Where rules want copies, a branch gets what it has missed before it is back.
#[test]
fn what_is_removed_meanwhile_stays_removed() {
    let rig = Rig::new("rules=d/**=copies 2");
    for name in ["gone", "renamed"] {
        for dir in [rig.well[0].path(), rig.faulty.backing_dir()] {
            fs::write(dir.join("d").join(name), name).expect("a file");
        }
    }
    rig.hang();
    let (gone, old, new) = (rig.at("d/gone"), rig.at("d/renamed"), rig.at("d/a"));
    let changed = in_time(move || fs::remove_file(&gone).and_then(|()| fs::rename(&old, &new)));
    rig.heal();
    changed.expect("changes");
    assert_eq!(names(&rig.at("d")), set(&["a", "b", "c"]));
    assert_eq!(fs::read_to_string(rig.at("d/a")).expect("a file"), "renamed");
    let on_branch = rig.faulty.backing_dir().join("d");
    assert_eq!(
        ["gone", "renamed", "a", "b"].map(|name| on_branch.join(name).exists()),
        [false, false, true, true]
    );
    rig.pool.umount();
}
