//! What is remembered outlives the process, and ends when somebody says so.

use super::rig::{bed, branch, builder, disks, take_away, tree, wait_until_known};
use canopy_testkit::{PoolBed, require_root};
use rustix::io::Errno;
use serde_json::Value;
use std::fs;
use std::io;
use std::path::Path;
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
        assert_eq!(branch(&bed.pool, &place)["health"], "awaited");
        assert_eq!(tree(bed.pool.path()), before, "killed: {kill}");
        assert_eq!(fs::metadata(bed.at("films/added")).unwrap().len(), 2);
        fs::rename(&aside, &place).unwrap();
        bed.pool.umount();
        bed.disks[0].mount_again();
    }
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
