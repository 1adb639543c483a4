//! `canopy tier`: what moves between tiers, and to where rules want it.

use super::rig::{MIB, Mover, mounted};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Fields, LoopFs, PATIENCE, Tree};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// An SSD of 100 MiB that gives files from 70 % on, and two disks.
const TIERS: &str = "ssd=@0|fuller than 70%;disks=@1:@2";

fn disks() -> Vec<LoopFs> {
    [100, 200, 200].map(|size| LoopFs::tmpfs(size << 20)).into()
}

/// Writes a file of so many MiB, last used so many hours ago.
fn file(mover: &Mover, branch: usize, path: &str, size: usize, hours: u64) {
    let path = mover.bed.on(branch, path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, vec![hours as u8; size * MIB]).unwrap();
    let long_ago = fs::FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30));
    File::options().write(true).open(&path).unwrap().set_times(long_ago).unwrap();
    set_age(&path, hours);
}

/// Has a file be last used so many hours ago.
fn set_age(path: &Path, hours: u64) {
    let then = SystemTime::now() - Duration::from_secs(hours * 3600);
    let times = fs::FileTimes::new().set_accessed(then);
    File::options().write(true).open(path).unwrap().set_times(times).unwrap();
}

fn files_of(report: &Value, part: &str) -> u64 {
    report[part]["files"].as_u64().unwrap_or_else(|| panic!("{part}: {report}"))
}

#[test]
fn a_tier_above_its_mark_gives_what_was_not_used_for_the_longest_time() {
    let mover = mounted(disks(), TIERS, "");
    // 80 MiB in all, of which 30 must go.
    for hours in 1..=16 {
        file(&mover, 0, &format!("dir/{hours:02}"), 5, hours);
    }
    fs::create_dir(mover.bed.on(0, "other")).unwrap();
    fs::hard_link(mover.bed.on(0, "dir/15"), mover.bed.on(0, "other/link")).unwrap();
    let before = Tree::capture_with(mover.bed.pool.path(), Fields::all());
    // Which has read them.
    (1..=16).for_each(|hours| set_age(&mover.bed.on(0, &format!("dir/{hours:02}")), hours));
    let writer = File::options().append(true).open(mover.bed.at("dir/16")).unwrap();

    let dry = mover.json(&["--dry-run"]);
    assert_eq!((dry["steps"].as_array().map(Vec::len), files_of(&dry, "moved")), (Some(6), 0), "{dry:#}");
    // It ends with status 1, since a file stays that is open for writing.
    let done = mover.run(&["--once", "--json"]);
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|why| panic!("{why}: {}", done.describe()));
    assert_eq!((files_of(&report, "moved"), files_of(&report, "stayed")), (5, 1), "{report:#}");
    assert_eq!(report["stays"][0]["why"], "open for writing");
    for hours in 1..=16 {
        let on = mover.bed.branches_with(&format!("dir/{hours:02}"));
        assert_eq!(on == [0], !(11..=15).contains(&hours), "{hours}: {on:?}");
    }
    let ino = |path: &str| fs::metadata(mover.bed.at(path)).unwrap().ino();
    assert_eq!(ino("dir/15"), ino("other/link"));
    assert_eq!(mover.bed.branches_with("other/link"), mover.bed.branches_with("dir/15"));
    drop(writer);
    before.assert_same(&Tree::capture_with(mover.bed.pool.path(), Fields::all()));
    // Below the mark, nothing moves.
    assert_eq!(files_of(&mover.json(&["--once"]), "planned"), 0);
    let status = mover.status();
    let text = format!("{status:#}");
    assert_eq!(status["tiering"]["tiers"][0]["name"], "ssd", "{text}");
    assert_eq!(
        (&status["tiering"]["tiers"][0]["mark"], &status["tiering"]["mover"]["running"]),
        (&70.into(), &false.into())
    );
    assert!(status["tiering"]["mover"]["ended"].is_u64(), "{text}");
    let text = mover.status_text();
    for words in ["tier ssd: 55% of 100M; files move when fuller than 70%", "tier disks: ", "mover ended at "]
    {
        assert!(text.contains(words), "{words}\n{text}");
    }
}

#[test]
fn what_is_open_does_not_keep_a_tier_above_its_mark() {
    let mover = mounted(disks(), TIERS, "");
    for hours in 1..=16 {
        file(&mover, 0, &format!("{hours:02}"), 5, hours);
    }
    let open: Vec<File> = (9..=16)
        .map(|hours| File::options().append(true).open(mover.bed.at(&format!("{hours:02}"))).unwrap())
        .collect();
    let done = mover.run(&["--once", "--json"]);
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|why| panic!("{why}: {}", done.describe()));
    assert_eq!((files_of(&report, "moved"), files_of(&report, "stayed")), (4, 8), "{report:#}");
    let places: Vec<bool> =
        (1..=16).map(|hours| mover.bed.branches_with(&format!("{hours:02}")) == [0]).collect();
    assert_eq!(places.iter().filter(|is_there| **is_there).count(), 12, "{places:?}");
    drop(open);
}

#[test]
fn files_go_where_their_rule_wants_them() {
    let mover = mounted(disks(), TIERS, "films/**=@1;*.part=ssd");
    file(&mover, 0, "films/a", 1, 1);
    file(&mover, 2, "films/b", 1, 1);
    file(&mover, 1, "c.part", 1, 1);
    file(&mover, 0, "d.part", 1, 1);
    file(&mover, 2, "else", 1, 1);
    // A rename moves nothing by itself.
    fs::rename(mover.bed.at("else"), mover.bed.at("films/else")).unwrap();
    assert_eq!(files_of(&mover.json(&["--once"]), "moved"), 4);
    for (path, branch) in [("films/a", 1), ("films/b", 1), ("films/else", 1), ("c.part", 0), ("d.part", 0)] {
        assert_eq!(mover.bed.branches_with(path), [branch], "{path}");
    }
    assert_eq!(files_of(&mover.json(&["--once"]), "planned"), 0, "it ends");
}

#[test]
fn old_and_large_files_leave_and_the_rest_at_its_hour() {
    let mover = mounted(disks(), "ssd=@0|older than 2 days|larger than 10M;disks=@1:@2", "");
    file(&mover, 0, "old", 1, 49);
    file(&mover, 0, "new", 1, 47);
    file(&mover, 0, "large", 11, 1);
    assert_eq!(files_of(&mover.json(&["--once"]), "moved"), 2);
    assert_eq!(
        ["old", "new", "large"].map(|name| mover.bed.branches_with(name) == [0]),
        [false, true, false]
    );
    // An hour that is twelve hours away, in any time zone of the machine.
    let minute = canopy_sys::process::local_time::minute_of_day(SystemTime::now());
    let away = (minute / 60 + 12) % 24;
    let ssd = mover.bed.on(0, "").display().to_string();
    mover.bed.pool.set("tiers", &format!("ssd={ssd}|every night at {away:02}:00"));
    assert_eq!(files_of(&mover.json(&["--once"]), "planned"), 0);
    assert_eq!(files_of(&mover.json(&["--once", "--now"]), "moved"), 1);
    assert_ne!(mover.bed.branches_with("new"), [0]);
}

#[test]
fn a_mover_that_stays_works_alone_and_waits_while_the_pool_is_busy() {
    let mover = mounted(disks(), TIERS, "");
    // 75 %, less than half the way from the mark to being full.
    for number in 0..15 {
        file(&mover, 0, &format!("{number:02}"), 5, number + 1);
    }
    let busy = AtomicBool::new(true);
    let state = |part: &str| mover.status()["tiering"]["mover"][part].clone();
    std::thread::scope(|scope| {
        // Also ends them when an assertion fails.
        let _ends = scopeguard(&busy);
        for _ in 0..3 {
            scope.spawn(|| {
                while busy.load(Ordering::Relaxed) {
                    let _ = fs::metadata(mover.bed.at("no-such-file"));
                }
            });
        }
        let mut child = mover.command(&[]).spawn().unwrap();
        let waits = wait_until(PATIENCE, || state("state") == "waits: the pool is busy");
        let second = mover.run(&["--once"]);
        let on_ssd = fs::read_dir(mover.bed.on(0, "")).unwrap().count();
        busy.store(false, Ordering::Relaxed);
        let emptied = wait_until(PATIENCE, || fs::read_dir(mover.bed.on(0, "")).unwrap().count() <= 10);
        let idle = wait_until(PATIENCE, || state("state") == "waits");
        let running = state("running");
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::TERM,
        )
        .unwrap();
        let status = canopy_testkit::cmd::wait_within(&mut child, PATIENCE);
        assert!(waits && idle && emptied, "{waits} {idle} {emptied}");
        assert!(second.stderr.contains("another canopy tier works on pool"), "{}", second.describe());
        assert!(on_ssd > 10, "{on_ssd}");
        assert_eq!(running, true);
        assert_eq!(status.and_then(|status| status.code()), Some(0));
    });
    assert_eq!((state("running"), state("state")), (false.into(), "has ended".into()));
}

/// Clears a flag at the end of its scope.
fn scopeguard(flag: &AtomicBool) -> impl Drop {
    struct Clears<'f>(&'f AtomicBool);
    impl Drop for Clears<'_> {
        fn drop(&mut self) {
            self.0.store(false, Ordering::Relaxed);
        }
    }
    Clears(flag)
}

#[test]
fn what_has_nowhere_to_go_is_told() {
    let mover = mounted(disks(), TIERS, "films/**=@1");
    file(&mover, 0, "films/a", 20, 1);
    let mut filler = File::create(mover.bed.on(1, "filler")).unwrap();
    while filler.write_all(&vec![1; MIB]).is_ok() {}
    let done = mover.run(&["--once"]);
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    assert!(done.stdout.contains("films/a (no branch that may take it has room)"), "{}", done.stdout);
    mover.bed.pool.set("rules", "");
    mover.bed.pool.set("tiers", "");
    let done = mover.run(&["--once"]);
    assert!(done.stderr.contains("has neither tiers nor rules"), "{}", done.describe());
}
