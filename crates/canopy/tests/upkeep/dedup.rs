//! `canopy dedup`: which copies go, and which never do.

use super::rig::{BINARY, Rig, canopy, disks, interrupted_at_terminal, json, on_pool, put, unfinished};
use canopy_testkit::cmd::{Finished, wait_until};
use canopy_testkit::{LoopFs, PATIENCE, Pool, PoolBed, Rng};
use rustix::fs::XattrFlags;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

const MIB: usize = 1 << 20;

fn dedup(rig: &Rig, args: &[&str]) -> Finished {
    let all = [OsStr::new("dedup"), rig.pool.path().as_os_str()];
    canopy(all.into_iter().chain(args.iter().map(OsStr::new)))
}

/// The branches that hold a path.
fn held(rig: &Rig, path: &str) -> Vec<&'static str> {
    ["a", "b", "c"].into_iter().filter(|branch| rig.on(branch, path).exists()).collect()
}

fn count(report: &Value, part: &str) -> u64 {
    report[part]["files"].as_u64().expect("a number")
}

#[track_caller]
fn report(done: &Finished) -> Value {
    let report: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{}", done.describe()));
    let parts = ["removed", "stayed", "not_begun"].map(|part| count(&report, part));
    assert_eq!(count(&report, "surplus"), parts.iter().sum::<u64>(), "{report}");
    report
}

#[test]
fn equal_copies_go_only_with_write() {
    let rig = Rig::new(BINARY, &["a", "b", "c"]);
    for branch in ["a", "b", "c"] {
        rig.put(branch, "d/all", vec![7; 3 * MIB]);
        rig.put(branch, ".mergerfs.branch", "of the disk");
        rig.put(branch, "lost+found/f", "of the disk");
    }
    rig.put("b", "d/alone", "x");
    rig.put("b", "two", "");
    rig.put("c", "two", "");
    for branch in ["a", "b"] {
        let times = fs::FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000));
        fs::File::open(rig.on(branch, "d")).unwrap().set_times(times).unwrap();
    }
    let planned = report(&dedup(&rig, &["--json"]));
    assert_eq!((planned["dry_run"].as_bool(), count(&planned, "removed")), (Some(true), 3));
    assert_eq!(held(&rig, "d/all"), ["a", "b", "c"]);
    let only = rig.at("d").display().to_string();
    let done = report(&dedup(&rig, &["--json", "--yes", &only]));
    assert_eq!((count(&done, "removed"), count(&done, "stayed")), (2, 0));
    assert_eq!((held(&rig, "d/all"), held(&rig, "two")), (vec!["a"], vec!["b", "c"]));
    let changed = fs::metadata(rig.on("b", "d")).unwrap().modified().unwrap();
    assert_eq!(changed, UNIX_EPOCH + Duration::from_secs(1_000_000_000), "the pool shows no change");
    let branch = rig.scratch.path("c").display().to_string();
    let done = dedup(&rig, &["--keep", &branch, "--yes"]);
    assert!(done.success() && done.stdout.contains("removed: 1 copy"), "{}", done.describe());
    assert_eq!((held(&rig, "two"), held(&rig, "d/alone")), (vec!["c"], vec!["b"]));
    for path in [".mergerfs.branch", "lost+found/f"] {
        assert_eq!(held(&rig, path), ["a", "b", "c"], "{path}");
    }
    assert_eq!(fs::read(rig.at("d/all")).unwrap(), vec![7; 3 * MIB]);
    assert_eq!(count(&json(&dedup(&rig, &["--json", "--yes"])), "surplus"), 0);
    rig.pool.umount();
}

#[test]
fn copies_that_differ_go_only_by_a_rule_and_by_name() {
    let rig = Rig::new(BINARY, &["a", "b"]);
    let paths = ["content", "size", "mode", "attribute", "link"];
    for path in paths {
        for branch in ["a", "b"] {
            rig.put(branch, path, vec![1; 2 * MIB]);
        }
    }
    let mut last = vec![1; 2 * MIB];
    last[2 * MIB - 1] = 2;
    rig.put("b", "content", last);
    rig.put("b", "size", vec![1; 2 * MIB + 1]);
    fs::set_permissions(rig.on("b", "mode"), fs::Permissions::from_mode(0o600)).unwrap();
    rustix::fs::setxattr(rig.on("b", "attribute"), "user.x", b"value", XattrFlags::empty()).unwrap();
    fs::hard_link(rig.on("b", "link"), rig.on("b", "other")).unwrap();
    for (index, path) in paths.iter().enumerate() {
        // The second copy is older, except of the first file.
        for (branch, seconds) in [("a", 2000), ("b", if index == 0 { 3000 } else { 1000 })] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            fs::File::open(rig.on(branch, path)).unwrap().set_modified(time).unwrap();
        }
    }
    let done = dedup(&rig, &["--json", "--yes"]);
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    let told = report(&done);
    assert_eq!((count(&told, "removed"), count(&told, "stayed")), (0, 5));
    for why in ["content", "size", "mode", "attributes"].map(|what| format!("the copies differ in {what}")) {
        assert!(done.stdout.contains(&why), "{why}: {}", done.describe());
    }
    assert!(done.stdout.contains("the copies differ, or have other names"), "{}", done.describe());
    let refused = dedup(&rig, &["--differing", "--yes"]);
    assert!(!refused.success() && refused.stderr.contains("--keep"), "{}", refused.describe());
    for path in paths {
        assert_eq!(held(&rig, path), ["a", "b"], "{path}");
    }
    let done = report(&dedup(&rig, &["--differing", "--keep", "newest", "--yes", "--json"]));
    assert_eq!((count(&done, "removed"), count(&done, "stayed")), (4, 1));
    assert_eq!(held(&rig, "content"), ["b"]);
    for path in ["size", "mode", "attribute"] {
        assert_eq!(held(&rig, path), ["a"], "{path}");
    }
    assert_eq!(held(&rig, "link"), ["a", "b"]);
    rig.pool.umount();
}

/// A file with hard links goes with all of them, or stays with all.
#[test]
fn copies_with_hard_links_go_together() {
    let rig = Rig::new(BINARY, &["a", "b"]);
    for branch in ["a", "b"] {
        for name in ["same", "writer", "content"] {
            rig.put(branch, name, name.repeat(100_000).into_bytes());
            fs::create_dir_all(rig.on(branch, "d")).unwrap();
            fs::hard_link(rig.on(branch, name), rig.on(branch, &format!("d/{name}"))).unwrap();
            let time = UNIX_EPOCH + Duration::from_secs(1000);
            fs::File::open(rig.on(branch, name)).unwrap().set_modified(time).unwrap();
        }
    }
    let file = fs::OpenOptions::new().write(true).open(rig.on("b", "content")).unwrap();
    file.write_all_at(b"X", 600_000).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1000)).unwrap();
    drop(file);
    let mut reader = fs::File::open(rig.at("d/same")).unwrap();
    let writer = fs::OpenOptions::new().append(true).open(rig.at("writer")).unwrap();
    let done = dedup(&rig, &["--keep", rig.on("b", "").to_str().unwrap(), "--yes"]);
    assert!(!done.success() && done.stdout.contains("the copies differ in content"), "{}", done.describe());
    assert!(done.stdout.contains("open for writing"), "{}", done.describe());
    // The copy that a program reads in passthrough stays as long as it does.
    for name in ["same", "writer", "content"] {
        assert_eq!([held(&rig, name), held(&rig, &format!("d/{name}"))], [["a", "b"], ["a", "b"]], "{name}");
    }
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "same".repeat(100_000));
    let [one, other] = ["same", "d/same"].map(|name| fs::metadata(rig.at(name)).unwrap());
    assert_eq!((one.ino(), one.nlink()), (other.ino(), 2));
    drop((reader, writer));
    rig.pool.umount();
}

#[test]
fn the_rules_choose_by_time_and_size() {
    for (rule, expected) in [("newest", "c"), ("oldest", "b"), ("largest", "a"), ("first", "a")] {
        let rig = Rig::new(BINARY, &["a", "b", "c"]);
        for (branch, size, seconds) in [("a", 3, 2000), ("b", 2, 1000), ("c", 2, 3000)] {
            rig.put(branch, "f", vec![1; size]);
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            fs::File::open(rig.on(branch, "f")).unwrap().set_modified(time).unwrap();
        }
        let done = dedup(&rig, &["--keep", rule, "--differing", "--yes"]);
        assert!(done.success(), "{}", done.describe());
        assert_eq!(held(&rig, "f"), [expected], "{rule}");
        rig.pool.umount();
    }
}

/// A copy that is open stays, whoever has it open; the pool's file goes on.
#[test]
fn a_copy_that_is_open_stays() {
    let rig = Rig::new(BINARY, &["a", "b"]);
    for path in ["f", "g"] {
        for branch in ["a", "b"] {
            rig.put(branch, path, "content");
        }
    }
    let keep: PathBuf = rig.scratch.path("b");
    let args = ["--keep", keep.to_str().expect("text"), "--yes"];
    let file = rig.at("f").display().to_string();
    let run = || dedup(&rig, &[args[0], args[1], args[2], &file]);
    for write in [false, true] {
        let open = fs::OpenOptions::new().read(true).write(write).open(rig.at("f")).unwrap();
        let done = run();
        assert!(done.code() == Some(1) && done.stdout.contains("open in a program"), "{}", done.describe());
        assert_eq!(held(&rig, "f"), ["a", "b"]);
        drop(open);
        let on_branch = fs::OpenOptions::new().append(true).open(rig.on("b", "f")).unwrap();
        let done = run();
        assert!(
            done.stdout.contains("open in a program"),
            "the copy to keep is written: {}",
            done.describe()
        );
        drop(on_branch);
    }
    // The pool has shown the first copy, and shows the other one from now on. The daemon may close a handle late.
    assert!(canopy_testkit::cmd::wait_until(PATIENCE, || run().success()));
    assert_eq!(held(&rig, "f"), ["b"]);
    fs::write(rig.at("f"), "new").unwrap();
    assert_eq!(fs::read_to_string(rig.on("b", "f")).unwrap(), "new");
    assert_eq!(fs::read_to_string(rig.at("f")).unwrap(), "new");
    assert_eq!(held(&rig, "g"), ["a", "b"]);
    assert_eq!(fs::read_dir(rig.scratch.path("a")).unwrap().count(), 1, "nothing is left under construction");
    rig.pool.umount();
}

#[test]
fn the_emptiest_disk_keeps_its_copy() {
    let bed = disks("");
    put(&bed, 0, "filler", vec![1; 8 * MIB]);
    for branch in [0, 1] {
        put(&bed, branch, "f", "content");
    }
    let done = on_pool(&bed, "dedup", ["--keep", "emptiest", "--yes"]);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(bed.branches_with("f"), [1]);
}

/// A client opens files for writing while their first copies go, and writes once they are gone: nothing of that may be in a
/// file without a name. The kernel still knows names and attributes of the copies that have gone.
#[test]
fn no_write_is_lost_beside_it() {
    const FILES: usize = 60;
    let rig = Rig::with(BINARY, &["a", "b"], |builder| builder.option("cache.attr=5,cache.entry=5"));
    for file in 0..FILES {
        for branch in ["a", "b"] {
            rig.put(branch, &format!("f{file}"), vec![b'.'; 100_000]);
        }
    }
    let keep = rig.scratch.path("b").display().to_string();
    let mut written = [0_usize; FILES];
    let mut visit = |file: usize| {
        let name = format!("f{file}");
        let mut opened = fs::OpenOptions::new().append(true).open(rig.at(&name)).expect("open");
        if held(&rig, &name) == ["b"] {
            opened.write_all(b"x").expect("write");
            written[file] += 1;
        }
    };
    let run = || dedup(&rig, &["--keep", &keep, "--yes", "--json"]);
    std::thread::scope(|scope| {
        let command = scope.spawn(|| (0..4).for_each(|_| drop(report(&run()))));
        // Backwards, so that the two meet.
        (0..FILES).rev().cycle().take_while(|_| !command.is_finished()).for_each(&mut visit);
    });
    // The daemon may close a handle late.
    assert!(canopy_testkit::cmd::wait_until(PATIENCE, || run().success()));
    (0..FILES).for_each(&mut visit);
    for (file, written) in written.iter().enumerate() {
        let name = format!("f{file}");
        assert!(*written > 0 && held(&rig, &name) == ["b"], "{name}");
        let expected = [vec![b'.'; 100_000], vec![b'x'; *written]].concat();
        assert_eq!(fs::read(rig.at(&name)).unwrap(), expected, "{name}");
    }
    rig.pool.umount();
}

/// How a command that is killed between the two steps of a removal leaves a copy of the file `f`: the digest of the name,
/// size, time, and the number of the process.
fn set_aside(rig: &Rig, branch: &str) -> PathBuf {
    let stat = fs::metadata(rig.on(branch, "f")).expect("metadata");
    let state = format!("{:x}.{:x}.{:x}", stat.len(), stat.mtime(), stat.mtime_nsec());
    let aside = rig.on(branch, &format!(".canopy-clone.dedup.{OF_F}.{state}.4711"));
    fs::rename(rig.on(branch, "f"), &aside).expect("rename");
    aside
}

/// The first half of the BLAKE3 digest of `f`.
const OF_F: &str = "9ab388bedc43eaf44150107d17ad090f";

#[test]
fn a_copy_that_a_killed_command_has_set_aside_is_taken_up() {
    let rig = Rig::new(BINARY, &["a", "b"]);
    let put = || ["a", "b"].map(|branch| rig.put(branch, "f", "content"));
    put();
    let aside = set_aside(&rig, "b");
    let planned = report(&dedup(&rig, &["--json"]));
    assert_eq!((count(&planned, "removed"), aside.exists()), (1, true));
    let reader = fs::File::open(&aside).expect("open");
    let done = dedup(&rig, &["--yes"]);
    assert!(done.code() == Some(1) && done.stdout.contains("open in a program"), "{}", done.describe());
    assert!(aside.exists());
    drop(reader);
    // Also for the file alone.
    let done = dedup(&rig, &["f", "--yes"]);
    assert!(done.success() && done.stdout.contains("removed: 1 copy"), "{}", done.describe());
    assert_eq!((held(&rig, "f"), aside.exists()), (vec!["a"], false));
    // A client had found it before it was set aside, and has written it since.
    put();
    let aside = set_aside(&rig, "a");
    fs::OpenOptions::new().append(true).open(&aside).expect("open").write_all(b", new").expect("write");
    let done = dedup(&rig, &["--yes"]);
    assert!(done.code() == Some(1) && done.stdout.contains("was put back"), "{}", done.describe());
    assert_eq!((held(&rig, "f"), aside.exists()), (vec!["a", "b"], false));
    assert_eq!(fs::read_to_string(rig.at("f")).expect("read"), "content, new");
    // Others have taken the name.
    put();
    let aside = set_aside(&rig, "a");
    rig.put("a", "f", "content");
    // The daemon may close late what was read.
    let run = || dedup(&rig, &["--yes"]);
    assert!(wait_until(PATIENCE, || run().success()), "{}", run().describe());
    assert_eq!((held(&rig, "f"), aside.exists()), (vec!["a"], false));
    // Nothing tells what it was.
    put();
    let aside = set_aside(&rig, "b");
    fs::remove_file(rig.at("f")).expect("unlink");
    let done = dedup(&rig, &["--yes"]);
    assert!(done.code() == Some(1) && done.stdout.contains("has its name any more"), "{}", done.describe());
    assert!(aside.exists());
    fs::remove_file(aside).expect("unlink");
    rig.pool.umount();
}

/// Ctrl-C at a terminal, which shows how far it is.
#[test]
fn ctrl_c_ends_it_in_the_middle_of_a_file() {
    let bed = disks("");
    for branch in [0, 1] {
        put(&bed, branch, "large", vec![3; 4 * MIB]);
    }
    let line = format!("dedup {} --yes --bwlimit 1K", bed.pool.path().display());
    let (status, shown) = interrupted_at_terminal(&line, "1.00 MiB/4.00 MiB");
    assert_eq!(status, Some(1), "{shown}");
    assert!(shown.contains("not begun: 1 copy (4.0M); surplus: 1 copy (4.0M)"), "{shown}");
    assert_eq!(bed.branches_with("large"), [0, 1]);
    let done = on_pool(&bed, "dedup", ["--yes", "--eager"]);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(bed.branches_with("large"), [0]);
}

/// It uses disks only while nobody else does, unless told otherwise.
#[test]
fn it_gives_way_to_other_programs() {
    let bed = disks("");
    for branch in [0, 1] {
        put(&bed, branch, "large", vec![3; 4 * MIB]);
    }
    for (eager, expected) in [(false, "idle"), (true, "")] {
        let mut command = Command::new(BINARY);
        command.arg("dedup").arg(bed.pool.path()).args(["--bwlimit", "1K"]);
        let mut child =
            command.args(eager.then_some("--eager")).stdout(Stdio::null()).spawn().expect("canopy");
        let pid = child.id().to_string();
        let class = || canopy_testkit::cmd::run("ionice", ["-p", &pid]);
        // It has the file open once it reads.
        let reads = || {
            let open = canopy_testkit::proc::descriptors(child.id() as i32);
            open.iter().any(|path| path.ends_with("large"))
        };
        let begun = wait_until(PATIENCE, reads);
        let found = class();
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(begun && found.trim().starts_with(expected), "{found}");
        assert_eq!(found.contains("idle"), !eager, "{found}");
    }
}

/// Killed at any time, it leaves of each file one copy at least under its name, and ends the next time.
#[test]
fn killed_at_any_time_it_goes_on_the_next_time() {
    const FILES: usize = 150;
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("CANOPY_SEED").unwrap_or(20_261_126);
    println!("CANOPY_SEED={seed}");
    let mut rng = Rng::new(seed);
    // In memory: a killed process loses nothing that is written.
    let builder = Pool::builder(BINARY).option("minfreespace=0,cache.attr=0,cache.entry=0");
    let bed = PoolBed::mount(builder, [0; 2].map(|_| LoopFs::tmpfs(96 << 20)));
    let (mut cut, mut left) = (0, 0);
    for round in 0..number("CANOPY_KILLS").unwrap_or(12) {
        for file in 0..FILES {
            for branch in [0, 1] {
                let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
                put(&bed, branch, &format!("d/f{file}"), format!("{file}"));
                fs::File::open(bed.on(branch, &format!("d/f{file}"))).unwrap().set_modified(time).unwrap();
            }
        }
        let mut command = Command::new(BINARY);
        command.arg("dedup").arg(bed.pool.path()).args(["--yes", "-q"]);
        let mut child = command.stdin(Stdio::null()).spawn().expect("canopy");
        let gone = rng.index(FILES);
        // Once it has begun.
        wait_until(PATIENCE, || bed.branches_with(&format!("d/f{gone}")).len() < 2);
        child.kill().expect("kill");
        child.wait().expect("wait");
        let here = |file: &usize| bed.branches_with(&format!("d/f{file}")).len();
        cut += u32::from((0..FILES).any(|file| here(&file) > 1));
        assert!((0..FILES).all(|file| here(&file) > 0), "round {round}");
        left += unfinished(&bed);
        // The daemon may close a file late.
        let done = || on_pool(&bed, "dedup", ["--yes"]);
        assert!(wait_until(PATIENCE, || done().success()), "round {round}: {}", done().describe());
        for file in 0..FILES {
            let path = format!("d/f{file}");
            assert_eq!(bed.branches_with(&path), [0], "round {round}");
            assert_eq!(fs::read_to_string(bed.at(&path)).expect("read"), format!("{file}"));
        }
        assert_eq!(unfinished(&bed), 0);
    }
    println!("{cut} were killed before their end, {left} copies were left aside");
}
