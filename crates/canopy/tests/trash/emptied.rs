//! What a file held that is emptied in place is kept, where that costs nothing.

use super::{BINARY, KEEP_ALL, Rig, kept, paths};
use canopy_testkit::cmd::run_within;
use canopy_testkit::{FaultyFs, LoopFs, PATIENCE, Pool, PoolBed, ScratchDir, as_user};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Returns the texts of a path in the trash, the oldest first.
fn texts(kept: &[Value], path: &str) -> Vec<String> {
    let of_path = kept.iter().filter(|item| item["path"] == path);
    of_path.map(|item| fs::read_to_string(item["at"].as_str().unwrap()).unwrap()).collect()
}

#[test]
fn what_is_emptied_is_kept_and_the_file_stays_itself() {
    for disk in [LoopFs::ext4(64 << 20), LoopFs::xfs(400 << 20)] {
        let shares = disk.kind().name() == "xfs";
        let bed = PoolBed::mount(Pool::builder(BINARY).option("minfreespace=0").option(KEEP_ALL), [disk]);
        let (pool, at) = (bed.pool.path(), |name: &str| bed.pool.path().join(name));
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
        for name in ["redirected", "cut", "open", "linked"] {
            fs::write(at(name), format!("text of {name}")).unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o640)).unwrap();
            File::options().write(true).open(at(name)).unwrap().set_modified(then).unwrap();
        }
        fs::hard_link(at("linked"), at("other")).unwrap();
        let before = fs::metadata(at("linked")).unwrap();
        let reader = File::open(at("open")).unwrap();
        let writer = File::options().write(true).open(at("open")).unwrap();

        fs::write(at("redirected"), "new").unwrap();
        let cut = run_within(Command::new("truncate").args(["-s", "0"]).arg(at("cut")), PATIENCE);
        assert!(cut.success(), "{}", cut.describe());
        writer.set_len(0).unwrap();
        File::create(at("linked")).unwrap();

        let all = kept(pool);
        for (name, path) in
            [("redirected", "redirected"), ("cut", "cut"), ("open", "open"), ("linked", "other")]
        {
            assert_eq!(texts(&all, path), [format!("text of {name}")], "under its latest name");
            let item = all.iter().find(|item| item["path"] == path).unwrap();
            let found = fs::metadata(item["at"].as_str().unwrap()).unwrap();
            assert_eq!((found.mode() & 0o7777, found.mtime(), found.nlink()), (0o640, 1_600_000_000, 1));
        }
        assert_eq!(all.len(), 4);
        assert_eq!(fs::read_to_string(at("redirected")).unwrap(), "new");
        let after = fs::metadata(at("other")).unwrap();
        assert_eq!((after.ino(), after.nlink(), after.size()), (before.ino(), 2, 0));
        let mut buffer = [0; 8];
        assert_eq!(reader.read_at(&mut buffer, 0).unwrap(), 0, "the reader has the same file");

        // Nothing is lost of an empty file, nor of one that is cut short.
        File::create(at("cut")).unwrap();
        fs::write(at("short"), "longer").unwrap();
        File::options().write(true).open(at("short")).unwrap().set_len(3).unwrap();
        assert_eq!(kept(pool).len(), 4);

        // What cannot share blocks is copied only if it is small.
        fs::write(at("film"), vec![7; 20 << 20]).unwrap();
        File::create(at("film")).unwrap();
        assert_eq!(paths(&kept(pool)).contains(&"film"), shares);
        assert_eq!(fs::metadata(at("film")).unwrap().len(), 0);
    }
}

#[test]
fn emptying_fails_never_for_the_sake_of_the_trash() {
    let bed = PoolBed::mount(
        Pool::builder(BINARY).option("minfreespace=0").option(KEEP_ALL),
        [LoopFs::ext4(40 << 20)],
    );
    fs::set_permissions(bed.pool.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let at = |name: &str| bed.pool.path().join(name);
    for number in 0..8 {
        fs::write(at(&format!("f{number}")), vec![7; 1 << 20]).unwrap();
    }
    bed.disks[0].fill(300 << 10);
    for number in 0..8 {
        let mut file = File::create(at(&format!("f{number}"))).unwrap();
        file.write_all(&vec![8; 1 << 20]).unwrap_or_else(|why| panic!("{number}: {why}"));
    }
    // Of another user, who cannot read it in the trash either.
    fs::remove_file(at("f0")).unwrap();
    let mut user = as_user(1500, 1500, &[], "sh");
    let line = "umask 077; echo secret > own; : > own; echo again > own";
    let done = run_within(user.args(["-c", line]).current_dir(bed.pool.path()), PATIENCE);
    assert!(done.success(), "{}", done.describe());
    let all = kept(bed.pool.path());
    let own = all.iter().find(|item| item["path"] == "own").expect("kept");
    assert_eq!((&own["user"], &own["uid"], &own["mode"]), (&1500.into(), &1500.into(), &0o600.into()));
}

/// At any time, what a file held is in it or in the trash.
#[test]
fn a_daemon_that_is_killed_while_files_are_emptied_loses_nothing() {
    let rig = Rig::with(BINARY, &["a", "b"], |builder| builder.option(KEEP_ALL).option("survive=true"));
    const FILES: usize = 300;
    let text = |number: usize| format!("old{number} ").repeat(3000);
    for number in 0..FILES {
        fs::write(rig.at(&format!("f{number}")), text(number)).unwrap();
    }
    std::thread::scope(|scope| {
        let empties = scope.spawn(|| {
            for number in 0..FILES {
                File::create(rig.at(&format!("f{number}"))).unwrap();
            }
        });
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(100));
            let pid = rig.pool.status()["pid"].as_i64().expect("a process");
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        empties.join().unwrap();
    });
    let all = kept(rig.pool.path());
    for number in 0..FILES {
        let path = format!("f{number}");
        let mut left = String::new();
        File::open(rig.at(&path)).unwrap().read_to_string(&mut left).unwrap();
        let kept = texts(&all, &path);
        let lengths: Vec<usize> = kept.iter().map(String::len).collect();
        assert!(kept.iter().all(|kept| *kept == text(number)), "{path}: {lengths:?}");
        assert_eq!((left.len(), kept.is_empty()), (0, false), "{path}");
    }
}

/// A FUSE server may empty a file as soon as the kernel opens it, which it does before it asks the pool.
#[test]
fn a_disk_that_empties_files_when_they_are_opened_does_not_before_they_are_kept() {
    let scratch = ScratchDir::new("canopy-trash-emptied-", &[]);
    let disk = FaultyFs::mount(&scratch.dir());
    let pool = Pool::builder(BINARY).branch(disk.path()).option("minfreespace=0").option(KEEP_ALL).mount();
    let at = pool.path().join("f");
    fs::write(&at, "text").unwrap();
    let before = pool.log();
    fs::write(&at, "other").unwrap();
    // It has no files without a name, in which a copy is made, and so it is told.
    let told = pool.log()[before.len()..].contains("f: removed without being kept in the trash");
    assert!(told, "{}", pool.log());
}
