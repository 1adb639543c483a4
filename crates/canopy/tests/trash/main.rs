//! What clients remove goes to the trash, and `canopy trash` brings it back. Needs root.

#![forbid(unsafe_code)]

mod brake;
mod emptied;
mod snapraid;

use canopy_testkit::cmd::{Finished, json, run_within, wait_until};
use canopy_testkit::{DirBed as Rig, FaultyFs, LoopFs, PATIENCE, Pool, PoolBed, ScratchDir, as_user};
use rustix::io::Errno;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

const BINARY: &str = env!("CARGO_BIN_EXE_canopy");
const KEEP_ALL: &str = "trash=**=30 days|overwritten";

/// Runs `canopy COMMAND ARGS`.
fn canopy<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Finished {
    run_within(Command::new(BINARY).args(args), PATIENCE)
}

fn trash<S: AsRef<OsStr>>(pool: &Path, action: &str, args: impl IntoIterator<Item = S>) -> Finished {
    let mut command = Command::new(BINARY);
    run_within(command.args(["trash", action]).arg(pool).args(args), PATIENCE)
}

/// Returns what is in the trash, as JSON.
fn kept(pool: &Path) -> Vec<Value> {
    let list = json(&trash(pool, "list", ["--json"]));
    list["kept"].as_array().expect("a list").clone()
}

fn paths(kept: &[Value]) -> Vec<&str> {
    let mut paths: Vec<&str> = kept.iter().filter_map(|item| item["path"].as_str()).collect();
    paths.sort_unstable();
    paths
}

#[test]
fn a_tree_comes_back_as_it_was() {
    let rig = Rig::with(BINARY, &["a", "b"], |builder| builder.option(KEEP_ALL));
    rig.put("a", "photos/2026/one", "1");
    rig.put("b", "photos/2026/two", "22");
    fs::create_dir(rig.on("a", "photos/none")).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    for (dir, mode) in [("photos", 0o750), ("photos/2026", 0o2775), ("photos/none", 0o700)] {
        for branch in ["a", "b"].iter().filter(|branch| rig.on(branch, dir).exists()) {
            let dir = rig.on(branch, dir);
            chown(&dir, Some(1234), Some(4321)).unwrap();
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            fs::File::open(&dir).unwrap().set_modified(then).unwrap();
        }
    }
    fs::set_permissions(rig.on("b", "photos/2026/two"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_dir_all(rig.at("photos")).unwrap();
    assert_eq!(fs::read_dir(rig.pool.path()).unwrap().count(), 0);
    assert_eq!(paths(&kept(rig.pool.path())), ["photos/2026/one", "photos/2026/two", "photos/none"]);

    let shown = trash(rig.pool.path(), "restore", ["photos", "--dry-run"]);
    assert!(shown.success() && shown.stdout.contains("photos/none/"), "{}", shown.describe());
    assert!(!rig.at("photos").exists());
    let done = trash(rig.pool.path(), "restore", ["photos", "--yes"]);
    assert!(done.success() && done.stdout.contains("Restored: 3"), "{}", done.describe());
    assert_eq!(fs::read_to_string(rig.at("photos/2026/one")).unwrap(), "1");
    assert_eq!(fs::read_to_string(rig.at("photos/2026/two")).unwrap(), "22");
    for (path, mode) in [("photos", 0o750), ("photos/2026", 0o2775), ("photos/none", 0o700)] {
        let found = fs::metadata(rig.at(path)).unwrap();
        assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (mode, 1234, 4321), "{path}");
        assert_eq!(found.mtime(), 1_600_000_000, "{path}");
    }
    assert_eq!(fs::metadata(rig.at("photos/2026/two")).unwrap().mode() & 0o777, 0o600);
    assert!(kept(rig.pool.path()).is_empty());
}

#[test]
fn nothing_is_overwritten_and_the_latest_comes_back() {
    let rig = Rig::with(BINARY, &["a", "b"], |builder| builder.option(KEEP_ALL));
    for text in ["first", "second"] {
        fs::write(rig.at("f"), text).unwrap();
        fs::remove_file(rig.at("f")).unwrap();
        // A tick of the clock by which files have their times.
        std::thread::sleep(Duration::from_millis(20));
    }
    fs::write(rig.at("g"), "removed").unwrap();
    fs::remove_file(rig.at("g")).unwrap();
    rig.put("b", "g", "another");
    let done = trash(rig.pool.path(), "restore", ["--yes"]);
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    assert!(
        done.stderr.contains("g stays in the trash: the pool has something under its name"),
        "{}",
        done.describe()
    );
    assert!(
        done.stderr.contains("f stays in the trash: another of this path was removed later"),
        "{}",
        done.describe()
    );
    assert_eq!(fs::read_to_string(rig.at("f")).unwrap(), "second");
    assert_eq!(fs::read_to_string(rig.at("g")).unwrap(), "another");
    let into = rig.at("rescued/here");
    let done = trash(
        rig.pool.path(),
        "restore",
        [OsStr::new("g"), "--into".as_ref(), into.as_ref(), "--json".as_ref()],
    );
    assert_eq!(json(&done)["restored"][0], "rescued/here/g");
    assert_eq!(fs::read_to_string(into.join("g")).unwrap(), "removed");
    let asked = trash(rig.pool.path(), "empty", [""; 0]);
    assert!(!asked.success() && kept(rig.pool.path()).len() == 1, "{}", asked.describe());
    let done = trash(rig.pool.path(), "empty", ["--yes", "--json"]);
    assert_eq!(json(&done)["removed"]["files"], 1);
    let none = trash(rig.pool.path(), "list", [""; 0]);
    assert_eq!(none.stdout, "Nothing is in the trash.\n");
}

#[test]
fn a_directory_does_not_come_back_beside_a_file_on_another_disk() {
    let rig = Rig::with(BINARY, &["a", "b"], |builder| builder.option(KEEP_ALL));
    fs::create_dir(rig.on("a", "name")).unwrap();
    fs::remove_dir(rig.at("name")).unwrap();
    fs::write(rig.on("b", "name"), "a file").unwrap();
    let done = trash(rig.pool.path(), "restore", ["name", "--yes"]);
    assert!(!done.success() && done.stderr.contains("has something under its name"), "{}", done.describe());
    assert!(!rig.on("a", "name").exists() && paths(&kept(rig.pool.path())) == ["name"]);
    // A directory is in the way of none.
    fs::remove_file(rig.on("b", "name")).unwrap();
    fs::create_dir(rig.on("b", "name")).unwrap();
    let done = trash(rig.pool.path(), "restore", ["name", "--yes"]);
    assert!(done.success() && rig.on("a", "name").is_dir(), "{}", done.describe());
}

#[test]
fn what_comes_back_is_seen_at_once() {
    let caches = "cache.entry=3600,cache.negative-entry=3600,cache.readdir=true";
    let scratch = ScratchDir::new("canopy-trash-seen-", &[]);
    let disk = FaultyFs::mount(&scratch.dir());
    // Nothing tells the pool of a change on such a disk.
    let pool = Pool::builder(BINARY).branch(disk.path()).option(KEEP_ALL).option(caches).mount();
    let at = |name: &str| pool.path().join(name);
    fs::write(at("file"), "text").unwrap();
    fs::remove_file(at("file")).unwrap();
    assert!(!at("file").exists() && fs::read_dir(pool.path()).unwrap().count() == 0);
    let done = trash(pool.path(), "restore", ["file", "--yes"]);
    assert!(done.success() && at("file").exists(), "{}", done.describe());
}

#[test]
fn a_copy_that_a_rename_replaces_comes_back_too() {
    let rig = Rig::with(BINARY, &["a"], |builder| builder.option(KEEP_ALL));
    fs::write(rig.at("f"), "old").unwrap();
    fs::write(rig.at("f.new"), "new").unwrap();
    let mut held = fs::File::open(rig.at("f")).unwrap();
    fs::rename(rig.at("f.new"), rig.at("f")).unwrap();
    assert_eq!(held.metadata().unwrap().nlink(), 0, "it has no name that clients see");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut held, &mut text).unwrap();
    assert_eq!((text.as_str(), paths(&kept(rig.pool.path()))), ("old", vec!["f"]));
    fs::remove_file(rig.at("f")).unwrap();
    // The last one is the one that was removed; the one before is there as well.
    let texts: Vec<String> = kept(rig.pool.path())
        .iter()
        .map(|item| fs::read_to_string(item["at"].as_str().unwrap()).unwrap())
        .collect();
    assert!(texts.contains(&"old".to_owned()) && texts.contains(&"new".to_owned()), "{texts:?}");
}

#[test]
fn it_says_who_and_shows_nobody_what_he_could_not_read() {
    let rig = Rig::with(BINARY, &["a"], |builder| builder.option(KEEP_ALL));
    fs::set_permissions(rig.pool.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let user = |line: &str| {
        let mut command = as_user(1500, 1500, &[], "sh");
        run_within(command.args(["-c", line]).current_dir(rig.pool.path()), PATIENCE)
    };
    let done = user("umask 077; mkdir own; echo secret > own/f; rm own/f; rmdir own");
    assert!(done.success(), "{}", done.describe());
    fs::write(rig.at("roots"), "x").unwrap();
    fs::remove_file(rig.at("roots")).unwrap();
    let all = kept(rig.pool.path());
    let of = |path: &str| all.iter().find(|item| item["path"] == path).expect("kept");
    assert_eq!((&of("own/f")["user"], &of("own/f")["program"]), (&Value::from(1500), &Value::from("rm")));
    assert_eq!((&of("own/f")["uid"], &of("own/f")["mode"]), (&Value::from(1500), &Value::from(0o600)));
    assert_eq!(of("roots")["user"], 0);
    let by_user = |args: &[&str]| {
        paths(&json(&trash(rig.pool.path(), "list", args))["kept"].as_array().unwrap().clone()).len()
    };
    assert_eq!(
        (by_user(&["--json", "--user", "1500"]), by_user(&["--json", "--program", "cp"])),
        (2, 0),
        "the directory went by another program"
    );
    assert_eq!((by_user(&["--json", "--since", "1h"]), by_user(&["--json", "--before", "1h"])), (3, 0));
    // Not on the branch either.
    let home = rig.on("a", ".canopy-trash");
    let other = as_user(1501, 1501, &[], "ls").arg(&home).output().unwrap();
    let same = as_user(1500, 1500, &[], "ls").arg(&home).output().unwrap();
    assert!(!other.status.success() && !same.status.success());
    assert!(!rig.at(".canopy-trash").exists());
    let refused =
        run_within(as_user(1500, 1500, &[], BINARY).args(["trash", "list"]).arg(rig.pool.path()), PATIENCE);
    assert!(refused.stderr.contains("only root"), "{}", refused.describe());
}

#[test]
fn the_trash_never_makes_a_disk_full() {
    let builder = Pool::builder(BINARY).option("minfreespace=1M,cache.attr=0,cache.entry=0").option(KEEP_ALL);
    let bed = PoolBed::mount(builder, [LoopFs::ext4(30 << 20)]);
    let free = || rustix::fs::statvfs(bed.pool.path()).map(|it| it.f_bavail * it.f_frsize).unwrap();
    let before = free();
    let megabytes = |count: usize| vec![7_u8; count << 20];
    for round in 0..6 {
        let path = bed.pool.path().join(format!("film{round}"));
        fs::write(&path, megabytes(12)).unwrap_or_else(|why| panic!("round {round}: {why}"));
        fs::remove_file(path).unwrap();
        let lost = before.saturating_sub(free());
        assert!(lost < 1 << 20, "round {round}: {lost} bytes less are free");
    }
    // The latest is still there, and not more than fits.
    let left = kept(bed.pool.path());
    assert!(paths(&left).contains(&"film5") && left.len() < 3, "{left:?}");
    // Small files take all inodes, or all blocks, as they come.
    for round in 0..2 {
        let dir = bed.pool.path().join("many");
        fs::create_dir(&dir).unwrap();
        for name in 0..4000 {
            fs::write(dir.join(name.to_string()), "x").unwrap_or_else(|why| panic!("{round}, {name}: {why}"));
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn a_daemon_that_is_killed_loses_nothing() {
    let disks = [0; 2].map(|_| LoopFs::tmpfs(64 << 20));
    let builder =
        || Pool::builder(BINARY).option("minfreespace=0,cache.attr=0,cache.entry=0").option(KEEP_ALL);
    let mut bed = PoolBed::mount(builder(), disks);
    let mut expected = Vec::new();
    for round in 0..6_u64 {
        for name in 0..120 {
            let path = format!("d{}/r{round}f{name}", name % 7);
            let at = bed.on(name % 2, &path);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(at, format!("text of {path}")).unwrap();
            expected.push(path);
        }
        let mut rm = Command::new("sh");
        rm.args([
            "-c",
            "cd \"$1\" && for f in */r*f*; do echo new > \"$f.n\" && mv \"$f.n\" \"$f\" && rm \"$f\"; done",
            "sh",
        ]);
        let mut rm = rm.arg(bed.pool.path()).stderr(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(20 + 37 * round));
        bed.pool.kill();
        rm.wait().unwrap();
        let PoolBed { pool, disks } = bed;
        drop(pool);
        bed = PoolBed::mount(builder(), disks);
        // The leftover of a rename goes when somebody looks.
        let all = kept(bed.pool.path());
        for path in &expected {
            let text = format!("text of {path}");
            let in_pool = fs::read_to_string(bed.pool.path().join(path)).is_ok_and(|it| it == text);
            let is_kept = |item: &&Value| {
                item["path"] == path.as_str()
                    && fs::read_to_string(item["at"].as_str().unwrap()).is_ok_and(|it| it == text)
            };
            let count = all.iter().filter(is_kept).count();
            assert!(in_pool || count == 1, "{path}: in the pool: {in_pool}, kept: {count}");
        }
    }
    // A second name of a file that is in the pool stays in the trash no longer than until the pool has begun.
    let shared = || {
        let in_trash = kept(bed.pool.path());
        in_trash
            .iter()
            .filter(|it| fs::metadata(it["at"].as_str().unwrap()).is_ok_and(|it| it.nlink() > 1))
            .count()
    };
    assert!(wait_until(PATIENCE, || shared() == 0), "{}", shared());
}

/// Each rename is completed by the next process, and what it replaces is kept once.
#[test]
fn a_process_that_dies_in_a_rename_keeps_what_that_replaces_once() {
    let rig = Rig::with(BINARY, &["a", "b"], |builder| builder.option(KEEP_ALL).option("survive=true"));
    const FILES: usize = 300;
    for number in 0..FILES {
        fs::write(rig.at(&format!("f{number}")), format!("old{number}")).unwrap();
    }
    std::thread::scope(|scope| {
        let renames = scope.spawn(|| {
            for number in 0..FILES {
                fs::write(rig.at("new"), "new").unwrap();
                fs::rename(rig.at("new"), rig.at(&format!("f{number}"))).unwrap();
            }
        });
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(150));
            let pid = rig.pool.status()["pid"].as_i64().expect("a process");
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        renames.join().unwrap();
    });
    let mut texts: Vec<String> = kept(rig.pool.path())
        .iter()
        .map(|item| fs::read_to_string(item["at"].as_str().unwrap()).unwrap())
        .collect();
    texts.sort();
    let mut expected: Vec<String> = (0..FILES).map(|number| format!("old{number}")).collect();
    expected.sort();
    assert_eq!(texts, expected);
}

/// The process that serves now has not removed it, and finds out by what is open.
#[test]
fn an_open_file_in_the_trash_has_no_name_for_the_next_process_either() {
    let rig = Rig::with(BINARY, &["a", "b"], |builder| builder.option(KEEP_ALL).option("survive=true"));
    for name in ["removed", "replaced", "stays"] {
        fs::write(rig.at(name), name).unwrap();
    }
    let held = ["removed", "replaced", "stays"].map(|name| fs::File::open(rig.at(name)).unwrap());
    fs::remove_file(rig.at("removed")).unwrap();
    fs::write(rig.at("new"), "new").unwrap();
    fs::rename(rig.at("new"), rig.at("replaced")).unwrap();
    let links = || held.each_ref().map(|file| file.metadata().unwrap().nlink());
    let link = |file: &fs::File, name: &str| {
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = rustix::fs::AtFlags::SYMLINK_FOLLOW;
        rustix::fs::linkat(rustix::fs::CWD, from.as_str(), rustix::fs::CWD, rig.at(name), flags)
    };
    for round in 0..2 {
        assert_eq!(links(), [0, 0, 1], "round {round}");
        for file in &held[..2] {
            assert_eq!(link(file, "again"), Err(Errno::NOENT), "round {round}");
        }
        assert_eq!(link(&held[2], &format!("link{round}")), Ok(()));
        fs::remove_file(rig.at(&format!("link{round}"))).unwrap();
        if round == 0 {
            let pid = rig.pool.status()["pid"].as_i64().expect("a process");
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }
    assert_eq!(paths(&kept(rig.pool.path())), ["removed", "replaced"]);
    let text = |mut file: &fs::File| {
        let mut text = String::new();
        file.read_to_string(&mut text).map(|_| text).unwrap()
    };
    assert_eq!(held.each_ref().map(text), ["removed", "replaced", "stays"]);
    // What comes back has its name again.
    let done = trash(rig.pool.path(), "restore", ["removed", "--yes"]);
    assert!(done.success() && wait_until(PATIENCE, || rig.at("removed").exists()), "{}", done.describe());
    assert_eq!(held[0].metadata().unwrap().nlink(), 1);
}

#[test]
fn two_that_restore_one_tree_at_once_both_say_that_it_is_back() {
    let rig = Rig::with(BINARY, &["a", "b"], |builder| builder.option(KEEP_ALL));
    for round in 0..4 {
        for number in 0..300 {
            rig.put(["a", "b"][number % 2], &format!("d{}/e{}/f{number}", number % 3, number % 7), "text");
        }
        for dir in ["d0", "d1", "d2"] {
            fs::remove_dir_all(rig.at(dir)).unwrap();
        }
        let restores = || trash(rig.pool.path(), "restore", ["--yes"]);
        let both = std::thread::scope(|scope| {
            let two = [(); 2].map(|()| scope.spawn(restores));
            two.map(|one| one.join().unwrap())
        });
        for done in &both {
            assert!(done.success() && done.stderr.is_empty(), "round {round}: {}", done.describe());
        }
        assert_eq!(kept(rig.pool.path()), [] as [Value; 0]);
        for number in 0..300 {
            let path = format!("d{}/e{}/f{number}", number % 3, number % 7);
            assert_eq!(fs::read_to_string(rig.at(&path)).unwrap(), "text", "round {round}");
        }
    }
}

#[test]
fn status_says_where_nothing_can_be_kept() {
    let rig = Rig::with(BINARY, &["a", "b"], |builder| builder.option(KEEP_ALL));
    let warned = || {
        let status = canopy([OsStr::new("status"), rig.pool.path().as_ref(), "--json".as_ref()]);
        let status: Value = serde_json::from_str(&status.stdout).unwrap();
        let warnings = status["pools"][0]["warnings"].as_array().unwrap().clone();
        let of_trash = warnings.into_iter().find(|it| it["code"] == "trash-unusable");
        of_trash.map(|it| it["branch"].as_str().unwrap().to_owned())
    };
    assert_eq!(warned(), None);
    fs::create_dir(rig.on("b", ".canopy-trash")).unwrap();
    fs::set_permissions(rig.on("b", ".canopy-trash"), fs::Permissions::from_mode(0o777)).unwrap();
    rig.put("b", "f", "text");
    fs::remove_file(rig.at("f")).unwrap();
    assert_eq!(warned(), Some(rig.on("b", "").to_str().unwrap().trim_end_matches('/').to_owned()));
    fs::remove_dir(rig.on("b", ".canopy-trash")).unwrap();
    rig.put("b", "g", "text");
    fs::remove_file(rig.at("g")).unwrap();
    assert_eq!((warned(), paths(&kept(rig.pool.path()))), (None, vec!["g"]));
}

#[test]
fn a_drained_disk_says_that_its_trash_stays() {
    let rig = Rig::with(BINARY, &["a", "b"], |builder| builder.option(KEEP_ALL));
    rig.put("a", "f", "text");
    fs::remove_file(rig.at("f")).unwrap();
    let done =
        canopy([OsStr::new("drain"), rig.pool.path().as_ref(), rig.on("a", "").as_ref(), "--yes".as_ref()]);
    assert!(done.success() && done.stdout.contains("keeps its trash: 4.0K"), "{}", done.describe());
    assert_eq!(paths(&kept(rig.pool.path())), ["f"]);
}

#[test]
fn bad_input_gets_one_line() {
    let rig = Rig::with(BINARY, &["a"], |builder| builder.option(KEEP_ALL));
    let into = rig.scratch.path("home");
    for (args, named) in [
        (vec!["list", "/nowhere"], "/nowhere"),
        (vec!["list", rig.pool.path().to_str().unwrap(), "a["], "a["),
        (vec!["list", rig.pool.path().to_str().unwrap(), "--since", "soon"], "soon"),
        (vec!["list", rig.pool.path().to_str().unwrap(), "--into", "x"], "--into"),
        (
            vec!["restore", rig.pool.path().to_str().unwrap(), "--into", into.to_str().unwrap()],
            "is not in the pool",
        ),
    ] {
        let done = canopy(["trash"].iter().chain(&args));
        assert!(!done.success() && done.stderr.lines().count() == 1, "{}", done.describe());
        assert!(done.stderr.contains(named), "{}", done.describe());
    }
}
