//! What is remembered outlives the process, and ends when somebody says so.

use super::rig::{PATIENCE, bed, branch, builder, disks, take_away, tree, wait_until_back, wait_until_known};
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{PoolBed, require_root};
use rustix::io::Errno;
use serde_json::Value;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Lists a directory to its end.
fn list(path: &Path) -> io::Result<Vec<String>> {
    let mut names: Vec<String> = fs::read_dir(path)?
        .map(|entry| entry.map(|entry| entry.file_name().into_string().expect("text")))
        .collect::<io::Result<_>>()?;
    names.sort();
    Ok(names)
}

/// Mounts the pool of a killed process again, where it was.
fn mount_again(state: &Path, at: &Path, disks: Vec<canopy_testkit::LoopFs>) -> PoolBed {
    let pool = builder(state).at(at).branches(disks.iter().map(canopy_testkit::LoopFs::path)).mount();
    PoolBed { pool, disks }
}

#[test]
fn a_pool_that_is_mounted_without_a_disk_shows_what_it_knows() {
    require_root();
    let (state, point) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for kill in [true, false] {
        let mut bed = mount_again(state.path(), point.path(), disks());
        wait_until_known(&bed.pool);
        fs::write(bed.at("films/added"), "12").unwrap();
        wait_until_known(&bed.pool);
        std::thread::sleep(std::time::Duration::from_millis(1500));
        wait_until_known(&bed.pool);
        let before = tree(bed.pool.path());
        let PoolBed { mut pool, mut disks } = bed;
        if kill {
            pool.kill();
            drop(pool);
        } else {
            pool.umount();
        }
        disks[0].unmount();
        // As a disk that fstab knows: its directory is not there.
        let place = disks[0].path().to_owned();
        let aside = place.with_extension("aside");
        fs::rename(&place, &aside).unwrap();
        bed = mount_again(state.path(), point.path(), disks);
        assert_eq!(branch(&bed.pool, &place)["health"], "gone");
        assert_eq!(tree(bed.pool.path()), before, "killed: {kill}");
        assert_eq!(fs::metadata(bed.at("films/added")).unwrap().len(), 2);
        fs::rename(&aside, &place).unwrap();
        bed.pool.umount();
        bed.disks[0].mount_again();
    }
}

/// As without a line in fstab: nothing but the pool knows that a disk belongs there.
#[test]
fn the_directory_below_a_disk_that_is_not_mounted_is_not_taken_for_the_disk() {
    require_root();
    let (state, point) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let PoolBed { pool, mut disks } = mount_again(state.path(), point.path(), disks());
    wait_until_known(&pool);
    let before = tree(pool.path());
    pool.umount();
    disks[0].unmount();
    let place = disks[0].path().to_owned();
    let is_empty = || fs::read_dir(&place).unwrap().next().is_none();
    assert!(is_empty(), "the directory is there");
    // Without leave to do without disks, the pool is not mounted.
    let mut refused = Command::new(env!("CARGO_BIN_EXE_canopy"));
    refused.env("CANOPY_STATE_DIR", state.path()).args(["mount", "-o", "missing=remember"]);
    refused.args(disks.iter().map(canopy_testkit::LoopFs::path)).arg(point.path());
    let refused = run_within(&mut refused, PATIENCE);
    assert!(!refused.success() && refused.stderr.contains("where its disk was"), "{}", refused.describe());
    let survives = builder(state.path()).at(point.path()).option("survive=true");
    let pool = survives.branches(disks.iter().map(canopy_testkit::LoopFs::path)).mount();
    let mut bed = PoolBed { pool, disks };
    let process = || {
        let asked = bed.pool.command(["get".as_ref(), bed.pool.path().as_os_str(), "pid".as_ref()]);
        asked.stdout.trim().parse::<i32>().unwrap_or_default()
    };
    let first = process();
    for taken_over in [false, true] {
        assert_eq!(branch(&bed.pool, &place)["health"], "gone");
        assert_eq!(tree(bed.pool.path()), before, "taken over: {taken_over}");
        if !taken_over {
            let pid = rustix::process::Pid::from_raw(first).expect("a process");
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            assert!(wait_until(PATIENCE, || ![0, first].contains(&process())), "{}", bed.pool.log());
        }
    }
    fs::write(bed.at("both/new"), "").unwrap();
    assert!(is_empty(), "nothing goes below the disk");
    fs::remove_file(bed.at("both/new")).unwrap();
    bed.disks[0].mount_again();
    wait_until_back(&bed, 0);
    assert_eq!(fs::read_to_string(bed.at("only/deep/file")).unwrap(), "deep");
    // What is meant is used.
    take_away(&mut bed, 0);
    let PoolBed { pool, disks } = bed;
    pool.umount();
    let mark = place.join(".mergerfs.branch");
    fs::write(&mark, "").unwrap();
    let bed = mount_again(state.path(), point.path(), disks);
    assert!(!bed.at("films").exists() && bed.at("music").exists());
    let PoolBed { pool, mut disks } = bed;
    pool.umount();
    fs::remove_file(mark).unwrap();
    disks[0].mount_again();
}

#[test]
fn a_pattern_that_does_not_match_a_missing_disk_does_not_hide_it() {
    require_root();
    let (state, point) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut disks = disks();
    let (first, second) = (disks[0].path().to_owned(), disks[1].path().to_owned());
    let pattern = format!("{{{},{}}}", first.to_str().unwrap(), second.to_str().unwrap());
    let mount = || builder(state.path()).at(point.path()).branch(Path::new(&pattern)).mount();
    let mut pool = mount();
    wait_until_known(&pool);
    let before = tree(pool.path());
    pool.umount();
    disks[0].unmount();
    let aside = first.with_extension("aside");
    fs::rename(&first, &aside).unwrap();
    pool = mount();
    assert_eq!(tree(pool.path()), before);
    let paths: Vec<_> =
        pool.status()["branches"].as_array().unwrap().iter().map(|one| one["path"].clone()).collect();
    assert_eq!(paths, [second.to_str().unwrap(), first.to_str().unwrap()]);
    let forgot = pool.command(["forget".as_ref(), pool.path().as_os_str(), first.as_os_str()]);
    assert!(forgot.success(), "{}", forgot.describe());
    pool.umount();
    pool = mount();
    assert_eq!(list(pool.path()).unwrap(), ["both", "music"], "it is not missed any more");
    pool.umount();
    fs::rename(&aside, &first).unwrap();
    disks[0].mount_again();
}

#[test]
fn a_disk_that_was_never_read_is_not_taken_for_an_empty_one() {
    require_root();
    let (state, home) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let never = home.path().join("never");
    let there = disks();
    let pool =
        builder(state.path()).branch(&never).branches(there.iter().map(canopy_testkit::LoopFs::path)).mount();
    let bed = PoolBed { pool, disks: there };
    assert_eq!(list(bed.pool.path()).unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    // All else works.
    assert_eq!(fs::read_to_string(bed.at("both/1")).unwrap(), "both");
    fs::write(bed.at("both/new"), "new").unwrap();
    fs::create_dir(bed.at("made")).unwrap();
    fs::remove_dir(bed.at("made")).unwrap();
    let forgot = bed.pool.command(["forget".as_ref(), bed.pool.path().as_os_str(), never.as_os_str()]);
    assert!(forgot.success(), "{}", forgot.describe());
    assert_eq!(
        list(bed.pool.path()).unwrap(),
        ["both", "empty", "films", "made", "music", "only"]
            .into_iter()
            .filter(|name| bed.at(name).exists())
            .collect::<Vec<_>>()
    );
    bed.pool.umount();
}

#[test]
fn what_is_forgotten_is_hidden_and_the_list_is_what_was_lost() {
    require_root();
    let state = TempDir::new().unwrap();
    let mut bed = bed(&state);
    let verified = bed.pool.command(["verify".as_ref(), "--yes".as_ref(), bed.pool.path().as_os_str()]);
    assert!(verified.success(), "{}", verified.describe());
    wait_until_known(&bed.pool);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    wait_until_known(&bed.pool);
    let disk = bed.disks[0].path().to_owned();
    let run = |bed: &PoolBed, command: &str, more: &[&str]| {
        let mut args = vec![command.as_ref(), bed.pool.path().as_os_str(), disk.as_os_str()];
        args.extend(more.iter().map(std::ffi::OsStr::new));
        bed.pool.command(args)
    };
    let refused = run(&bed, "forget", &[]);
    assert!(!refused.success() && refused.stderr.contains("is not missing"), "{}", refused.describe());
    take_away(&mut bed, 0);
    let lost = run(&bed, "lost", &["--json"]);
    assert!(lost.success(), "{}", lost.describe());
    let lost: Value = serde_json::from_str(&lost.stdout).unwrap();
    let files = lost["files"].as_array().unwrap();
    let film = files.iter().find(|file| file["path"] == "films/9.mkv").unwrap_or_else(|| panic!("{lost:#}"));
    assert_eq!((&film["size"], &film["type"]), (&9.into(), &"file".into()));
    assert_eq!(film["blake3"].as_str().map(str::len), Some(64), "{film:#}");
    assert_eq!((&lost["whole"], &lost["unknown"]), (&true.into(), &Value::Array(Vec::new())));
    let text = run(&bed, "lost", &[]);
    assert!(text.success() && text.stdout.contains("films/9.mkv"), "{}", text.describe());
    let which = bed.pool.command(["which".as_ref(), bed.at("films/9.mkv").as_os_str()]);
    assert!(which.success() && which.stdout.contains("missing"), "{}", which.describe());
    let ls = bed.pool.command(["ls".as_ref(), bed.at("films").as_os_str()]);
    assert!(ls.success() && ls.stdout.contains("9.mkv"), "{}", ls.describe());
    let status = bed.pool.command(["status".as_ref(), bed.pool.path().as_os_str()]);
    assert!(status.stdout.contains("names stay"), "{}", status.describe());
    let forgot = run(&bed, "forget", &[]);
    assert!(forgot.success(), "{}", forgot.describe());
    assert_eq!(list(bed.pool.path()).unwrap(), ["both", "music"]);
    assert_eq!(list(&bed.at("both")).unwrap().len(), 20);
    fs::create_dir(bed.at("films")).unwrap();
    fs::remove_dir(bed.at("films")).unwrap();
    bed.disks[0].mount_again();
    assert!(canopy_testkit::cmd::wait_until(super::rig::PATIENCE, || bed.at("films/9.mkv").exists()));
    bed.pool.umount();
}
