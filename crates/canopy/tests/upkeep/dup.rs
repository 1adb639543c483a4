//! `canopy dup`: which copies are made, and that they equal the originals.

use super::rig::{BINARY, PATIENCE, disks, json, on_pool, put, unfinished};
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{Fields, PoolBed, Tree, as_user};
use rustix::fs::XattrFlags;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

const MIB: usize = 1 << 20;

/// Checks that a report adds up, and returns the numbers of copies that were made, were not, and were not begun.
#[track_caller]
fn sums(report: &Value) -> [u64; 3] {
    let number = |part: &str| report[part]["files"].as_u64().unwrap_or_else(|| panic!("{part}: {report}"));
    let parts = ["copied", "stayed", "not_begun"].map(number);
    assert_eq!(number("planned"), parts.iter().sum::<u64>(), "{report}");
    parts
}

/// The whole pool, as an argument.
fn all(bed: &PoolBed) -> &str {
    bed.pool.path().to_str().expect("text")
}

fn why<'r>(bed: &PoolBed, report: &'r Value, path: &str) -> Option<&'r str> {
    let path = serde_json::json!(bed.at(path));
    report["stays"].as_array()?.iter().find(|stay| stay["path"] == path)?["why"].as_str()
}

#[test]
fn copies_are_as_the_originals() {
    let bed = disks("");
    put(&bed, 1, "films/deep/a", vec![1; MIB]);
    put(&bed, 1, "films/b", "text");
    fs::create_dir_all(bed.on(1, "other")).expect("mkdir");
    fs::hard_link(bed.on(1, "films/deep/a"), bed.on(1, "other/link")).expect("link");
    symlink("b", bed.on(1, "films/symlink")).expect("symlink");
    let sparse = fs::File::create(bed.on(1, "films/sparse")).expect("create");
    sparse.write_all_at(b"end", 20 << 20).expect("write");
    rustix::fs::fsetxattr(&sparse, "user.x", b"value", XattrFlags::empty()).expect("setxattr");
    drop(sparse);
    fs::set_permissions(bed.on(1, "films/b"), fs::Permissions::from_mode(0o640)).expect("chmod");
    rustix::fs::chown(bed.on(1, "films/b"), Some(rustix::fs::Uid::from_raw(7)), None).expect("chown");
    let fields = || Fields { root: false, ..Fields::all() };
    let before = Tree::capture_with(bed.on(1, ""), fields());
    let shown = Tree::capture_with(bed.pool.path(), fields());
    let paths = ["films/deep/a", "other/link", "films/b", "films/symlink", "films/sparse"];
    let dry = json(&on_pool(&bed, "dup", [all(&bed), "--copies", "3", "--dry-run", "--json"]));
    assert_eq!((sums(&dry), dry["steps"].as_array().map(Vec::len)), ([0; 3], Some(8)), "{dry}");
    assert_eq!(bed.branches_with("films/b"), [1]);
    let done = on_pool(&bed, "dup", ["films", "--include", "b"]);
    assert!(
        done.stdout.contains("\ncopied: 1 file (") && done.stdout.contains("; planned: 1 file ("),
        "{}",
        done.describe()
    );
    assert_eq!(bed.branches_with("films/b").len(), 2);
    let done = json(&on_pool(&bed, "dup", [all(&bed), "--copies", "3", "--json"]));
    assert_eq!(sums(&done), [7, 0, 0]);
    for path in paths {
        assert_eq!(bed.branches_with(path), [0, 1, 2], "{path}");
    }
    for branch in 0..3 {
        before.assert_same(&Tree::capture_with(bed.on(branch, ""), fields()));
    }
    shown.assert_same(&Tree::capture_with(bed.pool.path(), fields()));
    assert_eq!(unfinished(&bed), 0);
    let done = on_pool(&bed, "dup", [all(&bed), "--copies", "3"]);
    assert!(done.success() && done.stdout.starts_with("nothing to copy\n"), "{}", done.describe());
}

#[test]
fn what_cannot_be_copied_is_told() {
    let bed = disks("");
    for path in ["busy", "plain", "differs"] {
        put(&bed, 0, path, vec![1; MIB]);
    }
    put(&bed, 1, "differs", "other");
    put(&bed, 2, "filler", vec![1; 40 * MIB]);
    put(&bed, 1, "split", "x");
    fs::hard_link(bed.on(1, "split"), bed.on(1, "split2")).expect("link");
    fs::copy(bed.on(1, "split2"), bed.on(2, "split2")).expect("copy");
    let writer = fs::OpenOptions::new().append(true).open(bed.at("busy")).expect("open");
    let done = on_pool(&bed, "dup", [all(&bed), "--exclude", "filler", "--json"]);
    assert!(done.code() == Some(1) && done.stderr.ends_with("too few copies: 3\n"), "{}", done.describe());
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(why(&bed, &report, "busy"), Some("open for writing"));
    assert_eq!(why(&bed, &report, "differs"), Some("its copies differ in type, size or time"));
    assert_eq!(why(&bed, &report, "split2"), Some("its names have copies on different branches"));
    // The disk with most room takes it.
    assert_eq!((bed.branches_with("plain"), bed.branches_with("busy")), (vec![0, 1], vec![0]));
    drop(writer);
    bed.wait_until_closed("busy");
    assert!(on_pool(&bed, "dup", ["busy"]).success());
    let done = on_pool(&bed, "dup", ["plain", "--copies", "4"]);
    assert!(done.code() == Some(1) && done.stdout.contains("no other disk has room"), "{}", done.describe());
    let mut user = as_user(1000, 1000, &[], BINARY);
    user.arg("dup").arg(bed.pool.path()).arg(bed.at("busy")).args(["--copies", "3"]);
    let refused = run_within(&mut user, PATIENCE);
    assert!(!refused.success() && refused.stderr.contains("only its owner"), "{}", refused.describe());
    assert_eq!(unfinished(&bed), 0);
}

/// What docs/upkeep.md says of copies: writes change the one that is shown, names and attributes concern all.
#[test]
fn later_changes_act_on_copies_as_documented() {
    let bed = disks("");
    put(&bed, 1, "f", "old");
    assert!(on_pool(&bed, "dup", ["f", "--copies", "3"]).success());
    let contents = || [0, 1, 2].map(|branch| fs::read_to_string(bed.on(branch, "f")).expect("read"));
    let mut file = fs::OpenOptions::new().append(true).open(bed.at("f")).expect("open");
    file.write_all(b", new").expect("write");
    drop(file);
    assert_eq!(contents(), ["old, new", "old", "old"]);
    assert_eq!(fs::read_to_string(bed.at("f")).expect("read"), "old, new");
    fs::set_permissions(bed.at("f"), fs::Permissions::from_mode(0o604)).expect("chmod");
    for branch in 0..3 {
        let mode = fs::metadata(bed.on(branch, "f")).expect("stat").permissions().mode();
        assert_eq!(mode & 0o777, 0o604, "{branch}");
    }
    let told = on_pool(&bed, "dup", ["f", "--copies", "3"]);
    assert!(told.code() == Some(1) && told.stdout.contains("its copies differ"), "{}", told.describe());
    fs::rename(bed.at("f"), bed.at("g")).expect("rename");
    assert_eq!((bed.branches_with("f"), bed.branches_with("g")), (vec![], vec![0, 1, 2]));
    // As docs/upkeep.md says how to renew copies.
    let dedup = || on_pool(&bed, "dedup", ["g", "--keep", "newest", "--differing", "--yes"]);
    // The daemon may close a file late.
    assert!(wait_until(PATIENCE, || dedup().success()), "{}", dedup().describe());
    assert!(on_pool(&bed, "dup", ["g"]).success());
    assert_eq!(bed.branches_with("g").len(), 2);
    fs::remove_file(bed.at("g")).expect("unlink");
    assert_eq!(bed.branches_with("g"), [] as [usize; 0]);
}
