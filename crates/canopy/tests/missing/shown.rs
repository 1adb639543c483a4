//! What is shown of a missing disk, and what is refused there.

use super::rig::{bed, branch, bring_back, take_away, tree, wait_until_known};
use canopy_testkit::cmd::run_within;
use canopy_testkit::require_root;
use rustix::io::Errno;
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::time::SystemTime;
use tempfile::TempDir;

#[track_caller]
fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Errno {
    Errno::from_io_error(&result.expect_err("it is refused")).expect("an errno")
}

#[test]
fn names_stay_and_what_was_behind_them_cannot_be_used() {
    require_root();
    let state = TempDir::new().unwrap();
    let mut bed = bed(&state);
    let before = tree(bed.pool.path());
    take_away(&mut bed, 0);
    let remembered = &branch(&bed.pool, bed.disks[0].path())["remembered"];
    assert_eq!((&remembered["shown"], &remembered["whole"]), (&true.into(), &true.into()));
    assert_eq!(tree(bed.pool.path()), before);
    assert!(run_within(Command::new("ls").arg("-lR").arg(bed.pool.path()), super::rig::PATIENCE).success());
    let at = |path: &str| bed.at(path);
    // Opened:
    assert_eq!(errno(File::open(at("films/1.mkv"))), Errno::IO);
    assert_eq!(errno(OpenOptions::new().write(true).open(at("films/1.mkv"))), Errno::IO);
    assert_eq!(errno(fs::write(at("films/1.mkv"), "new")), Errno::IO);
    // Changed:
    assert_eq!(errno(fs::set_permissions(at("films/1.mkv"), Permissions::from_mode(0o600))), Errno::ROFS);
    assert_eq!(
        errno(
            rustix::fs::utimensat(
                rustix::fs::CWD,
                at("films/1.mkv"),
                &rustix::fs::Timestamps {
                    last_access: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
                    last_modification: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
                },
                rustix::fs::AtFlags::empty()
            )
            .map_err(io::Error::from)
        ),
        Errno::ROFS
    );
    assert_eq!(errno(std::os::unix::fs::chown(at("only"), Some(1), None)), Errno::ROFS);
    // Removed:
    assert_eq!(errno(fs::remove_file(at("films/1.mkv"))), Errno::ROFS);
    assert_eq!(errno(fs::remove_file(at("films/link"))), Errno::ROFS);
    for dir in ["films", "films/old", "only/deep"] {
        assert_eq!(errno(fs::remove_dir(at(dir))), Errno::NOTEMPTY, "{dir}");
    }
    // Renamed, and put in its place:
    assert_eq!(errno(fs::rename(at("films/1.mkv"), at("music/1.mkv"))), Errno::ROFS);
    assert_eq!(errno(fs::rename(at("films"), at("elsewhere"))), Errno::ROFS);
    assert_eq!(errno(fs::rename(at("both"), at("elsewhere"))), Errno::ROFS, "a part of it is missing");
    assert_eq!(errno(fs::rename(at("music/1.flac"), at("films/1.mkv"))), Errno::ROFS);
    assert_eq!(errno(fs::hard_link(at("music/1.flac"), at("films/1.mkv"))), Errno::EXIST);
    assert_eq!(errno(fs::hard_link(at("films/1.mkv"), at("music/hard"))), Errno::ROFS);
    assert_eq!(errno(File::create_new(at("films/1.mkv"))), Errno::EXIST);
    assert_eq!(errno(fs::create_dir(at("films"))), Errno::EXIST);
    assert_eq!(errno(symlink("x", at("films/1.mkv"))), Errno::EXIST);
    assert_eq!(errno(File::create(at("films/new"))), Errno::ROFS, "no disk has the directory");
    // What the other disks hold can be used, also in directories that both have, and names that are new.
    assert_eq!(fs::read_to_string(at("both/1")).unwrap(), "both");
    fs::write(at("both/new"), "new").unwrap();
    fs::rename(at("both/new"), at("both/newer")).unwrap();
    fs::remove_file(at("both/newer")).unwrap();
    fs::create_dir(at("made")).unwrap();
    fs::remove_dir(at("made")).unwrap();
    // An empty directory can be removed.
    fs::remove_dir(at("empty")).unwrap();
    assert!(!at("empty").exists() && !tree(bed.pool.path()).contains_key(std::path::Path::new("empty")));
    fs::create_dir(at("empty")).unwrap();
    fs::remove_dir(at("empty")).unwrap();
    assert_eq!(fs::metadata(at("nothing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    bring_back(&mut bed, 0);
    assert_eq!(tree(bed.pool.path()), before);
    assert_eq!(fs::read(bed.at("films/3.mkv")).unwrap(), b"fff");
    fs::remove_file(bed.at("films/1.mkv")).unwrap();
    fs::rename(bed.at("both"), bed.at("elsewhere")).unwrap();
    bed.pool.umount();
}

#[test]
fn a_disk_that_returns_is_shown_as_it_is() {
    require_root();
    let state = TempDir::new().unwrap();
    let mut bed = bed(&state);
    take_away(&mut bed, 0);
    assert_eq!(fs::metadata(bed.at("films/5.mkv")).unwrap().len(), 5);
    // Files that a process holds by its name.
    let held =
        rustix::fs::open(bed.at("films/6.mkv"), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    let aside = TempDir::new().unwrap();
    let device = bed.disks[0].device().expect("a disk").to_owned();
    let mounted = run_within(Command::new("mount").arg(&device).arg(aside.path()), super::rig::PATIENCE);
    assert!(mounted.success(), "{}", mounted.describe());
    fs::write(aside.path().join("films/5.mkv"), "longer than it was").unwrap();
    fs::remove_file(aside.path().join("films/4.mkv")).unwrap();
    fs::rename(aside.path().join("only"), aside.path().join("renamed")).unwrap();
    fs::write(aside.path().join("both/added"), "").unwrap();
    let old = File::options().write(true).open(aside.path().join("films/9.mkv")).unwrap();
    old.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH)).unwrap();
    drop(old);
    let unmounted = run_within(Command::new("umount").arg(aside.path()), super::rig::PATIENCE);
    assert!(unmounted.success(), "{}", unmounted.describe());
    bring_back(&mut bed, 0);
    assert_eq!(fs::read_to_string(bed.at("films/5.mkv")).unwrap(), "longer than it was");
    assert!(!bed.at("films/4.mkv").exists() && !bed.at("only").exists());
    assert!(bed.at("renamed/deep/file").exists() && bed.at("both/added").exists());
    assert_eq!(fs::metadata(bed.at("films/9.mkv")).unwrap().modified().unwrap(), SystemTime::UNIX_EPOCH);
    assert_eq!(rustix::fs::fstat(&held).unwrap().st_size, 6);
    drop(held);
    // And so it is when it goes again.
    wait_until_known(&bed.pool);
    let before = tree(bed.pool.path());
    take_away(&mut bed, 0);
    assert_eq!(tree(bed.pool.path()), before);
    bring_back(&mut bed, 0);
    bed.pool.umount();
}

#[test]
fn what_has_just_changed_is_not_shown_as_if_it_were_all() {
    require_root();
    let state = TempDir::new().unwrap();
    let mut bed = bed(&state);
    for number in 0..50 {
        fs::write(bed.at(&format!("films/late{number}")), "").unwrap();
    }
    bed.disks[0].unmount_lazily();
    let missing = || branch(&bed.pool, bed.disks[0].path())["illness"]["health"] == "gone";
    assert!(canopy_testkit::cmd::wait_until(super::rig::PATIENCE, missing));
    let listed: io::Result<Vec<_>> = fs::read_dir(bed.at("films"))
        .and_then(|dir| dir.map(|entry| entry.map(|entry| entry.file_name())).collect());
    match listed {
        Ok(names) => assert_eq!(names.len(), 40 + 2 + 50),
        Err(why) => assert_eq!(Errno::from_io_error(&why), Some(Errno::IO)),
    }
    let listed = fs::read_dir(bed.at("only")).unwrap().count();
    assert_eq!(listed, 2, "nothing has happened there");
    bring_back(&mut bed, 0);
    bed.pool.umount();
}
