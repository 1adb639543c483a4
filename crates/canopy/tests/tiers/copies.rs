//! Rules with copies: a second disk holds what was closed, whatever is lost, killed or comes back.

use super::rig::{BINARY, Mover, mounted, mounted_with};
use canopy_testkit::cmd::{run_within, spawn, wait_until, wait_within};
use canopy_testkit::{LoopFs, PATIENCE, PoolBed};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const RULE: &str = "photos/**=copies 2";

fn three_disks() -> Vec<LoopFs> {
    (0..3).map(|_| LoopFs::ext4(64 * MIB)).collect()
}

fn files_of(report: &Value, part: &str) -> u64 {
    report[part]["files"].as_u64().unwrap_or_else(|| panic!("{part}: {report}"))
}

/// Returns the branches that hold a file, which must all hold the same.
#[track_caller]
fn same_on(mover: &Mover, path: &str) -> Vec<usize> {
    let on = mover.bed.branches_with(path);
    let content = fs::read(mover.bed.at(path)).unwrap();
    for branch in &on {
        assert!(fs::read(mover.bed.on(*branch, path)).unwrap() == content, "{path} on {branch}");
    }
    on
}

#[test]
fn files_of_a_rule_get_a_second_copy_and_keep_it() {
    let mover = mounted(three_disks(), "", RULE);
    fs::create_dir_all(mover.bed.at("photos/deep")).unwrap();
    for name in ["photos/a", "photos/deep/b", "else"] {
        fs::write(mover.bed.at(name), name).unwrap();
    }
    std::os::unix::fs::symlink("a", mover.bed.at("photos/link")).unwrap();
    fs::write(mover.bed.at("photos/linked"), "").unwrap();
    fs::hard_link(mover.bed.at("photos/linked"), mover.bed.at("elsewhere")).unwrap();
    let dry = mover.run(&["--dry-run"]);
    assert!(dry.stdout.contains("to copy: 3 files"), "{}", dry.describe());
    assert_eq!(mover.bed.branches_with("photos/a"), [0]);
    assert_eq!(files_of(&mover.json(&["--once"]), "copied"), 3);
    for name in ["photos/a", "photos/deep/b", "photos/linked", "elsewhere"] {
        assert_eq!(same_on(&mover, name).len(), 2, "{name}");
    }
    for branch in mover.bed.branches_with("elsewhere") {
        let number = |name: &str| fs::metadata(mover.bed.on(branch, name)).unwrap().ino();
        assert_eq!(number("elsewhere"), number("photos/linked"), "{branch}");
    }
    assert_eq!(mover.bed.branches_with("else"), [0]);
    assert_eq!(mover.bed.branches_with("photos/link"), [0]);
    // What changes attributes and names keeps both copies.
    fs::set_permissions(mover.bed.at("photos/a"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(mover.bed.at("photos/a"), mover.bed.at("photos/deep/a")).unwrap();
    assert_eq!(files_of(&mover.json(&["--once"]), "planned"), 0);
    assert_eq!(same_on(&mover, "photos/deep/a").len(), 2);
    for branch in mover.bed.branches_with("photos/deep/a") {
        assert_eq!(fs::metadata(mover.bed.on(branch, "photos/deep/a")).unwrap().mode() & 0o777, 0o600);
    }
    // What changes content makes the other copy old, until it is made again.
    File::options().append(true).open(mover.bed.at("photos/deep/a")).unwrap().write_all(b", more").unwrap();
    assert_eq!(fs::read(mover.bed.at("photos/deep/a")).unwrap(), b"photos/a, more");
    assert_eq!(files_of(&mover.json(&["--once"]), "copied"), 1);
    assert_eq!(same_on(&mover, "photos/deep/a").len(), 2);
    fs::remove_file(mover.bed.at("photos/deep/a")).unwrap();
    assert_eq!(mover.bed.branches_with("photos/deep/a").len(), 0);
}

/// What writers have done with each file: which version they begin, and which they have closed.
#[derive(Default)]
struct Log(Mutex<BTreeMap<String, (u32, u32)>>);

impl Log {
    fn begins(&self, name: &str) -> u32 {
        let mut files = self.0.lock().unwrap();
        let (begun, _) = files.entry(name.to_owned()).or_default();
        *begun += 1;
        *begun
    }

    fn has_closed(&self, name: &str, version: u32) {
        self.0.lock().unwrap().get_mut(name).unwrap().1 = version;
    }

    /// Returns the files that nobody writes, with their version.
    fn quiet(&self) -> BTreeMap<String, u32> {
        let files = self.0.lock().unwrap();
        let quiet = |(name, (begun, closed)): (&String, &(u32, u32))| {
            (begun == closed).then(|| (name.clone(), *closed))
        };
        files.iter().filter_map(quiet).collect()
    }
}

/// Files that `canopy dup` or people have put on two disks become copies when there is a rule, unless they differ.
#[test]
fn what_was_on_two_disks_before_the_rule_is_kept_up_to_date() {
    // Another rule, so that the journals are open already when descriptors are counted.
    let mover = mounted(three_disks(), "", "else/**=copies 2");
    fs::create_dir(mover.bed.at("photos")).unwrap();
    for name in ["photos/a", "photos/b"] {
        fs::write(mover.bed.at(name), "first").unwrap();
        let (from, to) = (mover.bed.on(0, name), mover.bed.on(1, name));
        fs::create_dir_all(mover.bed.on(1, "photos")).unwrap();
        fs::copy(&from, &to).unwrap();
        let time = fs::metadata(&from).unwrap().modified().unwrap();
        File::options().write(true).open(&to).unwrap().set_modified(time).unwrap();
    }
    let other = mover.bed.on(1, "photos/b");
    let time = fs::metadata(&other).unwrap().modified().unwrap();
    fs::write(&other, "FIRST").unwrap();
    File::options().write(true).open(&other).unwrap().set_modified(time).unwrap();
    mover.bed.pool.set("rules", RULE);
    let told = mover.run(&["--once"]);
    assert!(told.describe().contains("the copies differ in content"), "{}", told.describe());
    File::options().append(true).open(mover.bed.at("photos/a")).unwrap().write_all(b", more").unwrap();
    mover.run(&["--once"]);
    assert_eq!(same_on(&mover, "photos/a"), [0, 1]);
    assert_eq!(fs::read(mover.bed.on(1, "photos/a")).unwrap(), b"first, more");
    assert_eq!(fs::read(&other).unwrap(), b"FIRST", "what differs is left alone");
}

/// The content of a version: many times the same line.
fn content(name: &str, version: u32) -> Vec<u8> {
    format!("{name} {version:08}\n").repeat(2000).into_bytes()
}

/// Returns the version that a file holds, which must be whole.
#[track_caller]
fn version_in(name: &str, bytes: &[u8]) -> u32 {
    let text = std::str::from_utf8(bytes).unwrap();
    let line = text.lines().next().unwrap_or_else(|| panic!("{name} is empty"));
    let version = line.rsplit_once(' ').and_then(|(_, version)| version.parse().ok());
    let version = version.unwrap_or_else(|| panic!("{name}: {line}"));
    assert!(bytes == content(name, version), "{name} is not whole, of {} bytes", bytes.len());
    version
}

/// Writes files until it is told to stop: in place, truncated first, and by renames. An error of the disk that is pulled ends
/// one attempt.
fn write_on(mover: &Mover, log: &Log, stop: &AtomicBool, writer: usize) {
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        // Some files are written again and again, and some are left alone.
        let name = match round % 8 {
            7 if round < 120 => format!("photos/w{writer}-once{round}"),
            _ => format!("photos/w{writer}-{}", round % 8),
        };
        let version = log.begins(&name);
        let (path, bytes) = (mover.bed.at(&name), content(&name, version));
        let written = match round % 3 {
            0 => fs::write(&path, &bytes),
            1 => {
                let aside = mover.bed.at(&format!("photos/.t{writer}-{version}"));
                fs::write(&aside, &bytes).and_then(|()| fs::rename(&aside, &path))
            }
            _ => File::options().write(true).create(true).truncate(false).open(&path).and_then(|mut file| {
                file.write_all(&bytes)?;
                file.sync_data()
            }),
        };
        // The file may be on the disk that fails: its turn comes again.
        if written.is_ok() {
            log.has_closed(&name, version);
        }
        round += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// "Done when" of the issue: a disk is pulled while writers work.
fn a_disk_is_pulled(pull: impl Fn(&mut LoopFs), after: impl Fn(&mut LoopFs)) {
    let mut mover = mounted(three_disks(), "", RULE);
    fs::create_dir(mover.bed.at("photos")).unwrap();
    let (log, stop) = (Log::default(), AtomicBool::new(false));
    let mut disk = mover.bed.disks.remove(0);
    let safe = std::thread::scope(|scope| {
        let (mover, log, stop) = (&mover, &log, &stop);
        let writers: Vec<_> =
            (0..3).map(|writer| scope.spawn(move || write_on(mover, log, stop, writer))).collect();
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut safe = BTreeMap::new();
            for _ in 0..4 {
                std::thread::sleep(Duration::from_millis(200));
                let before = log.quiet();
                mover.run(&["--once", "--eager"]);
                // What was closed before the mover looked and is left alone has a copy now.
                let after = log.quiet();
                safe =
                    before.into_iter().filter(|(name, version)| after.get(name) == Some(version)).collect();
            }
            pull(&mut disk);
            let ill = |it: &Value| !it["illness"].is_null() || it["health"] == "gone";
            let lost = || mover.status()["branches"].as_array().unwrap().iter().any(ill);
            assert!(wait_until(PATIENCE, lost), "{:#}", mover.status());
            // They go on, also with files that were on the lost disk.
            let goes_on = |(name, version): (&String, &u32)| {
                name.contains("once") || log.quiet().get(name).is_some_and(|later| later > version)
            };
            assert!(wait_until(PATIENCE, || safe.iter().all(goes_on)), "{safe:?}\n{:?}", log.quiet());
            safe
        }));
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    assert!(safe.len() > 5, "{safe:?}");
    after(&mut disk);
    let gone = || mover.status()["branches"].as_array().unwrap().iter().any(|it| it["health"] == "gone");
    assert!(wait_until(PATIENCE, gone), "{}", mover.bed.pool.log());
    // What was made in the last moment was on the lost disk only.
    let read = |mover: &Mover, name: &String| match fs::read(mover.bed.at(name)) {
        Err(why) if why.kind() == ErrorKind::NotFound && !safe.contains_key(name) => None,
        Err(why) => panic!("{name}: {why}"),
        Ok(bytes) => Some((name.clone(), version_in(name, &bytes))),
    };
    let all: Vec<String> = log.0.lock().unwrap().keys().cloned().collect();
    let shown: BTreeMap<String, u32> = all.iter().filter_map(|name| read(&mover, name)).collect();
    for (name, version) in &safe {
        assert!(shown[name] >= *version, "{name}: {} instead of {version}", shown[name]);
    }
    // Two copies again.
    let done = mover.run(&["--once"]);
    assert!(done.success(), "{}", done.describe());
    let on =
        |mover: &Mover, name: &str, disk: usize| fs::read(mover.bed.disks[disk].path().join(name)).unwrap();
    for name in shown.keys() {
        assert_eq!(version_in(name, &on(&mover, name, 0)), shown[name]);
        assert_eq!(version_in(name, &on(&mover, name, 1)), shown[name]);
    }
    // The disk comes back, with old copies on the first branch.
    disk.mount_again();
    let all_well = || mover.status()["branches"].as_array().unwrap().iter().all(|it| it["health"] != "gone");
    assert!(wait_until(PATIENCE, all_well), "{}", mover.bed.pool.log());
    // Of others, it may hold what was written last and is on no other disk, as after a power cut.
    for name in safe.keys() {
        assert_eq!(read(&mover, name).unwrap().1, shown[name], "{name}");
    }
    let log = mover.bed.pool.umount();
    assert!(!log.contains("panicked"), "{log}");
    drop((mover.bed.disks, disk));
}

#[test]
fn a_disk_that_is_unmounted_while_writers_work_costs_nothing_that_was_copied() {
    a_disk_is_pulled(LoopFs::unmount_lazily, |_| {});
}

#[test]
fn a_disk_that_dies_while_writers_work_costs_nothing_that_was_copied() {
    let pull = |disk: &mut LoopFs| {
        let done =
            run_within(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(disk.path()), PATIENCE);
        assert!(done.success(), "{}", done.describe());
    };
    a_disk_is_pulled(pull, LoopFs::unmount_lazily);
}

/// Without `--once`, files get their copies soon after they are closed, whether they were written under their name or renamed.
#[test]
fn a_mover_that_stays_copies_what_was_closed() {
    let mover = mounted(three_disks(), "", RULE);
    fs::create_dir(mover.bed.at("photos")).unwrap();
    let mut child = mover.command(&[]).spawn().unwrap();
    let state = || mover.status()["tiering"]["mover"].clone();
    let waits = wait_until(PATIENCE, || state()["state"] == "waits");
    fs::write(mover.bed.at("photos/a"), "a").unwrap();
    fs::write(mover.bed.at("photos.part"), "b").unwrap();
    fs::rename(mover.bed.at("photos.part"), mover.bed.at("photos/b")).unwrap();
    let open = File::create(mover.bed.at("photos/open")).unwrap();
    let has_two = |name: &str| mover.bed.branches_with(name).len() == 2;
    let copied = wait_until(PATIENCE, || has_two("photos/a") && has_two("photos/b"));
    let waited = !has_two("photos/open");
    drop(open);
    let closed = wait_until(PATIENCE, || has_two("photos/open"));
    let told = wait_until(PATIENCE, || state()["copies"]["short"] == 0 && state()["files"] == 3);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .unwrap();
    let ended = wait_within(&mut child, PATIENCE);
    assert!(
        waits && copied && waited && closed && told,
        "{waits} {copied} {waited} {closed} {told} {:#}",
        state()
    );
    assert_eq!(ended.and_then(|status| status.code()), Some(0));
    for name in ["photos/a", "photos/b", "photos/open"] {
        same_on(&mover, name);
    }
}

/// The mover is killed again and again, while a client writes.
#[test]
fn killed_at_any_time_the_next_mover_goes_on() {
    const FILES: usize = 40;
    let mover = mounted_with(three_disks(), "", RULE, "minfreespace=0,cache.files=off");
    fs::create_dir(mover.bed.at("photos")).unwrap();
    let name = |number: usize| format!("photos/{number:02}");
    let mut version = 0;
    let mut killed = 0;
    for attempt in 0..25 {
        version += 1;
        for number in (0..FILES).filter(|number| attempt == 0 || number % 3 == attempt % 3) {
            fs::write(mover.bed.at(&name(number)), content(&name(number), version)).unwrap();
        }
        let mut command = mover.command(&["--once", "--eager"]);
        command.stderr(Stdio::null());
        let mut child = spawn(&mut command).unwrap();
        std::thread::sleep(Duration::from_millis(attempt as u64 * 7 % 90 + 5));
        killed += usize::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        for number in 0..FILES {
            version_in(&name(number), &fs::read(mover.bed.at(&name(number))).unwrap());
        }
    }
    assert!(killed > 0);
    let done = mover.run(&["--once"]);
    assert!(done.success(), "{}", done.describe());
    for number in 0..FILES {
        assert_eq!(same_on(&mover, &name(number)).len(), 2);
    }
    for branch in 0..3 {
        let left = run_within(
            Command::new("find").arg(mover.bed.on(branch, "")).args(["-name", ".canopy-clone.*"]),
            PATIENCE,
        );
        assert_eq!(left.stdout, "", "{}", left.describe());
    }
}

/// The daemon is killed while copies are made, or taken off a branch. What was written last is there under each name.
#[test]
fn a_killed_daemon_leaves_the_newest_copy() {
    const FILES: usize = 30;
    let mount = |disks| mounted_with(disks, "", RULE, "minfreespace=0,cache.files=off");
    let mut mover = mount(three_disks());
    fs::create_dir(mover.bed.at("photos")).unwrap();
    let name = |number: usize| format!("photos/{number:02}");
    // Every fourth one has another name, and is written under either.
    let link = |number: usize| format!("links/{number:02}");
    fs::create_dir(mover.bed.at("links")).unwrap();
    let mut written = [0; FILES];
    for attempt in 0..24_usize {
        for number in (0..FILES).filter(|number| attempt == 0 || number % 3 == attempt % 3) {
            written[number] += 1;
            let at = if number % 4 == 0 && attempt % 2 == 1 { link(number) } else { name(number) };
            fs::write(mover.bed.at(&at), content(&name(number), written[number])).unwrap();
            if number % 4 == 0 && attempt == 0 {
                fs::hard_link(mover.bed.at(&name(number)), mover.bed.at(&link(number))).unwrap();
            }
        }
        let mut command = match attempt % 2 {
            0 => mover.command(&["--once", "--eager"]),
            _ => {
                let mut drain = Command::new(BINARY);
                drain
                    .arg("drain")
                    .arg(mover.bed.pool.path())
                    .arg(mover.bed.on(attempt / 2 % 3, ""))
                    .arg("--eager");
                drain.stdin(Stdio::null()).stdout(Stdio::null());
                drain
            }
        };
        let mut child = spawn(command.stderr(Stdio::null())).unwrap();
        std::thread::sleep(Duration::from_millis(attempt as u64 * 11 % 120 + 10));
        mover.bed.pool.kill();
        child.wait().unwrap();
        let PoolBed { pool, disks } = mover.bed;
        drop(pool);
        mover = mount(disks);
        for (number, version) in written.iter().enumerate() {
            let found = fs::read(mover.bed.at(&name(number))).unwrap();
            assert_eq!(version_in(&name(number), &found), *version, "{} after kill {attempt}", name(number));
            if number % 4 == 0 {
                let number_of = |name: &str| fs::metadata(mover.bed.at(name)).unwrap().ino();
                assert_eq!(
                    number_of(&name(number)),
                    number_of(&link(number)),
                    "{} after kill {attempt}",
                    name(number)
                );
                assert_eq!(fs::read(mover.bed.at(&link(number))).unwrap(), found, "{}", link(number));
            }
        }
    }
    let done = mover.run(&["--once"]);
    assert!(done.success(), "{}", done.describe());
    // A third branch may have what is out of date, or a copy that was to replace another.
    let mut dedup = Command::new(BINARY);
    let done = run_within(dedup.arg("dedup").arg(mover.bed.pool.path()).arg("--yes"), PATIENCE);
    assert!(done.success(), "{}", done.describe());
    for (number, version) in written.iter().enumerate() {
        assert_eq!(same_on(&mover, &name(number)).len(), 2, "{}", name(number));
        if number % 4 == 0 {
            assert_eq!(same_on(&mover, &link(number)), same_on(&mover, &name(number)), "{}", link(number));
        }
        let found = fs::read(mover.bed.at(&name(number))).unwrap();
        assert_eq!(version_in(&name(number), &found), *version);
    }
    mover.bed.pool.umount();
}

#[test]
fn other_commands_know_what_a_rule_wants() {
    let mover = mounted(three_disks(), "", RULE);
    let canopy = |args: &[&str]| {
        let done = run_within(Command::new(BINARY).args(args).stdin(Stdio::null()), PATIENCE);
        assert!(done.success(), "{}", done.describe());
        done.stdout
    };
    let pool = mover.bed.pool.path().to_str().unwrap();
    let path = mover.bed.at("photos/a");
    let path = path.to_str().unwrap();
    assert!(
        mover.status_text().contains("copies none were made yet (canopy tier"),
        "{}",
        mover.status_text()
    );
    fs::create_dir(mover.bed.at("photos")).unwrap();
    fs::write(path, "first").unwrap();
    let explained = canopy(&["explain", "create", &format!("{path}-new")]);
    let explained = explained.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(explained.contains("all branches; by the rule photos/**, which wants 2 copies"), "{explained}");
    canopy(&["dup", pool, path, "--copies", "3"]);
    assert_eq!(same_on(&mover, "photos/a").len(), 3);
    // Dedup leaves two.
    canopy(&["dedup", pool, "--yes"]);
    assert_eq!(same_on(&mover, "photos/a").len(), 2);
    canopy(&["dup", pool, path, "--copies", "3"]);
    fs::write(path, "second").unwrap();
    let which: Value = serde_json::from_str(&canopy(&["which", path, "--json"])).unwrap();
    let old =
        which["paths"][0]["copies"].as_array().unwrap().iter().filter(|copy| copy["old"] == true).count();
    assert_eq!(old, 2, "{which:#}");
    assert!(canopy(&["which", path]).contains("\nold "), "{}", canopy(&["which", path]));
    // Old copies stay as long as there are too few others, and go then.
    canopy(&["dedup", pool, "--yes"]);
    assert_eq!(mover.bed.branches_with("photos/a").len(), 2);
    canopy(&["verify", pool]);
    assert_eq!(files_of(&mover.json(&["--once"]), "copied"), 1);
    canopy(&["dedup", pool, "--yes"]);
    assert_eq!(same_on(&mover, "photos/a").len(), 2);
    assert_eq!(fs::read_to_string(path).unwrap(), "second");
    assert!(
        mover.status_text().contains("copies no file has too few; all checked"),
        "{}",
        mover.status_text()
    );
}
