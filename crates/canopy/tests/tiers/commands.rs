//! `canopy balance`, `drain`, `consolidate` and `move` keep files within the rules and tiers of the pool.

use super::rig::{BINARY, MIB, Mover, mounted};
use canopy_testkit::cmd::{Finished, run_within, wait_until};
use canopy_testkit::{LoopFs, PATIENCE, Rng};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// An SSD, and two disks with films on the first.
const TIERS: &str = "ssd=@0;disks=@1:@2";
const RULES: &str = "films/**=@1;*.part=ssd";

fn disks() -> Vec<LoopFs> {
    [100; 3].map(|size| LoopFs::tmpfs(size << 20)).into()
}

fn put(mover: &Mover, branch: usize, path: &str, size: usize) {
    let path = mover.bed.on(branch, path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, vec![1; size * MIB]).unwrap();
}

/// Runs `canopy COMMAND POOL ARGS`, in which `@N` is the path of a branch and `@p` that of the pool.
fn run(mover: &Mover, line: &str) -> Finished {
    let bed = &mover.bed;
    let mut words = line.split_whitespace();
    let mut command = Command::new(BINARY);
    command.args(words.next()).arg(bed.pool.path());
    for word in words {
        match word.strip_prefix('@').map(|rest| rest.split_at(1)) {
            Some(("p", rest)) => command.arg(bed.at(rest.trim_start_matches('/'))),
            Some((branch, _)) => command.arg(bed.on(branch.parse().unwrap(), "")),
            None => command.arg(word),
        };
    }
    run_within(&mut command, PATIENCE)
}

fn report(done: &Finished) -> Value {
    serde_json::from_str(&done.stdout).unwrap_or_else(|why| panic!("{why}: {}", done.describe()))
}

fn on(mover: &Mover, paths: &[&str]) -> Vec<usize> {
    paths.iter().flat_map(|path| mover.bed.branches_with(path)).collect()
}

#[test]
fn balance_evens_out_each_tier_by_itself() {
    let mover = mounted(disks(), TIERS, RULES);
    for file in 0..20 {
        put(&mover, 0, &format!("new/f{file}"), 4);
        put(&mover, 1, &format!("old/f{file}"), 1);
        put(&mover, 1, &format!("films/f{file}"), 2);
    }
    let done = run(&mover, "balance --to 10%");
    assert!(done.success(), "{}", done.describe());
    // 60 MiB on the first disk and none on the second, but 40 of them are films.
    let held = |dir: &str| {
        let on = |branch: usize| fs::read_dir(mover.bed.on(branch, dir)).map_or(0, Iterator::count);
        [on(0), on(1), on(2)]
    };
    assert_eq!((held("new"), held("films")), ([20, 0, 0], [0, 20, 0]));
    assert!(held("old")[0] == 0 && held("old")[2] == 20, "{:?}", held("old"));
    let last = done.stdout.lines().last().unwrap_or_default();
    assert!(last.starts_with("rules and tiers keep the used shares 6"), "{}", done.describe());
    // Nothing is said where they do not matter.
    let done = run(&mover, "balance --to 70% --json");
    assert!(done.success() && report(&done)["note"].is_null(), "{}", done.describe());
    let done = run(&mover, "balance --to 10% --against-rules");
    assert!(done.success() && !done.stdout.contains("rules"), "{}", done.describe());
    assert!(held("new")[0] < 15 && held("new")[2] > 3, "{:?}", held("new"));
    // The mover brings back what a rule wants elsewhere.
    mover.run(&["--once"]);
    assert_eq!(held("films"), [0, 20, 0]);
}

#[test]
fn drain_stays_within_rules_and_goes_down_the_tiers() {
    let mover = mounted(disks(), TIERS, RULES);
    put(&mover, 0, "a/new", 4);
    put(&mover, 0, "a/x.part", 2);
    put(&mover, 1, "films/f", 4);
    put(&mover, 1, "b/old", 4);
    // From the SSD to the disks, but for what a rule wants on it.
    let done = run(&mover, "drain @0");
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    assert!(done.stdout.contains("moved: 1 file (4.0M)"), "{}", done.describe());
    let expected = "kept by rule *.part: 1 file (2.0M) (--against-rules moves them)";
    assert_eq!(done.stdout.lines().last(), Some(expected), "{}", done.describe());
    assert_eq!(on(&mover, &["a/x.part"]), [0]);
    assert_ne!(on(&mover, &["a/new"]), [0]);
    // From a disk to the other one of its tier, and not to the SSD, which has more room.
    put(&mover, 2, "c/filler", 60);
    let done = run(&mover, "drain @1 --json");
    let json = report(&done);
    assert_eq!((done.code(), json["stays"].as_array().map(Vec::len)), (Some(1), Some(1)), "{json:#}");
    assert_eq!(json["stays"][0]["why"], "its rule films/** wants it elsewhere (--against-rules)");
    assert_eq!(on(&mover, &["b/old", "films/f"]), [2, 1]);
    // The tier is full: what is on it is told.
    put(&mover, 2, "c/more", 30);
    put(&mover, 1, "b/large", 20);
    let done = run(&mover, "drain @1 --include b/large");
    assert!(done.stdout.contains("kept by tier disks: 1 file (20M)"), "{}", done.describe());
    let done = run(&mover, "drain @1 --against-rules");
    assert!(done.success(), "{}", done.describe());
    assert_eq!(on(&mover, &["b/large", "films/f"]), [0, 0]);
    assert_eq!(fs::read_dir(mover.bed.on(1, "")).unwrap().count(), 0);
}

#[test]
fn move_and_consolidate_leave_what_a_rule_wants_elsewhere() {
    let mover = mounted(disks(), TIERS, RULES);
    put(&mover, 1, "films/f", 2);
    put(&mover, 1, "b/old", 2);
    put(&mover, 0, "b/x.part", 2);
    for line in ["move @p/films @p/b --to @2", "consolidate @p/films @p/b --to @2"] {
        let done = run(&mover, line);
        assert_eq!(done.code(), Some(1), "{line}: {}", done.describe());
        let lines: Vec<&str> = done.stdout.lines().rev().take(2).collect();
        let kept = |by: &str| format!("kept by rule {by}: 1 file (2.0M) (--against-rules moves them)");
        assert_eq!(lines, [kept("films/**"), kept("*.part")], "{line}: {}", done.describe());
        assert_eq!(on(&mover, &["films/f", "b/old", "b/x.part"]), [1, 2, 0], "{line}");
    }
    // A tier without a rule is no obstacle to who names a branch.
    assert!(run(&mover, "move @p/b/old --to @0").success());
    assert_eq!(on(&mover, &["b/old"]), [0]);
    assert!(run(&mover, "move @p/films --to @2 --against-rules").success());
    assert_eq!(on(&mover, &["films/f"]), [2]);
    // Files come together down the tiers, not up, although the SSD holds most of them.
    put(&mover, 0, "c/large", 8);
    put(&mover, 2, "c/small", 2);
    let done = run(&mover, "consolidate @p/c");
    assert!(done.success(), "{}", done.describe());
    assert_eq!(on(&mover, &["c/large", "c/small"]), [2, 2]);
}

/// A drained branch gives its copies away: the rule keeps as many elsewhere.
#[test]
fn drain_keeps_as_many_copies_as_a_rule_wants() {
    let disks = (0..3).map(|_| LoopFs::ext4(64 << 20)).collect();
    let mover = mounted(disks, "", "photos/**=copies 2");
    fs::create_dir_all(mover.bed.at("photos/deep")).unwrap();
    for name in ["photos/a", "photos/deep/b", "photos/old", "photos/open", "alone"] {
        fs::write(mover.bed.at(name), name).unwrap();
    }
    assert!(mover.run(&["--once"]).success());
    for name in ["photos/a", "photos/deep/b", "photos/old", "photos/open"] {
        assert_eq!(mover.bed.branches_with(name).len(), 2, "{name}");
        assert!(mover.bed.branches_with(name).contains(&0), "{name}");
    }
    // A copy that no rule wants is nobody's to remove.
    fs::write(mover.bed.on(0, "twice"), "twice").unwrap();
    fs::write(mover.bed.on(1, "twice"), "twice").unwrap();
    // From here on the copy on one of the branches is out of date.
    File::options().append(true).open(mover.bed.at("photos/old")).unwrap().write_all(b", new").unwrap();
    let open = File::open(mover.bed.at("photos/open")).unwrap();
    let dry = run(&mover, "drain @0 --dry-run");
    assert!(dry.stdout.contains("to move: 5 files"), "{}", dry.describe());
    assert_eq!(mover.bed.branches_with("photos/a").len(), 2);
    let done = run(&mover, "drain @0");
    let left = done.stdout.lines().filter(|line| line.contains("several branches hold a copy")).count();
    assert!(!done.success() && left == 1, "{}", done.describe());
    let is_open = mover.bed.branches_with("photos/open").contains(&0);
    assert_eq!(is_open, done.stdout.contains("open in a program"), "{}", done.describe());
    drop(open);
    fs::remove_file(mover.bed.on(0, "twice")).unwrap();
    let done = run(&mover, "drain @0 --remove");
    assert!(done.success(), "{}", done.describe());
    // With its journal, the disk could take part again.
    let own = ["lost+found", ".canopy-journal"];
    let is_own = |name: &std::ffi::OsStr| own.iter().any(|own| name == *own);
    let left = fs::read_dir(mover.bed.on(0, "")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.filter(|name| !is_own(name)).count(), 0);
    for (name, content) in [
        ("photos/a", "photos/a"),
        ("photos/deep/b", "photos/deep/b"),
        ("photos/old", "photos/old, new"),
        ("photos/open", "photos/open"),
    ] {
        assert_eq!(mover.bed.branches_with(name), [1, 2], "{name}");
        assert_eq!(fs::read_to_string(mover.bed.at(name)).unwrap(), content);
        for branch in [1, 2] {
            assert_eq!(
                fs::read_to_string(mover.bed.on(branch, name)).unwrap(),
                content,
                "{name} on {branch}"
            );
        }
    }
    assert_eq!(mover.bed.branches_with("alone").len(), 1);
    // Two disks are left, so no other can take what the next one holds.
    let done = run(&mover, "drain @1");
    assert!(done.stdout.contains("no other disk that may hold a copy has room"), "{}", done.describe());
    assert_eq!(mover.bed.branches_with("photos/a").len(), 2);
    mover.bed.pool.umount();
}

/// Where the branch alone has a file as it is now, the others get that first.
#[test]
fn drain_copies_what_only_the_branch_has_up_to_date() {
    let disks = (0..3).map(|_| LoopFs::tmpfs(64 << 20)).collect();
    let mover = mounted(disks, "", "photos/**=copies 2");
    fs::create_dir(mover.bed.at("photos")).unwrap();
    fs::write(mover.bed.at("photos/a"), "old").unwrap();
    assert!(mover.run(&["--once"]).success());
    fs::write(mover.bed.at("photos/a"), "new").unwrap();
    assert_eq!(fs::read(mover.bed.on(0, "photos/a")).unwrap(), b"new");
    let done = run(&mover, "drain @0");
    assert!(done.success(), "{}", done.describe());
    assert_eq!(mover.bed.branches_with("photos/a"), [1, 2]);
    for branch in [1, 2] {
        assert_eq!(fs::read(mover.bed.on(branch, "photos/a")).unwrap(), b"new", "{branch}");
    }
    mover.bed.pool.umount();
}

/// A new disk beside two that hold every file: copies go there until all are equally full, and no file has fewer.
#[test]
fn balance_moves_copies_to_a_new_disk() {
    let disks = [64, 64, 64].map(|size| LoopFs::ext4(size << 20)).into();
    let mover = mounted(disks, "", "photos/**=copies 2");
    modes(&mover, &["RW", "RW", "NC"]);
    fs::create_dir_all(mover.bed.at("photos/deep")).unwrap();
    let names: Vec<String> =
        (0..12).map(|index| format!("photos/{}{index}", ["", "deep/"][index % 2])).collect();
    for name in &names {
        fs::write(mover.bed.at(name), name.repeat(3 * MIB / name.len())).unwrap();
    }
    assert!(mover.run(&["--once"]).success());
    assert!(names.iter().all(|name| mover.bed.branches_with(name) == [0, 1]));
    // Of this one, a branch has only an old copy: it gets a new one before anything moves.
    File::options().append(true).open(mover.bed.at(&names[0])).unwrap().write_all(b", new").unwrap();
    modes(&mover, &["RW"; 3]);
    let dry = run(&mover, "balance --dry-run");
    assert!(dry.success(), "{}", dry.describe());
    let held = || [0, 1, 2].map(|branch| on_branch(&mover, &names, branch));
    let open = File::open(mover.bed.at(&names[1])).unwrap();
    let done = run(&mover, "balance --to 5% --json");
    let told = report(&done);
    assert!(told["moved"]["files"].as_u64() >= Some(6), "{told:#} {:?}", held());
    let counts = held();
    assert_eq!(counts.iter().sum::<usize>(), 24, "{counts:?}: {}", done.describe());
    assert!(counts.iter().all(|count| (7..=9).contains(count)), "{counts:?}: {}", done.describe());
    drop(open);
    for name in &names {
        let branches = mover.bed.branches_with(name);
        assert_eq!(branches.len(), 2, "{name}");
        let pooled = fs::read(mover.bed.at(name)).unwrap();
        assert!(pooled.starts_with(name.as_bytes()) && pooled.len() >= 3 * MIB - 16, "{name}");
        let same = |branch: &usize| fs::read(mover.bed.on(*branch, name)).unwrap() == pooled;
        assert!(name == &names[0] || branches.iter().all(same), "{name}");
    }
    let pooled = fs::read(mover.bed.at(&names[0])).unwrap();
    assert!(pooled.ends_with(b", new"));
    // Nothing is left for the mover but the copy that was old, and nothing to move.
    assert_eq!(mover.json(&["--once"])["copied"]["files"], 1);
    let again = run(&mover, "balance");
    assert!(again.stdout.contains("nothing to move"), "{}", again.describe());
    mover.bed.pool.umount();
}

fn inode(mover: &Mover, branch: usize, path: &str) -> u64 {
    fs::metadata(mover.bed.on(branch, path)).unwrap().ino()
}

fn modes(mover: &Mover, modes: &[&str]) {
    let branch = |(index, mode): (usize, &&str)| format!("{}={mode}", mover.bed.on(index, "").display());
    mover.bed.pool.set("branches", &modes.iter().enumerate().map(branch).collect::<Vec<_>>().join(":"));
}

fn on_branch(mover: &Mover, names: &[String], branch: usize) -> usize {
    names.iter().filter(|name| mover.bed.on(branch, name).exists()).count()
}

/// One copy goes where it is asked for, and the others stay.
#[test]
fn move_and_consolidate_take_one_of_several_copies() {
    let disks = (0..4).map(|_| LoopFs::ext4(64 << 20)).collect();
    let mover = mounted(disks, "", "photos/**=copies 2");
    modes(&mover, &["RW", "RW", "NC", "NC"]);
    fs::create_dir(mover.bed.at("photos")).unwrap();
    let names = ["photos/a", "photos/b", "photos/open"];
    for name in names {
        fs::write(mover.bed.at(name), name).unwrap();
    }
    assert!(mover.run(&["--once"]).success());
    modes(&mover, &["RW"; 4]);
    let [second, third, fourth] = [1, 2, 3];
    // What is there already need not move.
    assert!(run(&mover, &format!("move @p/photos --to @{second}")).stdout.contains("nothing to move"));
    // Hard links move together, a reader goes on, and what is being written stays.
    fs::hard_link(mover.bed.at("photos/b"), mover.bed.at("link")).unwrap();
    let mut open = File::open(mover.bed.at("photos/open")).unwrap();
    let writer = File::options().append(true).open(mover.bed.at("photos/a")).unwrap();
    let done = run(&mover, &format!("move @p/photos --to @{third}"));
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    assert!(done.stdout.contains("photos/a (it has fewer copies than its rule wants"), "{}", done.describe());
    drop(writer);
    for name in ["photos/b", "link", "photos/open"] {
        assert_eq!(mover.bed.branches_with(name), [second, third], "{name}");
    }
    assert_eq!(inode(&mover, third, "photos/b"), inode(&mover, third, "link"));
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "photos/open");
    drop(open);
    assert!(mover.run(&["--once"]).success());
    let done = run(&mover, &format!("consolidate @p/photos --to @{fourth}"));
    assert!(done.success(), "{}", done.describe());
    for name in names {
        let branches = mover.bed.branches_with(name);
        assert!(branches.contains(&fourth) && branches.len() == 2, "{name}: {branches:?}");
    }
    // All are there now, wherever the other copies are.
    assert!(run(&mover, "consolidate @p/photos").stdout.contains("nothing to move"));
    // A copy that is out of date is no second one.
    fs::write(mover.bed.at("photos/a"), "new").unwrap();
    let done = run(&mover, "move @p/photos/a --to @0");
    assert!(done.stdout.contains("it has fewer copies than its rule wants"), "{}", done.describe());
    assert_eq!(fs::read_to_string(mover.bed.at("photos/a")).unwrap(), "new");
    // The old one makes way where somebody wants the file.
    assert!(mover.run(&["--once"]).success());
    assert!(run(&mover, "move @p/photos --to @0").success());
    assert!(names.iter().all(|name| mover.bed.branches_with(name).contains(&0)));
    mover.bed.pool.umount();
}

/// Killed at any time, a command leaves at least as many copies as before.
#[test]
fn a_killed_move_leaves_enough_copies() {
    let seed = std::env::var("CANOPY_SEED").map_or(5, |text| text.parse().unwrap());
    let mut rng = Rng::new(seed);
    println!("CANOPY_SEED={seed}");
    let disks = (0..3).map(|_| LoopFs::ext4(64 << 20)).collect();
    let mover = mounted(disks, "", "photos/**=copies 2");
    fs::create_dir(mover.bed.at("photos")).unwrap();
    let names: Vec<String> = (0..8).map(|index| format!("photos/{index}")).collect();
    for name in &names {
        fs::write(mover.bed.at(name), name.repeat(MIB / name.len())).unwrap();
    }
    assert!(mover.run(&["--once"]).success());
    let kills = std::env::var("CANOPY_KILLS").map_or(12, |text| text.parse().unwrap());
    let mut cut = 0;
    for round in 0..kills {
        let to = mover.bed.on(round % 3, "");
        let mut command = Command::new(BINARY);
        command.arg("move").arg(mover.bed.pool.path()).arg(mover.bed.at("photos")).arg("--to").arg(to);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(rng.below(120)));
        cut += u32::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        for name in &names {
            let content = name.repeat(MIB / name.len());
            let is_whole =
                |branch: &usize| fs::read_to_string(mover.bed.on(*branch, name)).unwrap() == content;
            let branches = mover.bed.branches_with(name);
            assert!(
                branches.len() >= 2 && branches.iter().all(is_whole),
                "{name}, round {round}: {branches:?}"
            );
        }
    }
    println!("{cut} of {kills} killed before their end");
    assert!(cut > 0, "none was killed before its end");
    // The daemon closes what the test has read, and drops what it has made for a command that is gone.
    let done = || run(&mover, "dedup --yes").success();
    assert!(wait_until(PATIENCE, done), "{}", run(&mover, "dedup --yes").describe());
    assert!(names.iter().all(|name| mover.bed.branches_with(name).len() == 2));
    mover.bed.pool.umount();
}

/// A copy on a branch that may not be changed counts, and names that the rule does not match move with the others.
#[test]
fn copies_leave_beside_a_branch_that_may_not_be_changed() {
    let disks = (0..3).map(|_| LoopFs::ext4(64 << 20)).collect();
    let mover = mounted(disks, "", "photos/**=copies 2");
    modes(&mover, &["RW", "RW", "NC"]);
    fs::create_dir(mover.bed.at("photos")).unwrap();
    fs::write(mover.bed.at("photos/a"), "text").unwrap();
    fs::hard_link(mover.bed.at("photos/a"), mover.bed.at("another")).unwrap();
    assert!(mover.run(&["--once"]).success());
    assert_eq!(on(&mover, &["photos/a", "another"]), [0, 1, 0, 1]);
    modes(&mover, &["RW", "RO", "RW"]);
    let done = run(&mover, "drain @0");
    assert!(done.success(), "{}", done.describe());
    assert_eq!(on(&mover, &["photos/a", "another"]), [1, 2, 1, 2]);
    modes(&mover, &["RW"; 3]);
    let done = run(&mover, "move @p --to @0");
    assert!(done.success(), "{}", done.describe());
    for name in ["photos/a", "another"] {
        let branches = mover.bed.branches_with(name);
        assert!(branches.len() == 2 && branches[0] == 0, "{name}: {branches:?}");
        assert_eq!(fs::read_to_string(mover.bed.at(name)).unwrap(), "text");
    }
    assert_eq!(inode(&mover, 0, "photos/a"), inode(&mover, 0, "another"));
    mover.bed.pool.umount();
}
