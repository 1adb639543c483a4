//! `canopy dedup --link`: equal files on one branch share their space.

use super::rig::{BINARY, on_pool, put, unfinished};
use canopy_testkit::cmd::{Finished, wait_until};
use canopy_testkit::{Fields, LoopFs, PATIENCE, Pool, PoolBed, Rng, Tree};
use rustix::fs::XattrFlags;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

const MIB: usize = 1 << 20;

fn mounted(disks: impl Into<Vec<LoopFs>>) -> PoolBed {
    let builder = Pool::builder(BINARY).option("minfreespace=0,cache.attr=0,cache.entry=0");
    PoolBed::mount(builder, disks.into())
}

fn count(report: &Value, part: &str) -> u64 {
    report[part]["files"].as_u64().expect("a number")
}

#[track_caller]
fn report(done: &Finished) -> Value {
    let report: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{}", done.describe()));
    let parts = ["already", "linked", "stayed", "not_begun"].map(|part| count(&report, part));
    assert_eq!(count(&report, "equal"), parts.iter().sum::<u64>(), "{report}");
    report
}

/// Puts a file with a time that all have.
fn same(bed: &PoolBed, branch: usize, path: &str, content: impl AsRef<[u8]>) {
    put(bed, branch, path, content);
    let file = File::open(bed.on(branch, path)).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
}

fn used(bed: &PoolBed, branch: usize) -> u64 {
    rustix::fs::syncfs(File::open(bed.on(branch, "")).unwrap()).unwrap();
    let space = rustix::fs::statvfs(bed.on(branch, "")).unwrap();
    (space.f_blocks - space.f_bfree) * space.f_frsize
}

#[test]
fn equal_files_share_blocks_and_stay_files_of_their_own() {
    // XFS shares blocks; btrfs is slow to tell what is free.
    let bed = mounted([LoopFs::xfs(320 << 20), LoopFs::btrfs(256 << 20), LoopFs::ext4(64 << 20)]);
    let mut rng = Rng::new(1);
    let content = rng.bytes(6 * MIB + 77);
    let other = rng.bytes(6 * MIB + 77);
    for branch in 0..3 {
        for copy in 0..4 {
            put(&bed, branch, &format!("b{branch}/d{copy}/equal"), &content);
        }
        put(&bed, branch, &format!("b{branch}/other"), &other);
    }
    // Owner, mode and attributes are of no importance, and one has several names.
    fs::set_permissions(bed.on(0, "b0/d1/equal"), fs::Permissions::from_mode(0o600)).unwrap();
    rustix::fs::setxattr(bed.on(0, "b0/d2/equal"), "user.x", b"value", XattrFlags::empty()).unwrap();
    fs::hard_link(bed.on(0, "b0/d3/equal"), bed.on(0, "b0/link")).unwrap();
    let before = Tree::capture_with(bed.pool.path(), Fields::all());
    let space = [used(&bed, 0), used(&bed, 1)];

    let planned = report(&on_pool(&bed, "dedup", ["--link", "reflink", "--json"]));
    assert_eq!((count(&planned, "linked"), count(&planned, "stayed")), (6, 3), "{planned:#}");
    assert!(planned["stays"][0]["why"].as_str().unwrap().starts_with("its filesystem has no reflinks"));
    assert!(used(&bed, 0).abs_diff(space[0]) < 1 << 20);
    let done = report(&on_pool(&bed, "dedup", ["--link", "reflink", "--json", "--yes"]));
    assert_eq!((count(&done, "linked"), count(&done, "stayed")), (6, 3), "{done:#}");
    assert!(space[0] - used(&bed, 0) > 17 << 20, "{} and {}", space[0], used(&bed, 0));
    assert!(wait_until(PATIENCE, || space[1].saturating_sub(used(&bed, 1)) > 17 << 20));
    before.assert_same(&Tree::capture_with(bed.pool.path(), Fields::all()));
    let again = report(&on_pool(&bed, "dedup", ["b0", "b1", "--link", "reflink", "--json", "--yes"]));
    assert_eq!((count(&again, "linked"), count(&again, "already")), (0, 6), "{again:#}");
    // A write to one of them reaches no other.
    fs::write(bed.at("b0/d1/equal"), "new").unwrap();
    let rest = ["b0/d0/equal", "b0/d2/equal", "b0/d3/equal", "b0/link"];
    assert!(rest.iter().all(|path| fs::read(bed.at(path)).unwrap() == content));
}

#[test]
fn a_file_that_is_written_shares_nothing() {
    let bed = mounted([LoopFs::xfs(320 << 20), LoopFs::ext4(64 << 20)]);
    for path in ["a", "b", "c"] {
        same(&bed, 0, path, vec![5; MIB]);
        same(&bed, 1, &format!("e{path}"), vec![5; MIB]);
    }
    let run = |how: &str| on_pool(&bed, "dedup", ["--link", how, "--json", "--yes"]);
    // Over the pool, and on the branch.
    let writer = File::options().append(true).open(bed.at("b")).unwrap();
    let reader = File::open(bed.on(1, "eb")).unwrap();
    let done = report(&run("reflink"));
    assert_eq!((count(&done, "linked"), count(&done, "stayed")), (1, 3), "{done:#}");
    // A hard link takes the place of a file, so nobody may have it open at all.
    let done = report(&run("hard"));
    assert_eq!((count(&done, "linked"), count(&done, "stayed")), (2, 2), "{done:#}");
    let why = |index: usize| done["stays"][index]["why"].as_str().unwrap().to_owned();
    assert_eq!([why(0), why(1)], ["open in a program"; 2], "{done:#}");
    drop((writer, reader));
    // The daemon may close a handle late.
    assert!(wait_until(PATIENCE, || run("hard").success()), "{}", run("hard").describe());
    for paths in [["a", "b", "c"], ["ea", "eb", "ec"]] {
        let inodes: BTreeSet<u64> =
            paths.iter().map(|path| fs::metadata(bed.at(path)).unwrap().ino()).collect();
        let links = fs::metadata(bed.at(paths[1])).unwrap().nlink();
        assert_eq!((inodes.len(), links), (1, 3), "{paths:?}");
    }
    File::options().append(true).open(bed.at("b")).unwrap().write_all(b"x").unwrap();
    assert_eq!(fs::metadata(bed.at("c")).unwrap().len(), MIB as u64 + 1);
    assert_eq!(unfinished(&bed), 0);
}

#[test]
fn files_that_differ_in_metadata_do_not_become_one() {
    let bed = mounted([LoopFs::ext4(64 << 20)]);
    let paths = ["owner", "mode", "attribute", "time", "linked", "z/equal"];
    same(&bed, 0, "first", "content");
    paths.iter().for_each(|path| same(&bed, 0, path, "content"));
    same(&bed, 0, "content", "CONTENT");
    same(&bed, 0, "z/empty", "");
    same(&bed, 0, "empty", "");
    std::os::unix::fs::chown(bed.on(0, "owner"), Some(7), None).unwrap();
    fs::set_permissions(bed.on(0, "mode"), fs::Permissions::from_mode(0o600)).unwrap();
    rustix::fs::setxattr(bed.on(0, "attribute"), "user.x", b"value", XattrFlags::empty()).unwrap();
    File::open(bed.on(0, "time")).unwrap().set_modified(UNIX_EPOCH).unwrap();
    let [one, two] = ["linked", "linked too"].map(|path| bed.on(0, path));
    fs::hard_link(one, two).unwrap();
    let dir = fs::metadata(bed.on(0, "z")).unwrap().modified().unwrap();
    let plan = on_pool(&bed, "dedup", ["--link", "hard"]);
    assert!(plan.stdout.contains("/z/equal: would be a link of "), "{}", plan.describe());
    let done = on_pool(&bed, "dedup", ["--link", "hard", "--yes"]);
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    for why in ["owner", "mode", "attributes", "the time of their last change"] {
        assert!(done.stdout.contains(&format!("differ in {why})")), "{why}: {}", done.describe());
    }
    assert!(done.stdout.contains("\nlinked: 2 files"), "{}", done.describe());
    let stat = |path: &str| fs::metadata(bed.at(path)).unwrap();
    // The file that has several names already stays.
    assert_eq!((stat("linked").nlink(), stat("first").ino()), (4, stat("z/equal").ino()));
    for path in ["owner", "mode", "attribute", "time", "content", "empty"] {
        assert_eq!(stat(path).nlink(), 1, "{path}");
    }
    assert_eq!(fs::metadata(bed.on(0, "z")).unwrap().modified().unwrap(), dir, "the pool shows no change");
    let done = on_pool(&bed, "dedup", ["--link", "hard", "--keep", "newest"]);
    assert!(!done.success() && done.stderr.contains("--keep"), "{}", done.describe());
}

/// Killed at any time, it leaves every name with its content, and the next run removes what is left.
#[test]
fn killed_at_any_time_it_harms_nothing() {
    const FILES: usize = 120;
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("CANOPY_SEED").unwrap_or(20_261_127);
    println!("CANOPY_SEED={seed}");
    let mut rng = Rng::new(seed);
    let bed = mounted([LoopFs::tmpfs(96 << 20)]);
    let name = |file: usize| format!("d{}/f{file}", file % 3);
    let content = |file: usize| format!("content {}", file % 4);
    let inodes = || -> BTreeSet<u64> {
        (0..FILES).map(|file| fs::metadata(bed.on(0, &name(file))).expect("a file").ino()).collect()
    };
    let (mut cut, mut left) = (0, 0);
    for round in 0..number("CANOPY_KILLS").unwrap_or(12) {
        for file in 0..FILES {
            let _ = fs::remove_file(bed.on(0, &name(file)));
            same(&bed, 0, &name(file), content(file));
        }
        let mut command = Command::new(BINARY);
        command.arg("dedup").arg(bed.pool.path()).args(["--link", "hard", "--yes", "-q"]);
        let mut child = command.stdin(Stdio::null()).spawn().expect("canopy");
        let few = FILES - rng.index(FILES - 8);
        // Once it has begun.
        wait_until(PATIENCE, || inodes().len() < few);
        child.kill().expect("kill");
        child.wait().expect("wait");
        cut += u32::from(inodes().len() > 4);
        left += unfinished(&bed);
        let whole =
            |file: usize| fs::read_to_string(bed.at(&name(file))).is_ok_and(|text| text == content(file));
        assert!((0..FILES).all(whole), "round {round}");
        // The daemon may close a file late.
        let done = || on_pool(&bed, "dedup", ["--link", "hard", "--yes"]);
        assert!(wait_until(PATIENCE, || done().success()), "round {round}: {}", done().describe());
        assert_eq!((inodes().len(), unfinished(&bed)), (4, 0), "round {round}");
        assert!((0..FILES).all(whole), "round {round}");
        assert_eq!(fs::metadata(bed.at(&name(0))).unwrap().nlink(), FILES as u64 / 4, "round {round}");
    }
    println!("{cut} were killed before their end, {left} names were left aside");
}

/// Clients append to files while these become links of one: what is written under a name is in the file that has the name. The
/// kernel still knows names and attributes of the files that have gone.
#[test]
fn no_write_is_lost_beside_hard_links() {
    const FILES: usize = 60;
    const SIZE: u64 = 100_000;
    let builder = Pool::builder(BINARY).option("minfreespace=0,cache.attr=5,cache.entry=5");
    let bed = PoolBed::mount(builder, vec![LoopFs::tmpfs(96 << 20)]);
    for file in 0..FILES {
        same(&bed, 0, &format!("f{file}"), vec![b'.'; SIZE as usize]);
    }
    let mut written = [0_u64; FILES];
    let mut visit = |file: usize| {
        let mut opened = File::options().append(true).open(bed.at(&format!("f{file}"))).expect("open");
        // Not what another client writes, or files would be equal again.
        opened.write_all(&[file as u8]).expect("write");
        written[file] += 1;
    };
    let run = || on_pool(&bed, "dedup", ["--link", "hard", "--yes", "--json"]);
    std::thread::scope(|scope| {
        let command = scope.spawn(|| report(&run()));
        let links = || fs::metadata(bed.on(0, "f0")).expect("a file").nlink();
        assert!(wait_until(PATIENCE, || links() > 5));
        // Backwards, so that the two meet.
        (0..FILES).rev().take_while(|_| !command.is_finished()).for_each(&mut visit);
        command.join().expect("a report");
    });
    (0..FILES).for_each(&mut visit);
    let mut by_file: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (file, written) in written.iter().enumerate() {
        let stat = fs::metadata(bed.on(0, &format!("f{file}"))).expect("a file");
        let (size, sum) = by_file.entry(stat.ino()).or_insert((stat.len(), 0));
        assert_eq!(*size, stat.len());
        *sum += written;
    }
    println!("{} of {FILES} files are left", by_file.len());
    for (size, written) in by_file.values() {
        assert_eq!(*size, SIZE + written);
    }
    assert_eq!(unfinished(&bed), 0);
}
