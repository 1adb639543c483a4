//! `canopy verify`: checksums, damage, fixing, and what is left alone.

use super::rig::{
    BINARY, PATIENCE, Rig, canopy, disks, interrupted_at_terminal, json, on_pool, put, unfinished,
};
use canopy_testkit::cmd::{Finished, run, run_within, wait_until, wait_within};
use canopy_testkit::{
    Fault, FaultyFs, Fields, LoopFs, Opcode, Pool, PoolBed, Rng, ScratchDir, Submount, Tree, as_user, xattr,
};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MIB: usize = 1 << 20;
const CHECKSUM: &str = "user.canopy.blake3";
/// The BLAKE3 digest of nothing.
const OF_NOTHING: &str = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";

/// A time long ago: files that have just been written wait for their checksums.
fn long_ago() -> SystemTime {
    UNIX_EPOCH + Duration::new(1_000_000_000, 7)
}

/// Writes a file to a branch, as if long ago.
fn old(bed: &PoolBed, branch: usize, path: &str, content: impl AsRef<[u8]>) {
    put(bed, branch, path, content);
    File::open(bed.on(branch, path)).expect("open").set_modified(long_ago()).expect("utimens");
}

/// Content without two equal blocks.
fn content(seed: u64, length: usize) -> Vec<u8> {
    Rng::new(seed).bytes(length)
}

/// Changes a byte of a file, but not its times, as a failing disk does.
fn rot(path: &Path, at: u64) {
    let modified = fs::metadata(path).expect("metadata").modified().expect("a time");
    let file = OpenOptions::new().read(true).write(true).open(path).expect("open");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[!byte[0]], at).expect("write");
    file.set_modified(modified).expect("utimens");
}

fn verify(bed: &PoolBed, args: &[&str]) -> Finished {
    on_pool(bed, "verify", args)
}

fn files(report: &Value, part: &str) -> u64 {
    report[part]["files"].as_u64().unwrap_or_else(|| panic!("{part}: {report}"))
}

/// Checks that a report adds up.
#[track_caller]
fn parse(done: &Finished) -> Value {
    let report: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{}", done.describe()));
    for key in ["files", "bytes"] {
        let number = |part: &str| report[part][key].as_u64().unwrap_or_else(|| panic!("{part}: {report}"));
        let parts = ["sound", "missing", "stale", "damaged", "in_use", "unread", "not_begun"];
        assert_eq!(number("files"), parts.map(number).iter().sum::<u64>(), "{report}");
        assert!(number("stored") <= number("missing") + number("stale"), "{report}");
        assert!(number("fixed") <= number("damaged"), "{report}");
    }
    report
}

/// Runs `canopy verify --json`, which must end with a status.
#[track_caller]
fn report(bed: &PoolBed, args: &[&str], status: i32) -> Value {
    let done = verify(bed, &[&["--json"], args].concat());
    assert_eq!(done.code(), Some(status), "{}", done.describe());
    parse(&done)
}

/// What a report says of a path.
fn finding<'r>(bed: &PoolBed, report: &'r Value, path: &str) -> Option<&'r Value> {
    let path = json!(bed.at(path));
    report["findings"].as_array().expect("an array").iter().find(|finding| finding["path"] == path)
}

fn words<'r>(bed: &PoolBed, report: &'r Value, path: &str) -> (&'r str, &'r str) {
    let word = |finding: &'r Value, key: &str| finding[key].as_str().unwrap_or_default();
    finding(bed, report, path).map_or(("", ""), |found| (word(found, "what"), word(found, "why")))
}

fn fields() -> Fields {
    Fields { sparse: true, ..Fields::without_dir_times() }
}

#[test]
fn checksums_are_stored_only_with_write_and_then_found_right() {
    let bed = disks("");
    old(&bed, 0, "d/a", content(1, 3 * MIB + 17));
    old(&bed, 1, "d/empty", "");
    old(&bed, 2, "sparse", "");
    let sparse = OpenOptions::new().write(true).open(bed.on(2, "sparse")).expect("open");
    sparse.set_len(30 << 20).expect("truncate");
    sparse.write_all_at(b"middle", 12 << 20).expect("write");
    drop(sparse);
    fs::create_dir(bed.on(0, "e")).expect("mkdir");
    fs::hard_link(bed.on(0, "d/a"), bed.on(0, "e/link")).expect("link");
    put(&bed, 0, "lost+found/f", "of the disk");
    let before = Tree::capture_with(bed.pool.path(), fields());
    let dry = report(&bed, &[], 0);
    assert_eq!((files(&dry, "files"), files(&dry, "missing"), files(&dry, "stored")), (3, 3, 0));
    assert_eq!(words(&bed, &dry, "d/a"), ("missing", ""));
    before.assert_same(&Tree::capture_with(bed.pool.path(), fields()));
    // The sparse file has just been written.
    let done = verify(&bed, &["--yes"]);
    let expected = "files: 3 (33M): 0 sound, 3 without a checksum\nchecksums stored: 3 of 3\n";
    assert!(done.success() && done.stdout == expected, "{}", done.describe());
    let text = format!("{OF_NOTHING} 0 1000000000.000000007");
    assert_eq!(xattr::get(bed.on(1, "d/empty"), CHECKSUM), Ok(text.clone().into_bytes()));
    assert_eq!(xattr::get(bed.at("d/empty"), CHECKSUM), Ok(text.into_bytes()));
    assert_eq!(fs::metadata(bed.on(0, "d/a")).expect("metadata").modified().expect("a time"), long_ago());
    let b3sum = String::from_utf8(xattr::get(bed.at("e/link"), CHECKSUM).expect("a checksum")).expect("text");
    assert!(b3sum.ends_with(" 3145745 1000000000.000000007"), "{b3sum}");
    let whole = Fields { xattrs: false, ..fields() };
    let now = Tree::capture_with(bed.pool.path(), whole);
    let sound = report(&bed, &[], 0);
    assert_eq!((files(&sound, "sound"), files(&sound, "files")), (3, 3));
    let done = verify(&bed, &["--yes"]);
    assert_eq!(done.stdout, "files: 3 (33M): 3 sound\n", "{}", done.describe());
    assert!(verify(&bed, &["--quiet"]).stdout.is_empty());
    now.assert_same(&Tree::capture_with(bed.pool.path(), Fields { xattrs: false, ..fields() }));
    // A move takes checksums along.
    let to = bed.on(1, "").display().to_string();
    assert!(on_pool(&bed, "move", ["d", "sparse", "--to", &to]).success());
    assert_eq!(bed.branches_with("e/link"), [1]);
    assert_eq!(files(&report(&bed, &[], 0), "sound"), 3);
    assert!(on_pool(&bed, "dup", ["d/a"]).success());
    assert_eq!(files(&report(&bed, &[], 0), "sound"), 4);
}

#[test]
fn rot_is_told_from_changes() {
    let bed = disks("");
    for path in ["rotten", "written", "replaced", "touched", "grown"] {
        old(&bed, 0, path, content(2, MIB + 5));
    }
    assert_eq!(files(&report(&bed, &["--yes"], 0), "stored"), 5);
    rot(&bed.on(0, "rotten"), MIB as u64 + 4);
    // Through the pool and on the branch.
    let file = OpenOptions::new().write(true).open(bed.at("written")).expect("open");
    file.write_all_at(b"x", 70_000).expect("write");
    drop(file);
    fs::write(bed.on(0, "replaced"), content(3, MIB + 5)).expect("write");
    File::open(bed.at("touched")).expect("open").set_modified(UNIX_EPOCH).expect("utimens");
    let file = OpenOptions::new().append(true).open(bed.on(0, "grown")).expect("open");
    file.set_len(2 << 20).expect("truncate");
    file.set_modified(long_ago()).expect("utimens");
    drop(file);
    bed.wait_until_closed("written");
    let found = report(&bed, &[], 1);
    assert_eq!((files(&found, "damaged"), files(&found, "stale"), files(&found, "sound")), (1, 4, 0));
    assert_eq!(words(&bed, &found, "rotten"), ("damaged", "no copy has the content of its checksum"));
    let done = verify(&bed, &[]);
    let line =
        format!("damaged: {} on {} (no copy", bed.at("rotten").display(), bed.disks[0].path().display());
    assert!(done.stdout.contains(&line), "{}", done.describe());
    assert!(done.stdout.contains("0 sound, 4 with a stale one, 1 damaged\n"), "{}", done.describe());
    assert!(done.stderr.ends_with("damaged files: 1, paths whose copies differ: 0\n"), "{}", done.describe());
    let quiet = verify(&bed, &["-q"]);
    assert!(quiet.stdout.is_empty() && quiet.stderr.contains(&line), "{}", quiet.describe());
    // New checksums for what has changed, and none for what is damaged.
    let kept = xattr::get(bed.on(0, "rotten"), CHECKSUM);
    let found = report(&bed, &["--yes"], 1);
    assert_eq!((files(&found, "stored"), files(&found, "fixed")), (4, 0));
    assert_eq!(xattr::get(bed.on(0, "rotten"), CHECKSUM), kept);
    let found = report(&bed, &[], 1);
    assert_eq!((files(&found, "sound"), files(&found, "damaged")), (4, 1));
}

/// What only the disk knows: nothing of it is in memory.
#[test]
fn rot_on_the_disk_is_found_and_mended() {
    let bed = disks("");
    let right = content(4, 2 * MIB);
    for branch in [0, 2] {
        old(&bed, branch, "f", &right);
    }
    assert_eq!(files(&report(&bed, &["--yes"], 0), "stored"), 2);
    bed.disks[2].drop_caches();
    let image = bed.disks[2].image().expect("an image");
    let (head, at) = (&right[MIB..MIB + 512], 512 * 7 + 100);
    let raw = OpenOptions::new().read(true).write(true).open(image).expect("the image");
    let whole = raw.metadata().expect("metadata").len();
    let mut sector = vec![0; 512];
    let found = (0..whole / 512).map(|sector| sector * 512).find(|offset| {
        raw.read_exact_at(&mut sector, *offset).expect("read");
        sector == head
    });
    let found = found.expect("the file on its disk");
    raw.write_all_at(b"rotten", found + at).expect("write");
    drop(raw);
    bed.disks[2].drop_caches();
    let before = fs::metadata(bed.on(2, "f")).expect("metadata");
    let found = report(&bed, &[], 1);
    assert_eq!((files(&found, "sound"), files(&found, "damaged")), (1, 1), "{found}");
    let from = format!("--yes fixes it from {}", bed.disks[0].path().display());
    assert_eq!(words(&bed, &found, "f"), ("damaged", from.as_str()));
    let done = verify(&bed, &["--yes"]);
    assert!(done.success() && done.stdout.ends_with("fixed: 1 of 1\n"), "{}", done.describe());
    bed.disks[2].drop_caches();
    assert!(fs::read(bed.on(2, "f")).expect("read") == right);
    let after = fs::metadata(bed.on(2, "f")).expect("metadata");
    assert_eq!((after.ino(), after.mtime(), after.mtime_nsec()), (before.ino(), before.mtime(), 7));
    assert_eq!(files(&report(&bed, &[], 0), "sound"), 2);
}

#[test]
fn a_mend_keeps_everything_else_as_it_was() {
    let bed = disks("");
    let right = content(5, 5 * MIB + 3);
    old(&bed, 0, "d/f", &right);
    fs::hard_link(bed.on(0, "d/f"), bed.on(0, "link")).expect("link");
    old(&bed, 0, "holes", "");
    let holes = OpenOptions::new().write(true).open(bed.on(0, "holes")).expect("open");
    holes.set_len(20 << 20).expect("truncate");
    holes.write_all_at(&right[..MIB], 8 << 20).expect("write");
    holes.set_modified(long_ago()).expect("utimens");
    drop(holes);
    rustix::fs::setxattr(bed.on(0, "d/f"), "user.x", b"value", rustix::fs::XattrFlags::empty()).expect("x");
    fs::set_permissions(bed.on(0, "d/f"), fs::Permissions::from_mode(0o640)).expect("chmod");
    assert!(on_pool(&bed, "dup", [bed.pool.path()]).success());
    assert_eq!(files(&report(&bed, &["--yes"], 0), "stored"), 4);
    let copy = bed.branches_with("d/f").into_iter().find(|branch| *branch != 0).expect("a copy");
    let trees = || [0, copy].map(|branch| Tree::capture_with(bed.on(branch, ""), fields()));
    let before = trees();
    let ino = |branch: usize| fs::metadata(bed.on(branch, "link")).expect("metadata").ino();
    let inodes = [ino(0), ino(copy)];
    // Both copies are damaged, at different places: neither can fix the other.
    for (branch, at) in [(0, 0), (copy, right.len() as u64 - 1)] {
        rot(&bed.on(branch, "d/f"), at);
    }
    let found = report(&bed, &["--yes"], 1);
    assert_eq!(
        (files(&found, "damaged"), files(&found, "fixed"), found["differing"].as_u64()),
        (2, 0, Some(0))
    );
    rot(&bed.on(0, "d/f"), 0);
    for at in (0..right.len() as u64).step_by(300_001) {
        if at > 0 {
            rot(&bed.on(copy, "d/f"), at);
        }
    }
    rot(&bed.on(0, "holes"), (8 << 20) + 9);
    let found = report(&bed, &["--yes"], 0);
    assert_eq!((files(&found, "damaged"), files(&found, "fixed"), files(&found, "sound")), (2, 2, 2));
    assert_eq!(words(&bed, &found, "d/f").0, "fixed");
    for (before, after) in before.iter().zip(&trees()) {
        before.assert_same(after);
    }
    assert_eq!([ino(0), ino(copy)], inodes);
    assert_eq!(unfinished(&bed), 0);
    assert_eq!(files(&report(&bed, &[], 0), "sound"), 4);
}

#[test]
fn copies_that_differ_are_told() {
    let bed = disks("");
    for (branch, text) in [(0, "one"), (1, "one"), (2, "two")] {
        old(&bed, branch, "f", text);
        old(&bed, branch, "same", "same");
    }
    File::open(bed.on(2, "f")).expect("open").set_modified(SystemTime::now()).expect("utimens");
    let found = report(&bed, &[], 1);
    assert_eq!((files(&found, "missing"), found["differing"].as_u64()), (6, Some(1)));
    let findings = found["findings"].as_array().expect("an array").iter();
    let differing: Vec<&Value> = findings.filter(|finding| finding["what"] == "differing").collect();
    assert_eq!((differing.len(), &differing[0]["path"]), (1, &json!(bed.at("f"))));
    let newest = format!("the newest is on {}", bed.disks[2].path().display());
    assert_eq!(differing[0]["why"], newest.as_str());
    assert_eq!(differing[0]["branches"].as_array().map(Vec::len), Some(3));
    // Which of them is right, it does not know.
    let done = verify(&bed, &["--yes"]);
    assert!(
        done.code() == Some(1) && done.stdout.contains("paths whose copies differ: 1\n"),
        "{}",
        done.describe()
    );
    let texts = [0, 1, 2].map(|branch| fs::read_to_string(bed.on(branch, "f")).expect("read"));
    assert_eq!(texts, ["one", "one", "two"]);
    // Checksums are no reason for dedup to keep a copy.
    rustix::fs::removexattr(bed.on(1, "same"), CHECKSUM).expect("removexattr");
    assert!(on_pool(&bed, "dedup", ["same", "--yes"]).success());
    assert_eq!(bed.branches_with("same"), [0]);
    let dedup = on_pool(&bed, "dedup", ["f", "--keep", "newest", "--differing", "--yes"]);
    assert!(dedup.success(), "{}", dedup.describe());
    assert_eq!(files(&report(&bed, &[], 0), "sound"), 2);
}

#[test]
fn what_may_not_be_changed_is_told_and_left() {
    let bed = disks("");
    old(&bed, 0, "immutable", "x");
    old(&bed, 1, "read-only", "y");
    old(&bed, 2, "f", content(6, 10_000));
    old(&bed, 0, "f", content(6, 10_000));
    assert_eq!(files(&report(&bed, &["--yes", "f"], 0), "stored"), 2);
    rot(&bed.on(0, "f"), 5000);
    run("chattr", ["+i".as_ref(), bed.on(0, "immutable").as_os_str(), bed.on(0, "f").as_os_str()]);
    let branch = |index: usize, mode: &str| format!("{}={mode}", bed.disks[index].path().display());
    bed.pool.set("branches", &[branch(0, "RW"), branch(1, "RO"), branch(2, "RW")].join(":"));
    let done = verify(&bed, &["--yes", "--json"]);
    run("chattr", ["-i".as_ref(), bed.on(0, "immutable").as_os_str(), bed.on(0, "f").as_os_str()]);
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    let found = parse(&done);
    assert_eq!(words(&bed, &found, "immutable"), ("not-stored", "immutable or append-only"));
    assert_eq!(words(&bed, &found, "read-only"), ("not-stored", "its branch has the mode RO"));
    let (what, why) = words(&bed, &found, "f");
    assert!(what == "damaged" && why.contains("not fixed: not permitted, or immutable"), "{found}");
    assert_eq!((files(&found, "missing"), files(&found, "stored"), files(&found, "fixed")), (2, 0, 0));
    assert_eq!(unfinished(&bed), 0);
    // Without the checksum, which they cannot store, these are fine.
    let found = report(&bed, &["--yes"], 0);
    assert_eq!((files(&found, "fixed"), files(&found, "stored")), (1, 1));
    // Root only, as far as files of others are concerned.
    let mut user = as_user(1000, 1000, &[], BINARY);
    fs::set_permissions(bed.on(2, "f"), fs::Permissions::from_mode(0o600)).expect("chmod");
    user.arg("verify").arg(bed.pool.path());
    let done = run_within(&mut user, PATIENCE);
    assert!(done.code() == Some(4) && done.stderr.contains("not read: "), "{}", done.describe());
}

#[test]
fn a_filesystem_without_attributes_is_told_once() {
    let scratch = ScratchDir::new("canopy-upkeep-", &["a", "b", "home"]);
    let ramfs = Submount::ramfs(scratch.path("b"));
    let builder = Pool::builder(BINARY).branches(["a", "b"].map(|name| scratch.path(name)));
    let pool = builder.option("minfreespace=0").mount();
    for file in ["f", "g"] {
        fs::write(ramfs.path().join(file), "text").expect("write");
    }
    fs::write(scratch.path("a").join("f"), "TEXT").expect("write");
    let all = ["verify".as_ref(), pool.path().as_os_str(), "--yes".as_ref()];
    let done = canopy(all);
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    let line = format!("note: {} (its filesystem has no user attributes, so", ramfs.path().display());
    assert_eq!(done.stdout.matches(&line).count(), 1, "{}", done.describe());
    assert!(done.stdout.contains("3 without a checksum"), "{}", done.describe());
    assert!(done.stdout.contains("checksums stored: 1 of 3\n"), "{}", done.describe());
    assert!(done.stdout.contains("copies differ: "), "{}", done.describe());
    pool.umount();
}

/// What a disk cannot read is damage if there is a checksum, and is not read without one.
#[test]
fn what_a_disk_cannot_read_is_told() {
    let scratch = ScratchDir::new("canopy-upkeep-", &["a", "b", "home"]);
    let disk = FaultyFs::mount(&scratch.path("b"));
    let right = content(12, 300_000);
    for dir in [scratch.path("a"), disk.backing_dir().to_owned()] {
        fs::write(dir.join("f"), &right).expect("write");
        File::open(dir.join("f")).expect("open").set_modified(long_ago()).expect("utimens");
    }
    fs::write(disk.backing_dir().join("alone"), "text").expect("write");
    let branches = [scratch.path("a"), disk.path().to_owned()];
    let pool = Pool::builder(BINARY).branches(branches).option("minfreespace=0").mount();
    let run = |args: &[&str]| {
        let fixed = ["verify".as_ref(), pool.path().as_os_str(), "--json".as_ref()];
        canopy(fixed.into_iter().chain(args.iter().map(AsRef::as_ref)))
    };
    let stored = parse(&run(&["f", "--yes"]));
    assert_eq!(files(&stored, "stored"), 2, "{stored}");
    disk.set(Fault::Fail(Errno::IO), &[Opcode::Read]);
    for (args, from) in [(&[][..], "--yes fixes it from "), (&["--yes"], "not fixed: ")] {
        let done = run(args);
        assert_eq!(done.code(), Some(4), "{}", done.describe());
        let found = parse(&done);
        let parts = ["sound", "damaged", "unread", "fixed"].map(|part| files(&found, part));
        assert_eq!(parts, [1, 1, 1, 0], "{found}");
        let findings = found["findings"].as_array().expect("an array");
        let damaged = findings.iter().find(|finding| finding["what"] == "damaged").expect("a finding");
        let why = damaged["why"].as_str().expect("a reason");
        assert!(why.starts_with("Input/output error") && why.contains(from), "{found}");
    }
    disk.heal();
    let found = parse(&run(&["--yes"]));
    assert_eq!((files(&found, "sound"), files(&found, "stored")), (2, 1), "{found}");
    assert!(fs::read(disk.backing_dir().join("f")).expect("read") == right);
    assert_eq!(fs::read_dir(disk.backing_dir()).expect("list").count(), 2, "no journal is left");
    pool.umount();
}

/// Nobody waits long for a file that is read, and what changes meanwhile is not judged.
#[test]
fn an_open_writer_is_left_alone() {
    let bed = disks("");
    old(&bed, 0, "busy", content(7, MIB));
    old(&bed, 0, "slow", content(8, 4 * MIB));
    assert_eq!(files(&report(&bed, &["--yes"], 0), "stored"), 2);
    let writer = OpenOptions::new().append(true).open(bed.at("busy")).expect("open");
    let found = report(&bed, &["busy", "--yes"], 0);
    assert_eq!((files(&found, "in_use"), files(&found, "files")), (1, 1));
    assert_eq!(words(&bed, &found, "busy"), ("in-use", "open for writing"));
    drop(writer);
    bed.wait_until_closed("busy");
    // Longer than any test waits.
    let mut command = Command::new(BINARY);
    command.arg("verify").arg(bed.pool.path()).args(["slow", "--bwlimit", "1K", "--json"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("canopy");
    // It holds a lease now, as nobody else does.
    let ino = fs::metadata(bed.on(0, "slow")).expect("metadata").ino();
    let leased = || {
        fs::read_to_string("/proc/locks")
            .expect("locks")
            .lines()
            .any(|line| line.contains("LEASE") && line.contains(&format!(":{ino} ")))
    };
    let seen = wait_until(PATIENCE, leased);
    let opened = OpenOptions::new().append(true).open(bed.at("slow"));
    let status = wait_within(&mut child, PATIENCE);
    if status.is_none() {
        child.kill().expect("kill");
    }
    let output = child.wait_with_output().expect("output");
    assert!(seen && opened.is_ok());
    assert_eq!(
        status.and_then(|status| status.code()),
        Some(0),
        "{:?}",
        String::from_utf8_lossy(&output.stdout)
    );
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(files(&found, "in_use"), 1, "{found}");
}

#[test]
fn a_signal_ends_it_at_once() {
    let bed = disks("");
    old(&bed, 0, "first", "first");
    old(&bed, 0, "large", content(9, 12 * MIB));
    old(&bed, 1, "last", "last");
    for signal in [Signal::INT, Signal::TERM] {
        let _ = rustix::fs::removexattr(bed.on(0, "first"), CHECKSUM);
        let mut command = Command::new(BINARY);
        command.arg("verify").arg(bed.pool.path()).args(["--yes", "--bwlimit", "1K", "--json"]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("canopy");
        let begun = wait_until(PATIENCE, || xattr::get(bed.on(0, "first"), CHECKSUM).is_ok());
        kill_process(Pid::from_child(&child), signal).expect("kill");
        let status = wait_within(&mut child, PATIENCE);
        if status.is_none() {
            child.kill().expect("kill");
        }
        let output = child.wait_with_output().expect("output");
        assert!(begun && status.is_some(), "it goes on");
        assert_eq!(status.and_then(|status| status.code()), Some(4));
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(found["stopped"], json!(true));
        let begun = files(&found, "missing") + files(&found, "sound");
        assert_eq!((files(&found, "files"), begun + files(&found, "not_begun")), (3, 3), "{found}");
        assert!(files(&found, "not_begun") >= 1, "{found}");
    }
    let found = report(&bed, &["--yes"], 0);
    assert_eq!((files(&found, "sound"), files(&found, "stored")), (1, 2));
    assert_eq!(files(&report(&bed, &[], 0), "sound"), 3);
}

/// A terminal shows how far it is.
#[test]
fn a_terminal_shows_progress() {
    let bed = disks("");
    old(&bed, 0, "large", content(10, 4 * MIB));
    let line = format!("verify {} --bwlimit 1K --dry-run", bed.pool.path().display());
    let (status, shown) = interrupted_at_terminal(&line, "1.00 MiB/4.00 MiB");
    assert_eq!(status, Some(4), "{shown}");
    assert!(shown.contains("files: 1 (4.0M): 0 sound, 1 not begun"), "{shown}");
}

#[test]
fn filters_choose_files() {
    let bed = disks("");
    old(&bed, 0, "photos/a.jpg", content(11, MIB));
    old(&bed, 0, "photos/a.txt", "text");
    old(&bed, 1, "films/b.jpg", "small");
    put(&bed, 1, "films/new", "new");
    rustix::fs::chown(bed.on(1, "films/b.jpg"), Some(rustix::fs::Uid::from_raw(7)), None).expect("chown");
    for (args, expected) in [
        (&["--include", "*.jpg"][..], 2),
        (&["--include", "*.jpg", "--exclude", "films/**"], 1),
        (&["photos"], 2),
        (&["photos", "films/new"], 3),
        (&["--min-size", "1M"], 1),
        (&["--max-size", "100"], 3),
        (&["--older", "1y"], 3),
        (&["--newer", "1y"], 1),
        (&["--owner", "7"], 1),
        (&["--owner", "8"], 0),
    ] {
        assert_eq!(files(&report(&bed, args, 0), "files"), expected, "{args:?}");
    }
    let done = verify(&bed, &["none"]);
    assert!(done.code() == Some(4) && done.stderr.contains("No such file"), "{}", done.describe());
    assert_eq!(files(&report(&bed, &["--yes", "--include", "*.txt"], 0), "stored"), 1);
    assert_eq!(xattr::get(bed.on(0, "photos/a.jpg"), CHECKSUM), Err(Errno::NODATA));
}

#[test]
fn a_pool_that_is_read_only_is_only_read() {
    let rig = Rig::with(BINARY, &["a"], |builder| builder.option("ro"));
    rig.put("a", "f", "x");
    let pool = rig.pool.path().as_os_str();
    let done = canopy(["verify".as_ref(), pool, "--yes".as_ref()]);
    assert!(done.code() == Some(4) && done.stderr.contains("is mounted read-only"), "{}", done.describe());
    let found = parse(&canopy(["verify".as_ref(), pool, "--json".as_ref()]));
    assert_eq!(files(&found, "missing"), 1);
    rig.pool.umount();
}

/// How often it is killed. `CANOPY_KILLS` overrides it.
const KILLS: u32 = 12;

/// Killed while it fixes: each file is as it was before, or fixed, and the next run ends with all fixed.
#[test]
fn killed_at_any_time_it_goes_on_the_next_time() {
    const FILES: usize = 12;
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("CANOPY_SEED").unwrap_or(20_261_125);
    println!("CANOPY_SEED={seed}");
    let mut rng = Rng::new(seed);
    // In memory: a killed process loses nothing that is written.
    let builder = Pool::builder(BINARY).option("minfreespace=0,cache.attr=0,cache.entry=0");
    let bed = PoolBed::mount(builder, [0; 2].map(|_| LoopFs::tmpfs(96 << 20)));
    for file in 0..FILES {
        for branch in [0, 1] {
            old(&bed, branch, &format!("f{file}"), content(file as u64, MIB + file));
        }
    }
    fs::hard_link(bed.on(1, "f0"), bed.on(1, "link")).expect("link");
    assert_eq!(files(&report(&bed, &["--yes"], 0), "stored"), 2 * FILES as u64);
    let trees = || [0, 1].map(|branch| Tree::capture_with(bed.on(branch, ""), fields()));
    let before = trees();
    let (mut cut, mut resumed) = (0, 0);
    for round in 0..number("CANOPY_KILLS").map_or(KILLS, |kills| kills as u32) {
        for file in 0..FILES {
            for _ in 0..40 {
                rot(&bed.on(1, &format!("f{file}")), rng.below(MIB as u64));
            }
        }
        let mut command = Command::new(BINARY);
        command.arg("verify").arg(bed.pool.path()).args(["--yes", "--eager", "-q"]);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("canopy");
        std::thread::sleep(Duration::from_micros(rng.below(250_000)));
        let ended = child.try_wait().expect("wait").is_some();
        child.kill().expect("kill");
        child.wait().expect("wait");
        cut += u32::from(!ended);
        let dry = parse(&verify(&bed, &["--json"]));
        assert_eq!((files(&dry, "stale"), files(&dry, "missing")), (0, 0), "round {round}: {dry}");
        let found = report(&bed, &["--yes"], 0);
        resumed += found["resumed"].as_u64().expect("a number");
        for (before, after) in before.iter().zip(&trees()) {
            before.assert_same(after);
        }
        assert_eq!(unfinished(&bed), 0);
        assert_eq!(files(&report(&bed, &[], 0), "sound"), 2 * FILES as u64);
    }
    println!("{cut} were killed, {resumed} fixes were finished by the next run");
    let _ = json(&verify(&bed, &["--json"]));
}

#[test]
fn several_runs_make_a_round_in_which_each_file_is_read_once() {
    let bed = disks("");
    let home = ScratchDir::new("canopy-round-", &[]);
    let number = 12;
    for index in 0..number {
        old(&bed, index % 3, &format!("d{}/f{index:02}", index % 2), content(index as u64, MIB));
    }
    assert!(verify(&bed, &["--yes"]).success());
    rot(&bed.on(1, "d0/f04"), 7);
    let command = |more: &[&str]| {
        let mut command = Command::new(BINARY);
        command.arg("verify").arg(bed.pool.path()).args(["--json", "--yes", "--resume", "--bwlimit", "3M"]);
        command.args(more).env("CANOPY_STATE_DIR", home.dir());
        command
    };
    let (mut parts, mut read, mut damaged_since) = (0, 0, None);
    let last = loop {
        let done = run_within(&mut command(&["--for", "1s"]), PATIENCE);
        let report = parse(&done);
        parts += 1;
        read += files(&report, "files") - files(&report, "not_begun");
        if files(&report, "damaged") > 0 {
            assert_eq!(damaged_since.replace(parts), None, "{report:#}");
        }
        // What is damaged stays a failure until the round is over.
        assert_eq!(done.code(), Some(i32::from(damaged_since.is_some())), "{}", done.describe());
        if report["round"]["next"].is_null() || parts > 3 * number {
            break report;
        }
    };
    assert!(parts > 2 && damaged_since.is_some_and(|since| since < parts), "{parts} {damaged_since:?}");
    assert_eq!(read, number as u64, "{last:#}");
    assert_eq!((&last["round"]["files"], &last["round"]["damaged"]), (&json!(number), &json!(1)), "{last:#}");
    // The next round begins anew. A run of it that is stopped by a signal keeps its place, too.
    let mut child = command(&[]).stdout(Stdio::piped()).spawn().expect("canopy");
    let io = format!("/proc/{}/io", child.id());
    let read = || {
        let text = fs::read_to_string(&io).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).unwrap_or(0)
    };
    assert!(wait_until(PATIENCE, || read() > 4 * MIB));
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert!(wait_within(&mut child, PATIENCE).is_some_and(|status| status.code() == Some(4)));
    let done = run_within(&mut command(&[]), PATIENCE);
    let report = parse(&done);
    assert!((1..number as u64).contains(&files(&report, "files")), "{report:#}");
    assert_eq!(report["round"]["files"], json!(number), "{report:#}");
    let refused = run_within(&mut command(&["--include", "x"]), PATIENCE);
    assert_eq!(refused.code(), Some(2), "{}", refused.describe());
}
