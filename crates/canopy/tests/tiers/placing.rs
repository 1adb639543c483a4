//! Where new files go.

use super::rig::{BINARY, MIB};
use canopy_testkit::cmd::run_within;
use canopy_testkit::{LoopFs, PATIENCE, Pool, PoolBed};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::process::Command;

/// An SSD of 32 MiB as the first tier, two disks of 64 MiB as the second, and one in none.
fn bed(options: &str) -> PoolBed {
    let sizes = [32, 64, 64, 64].map(|size| LoopFs::ext4(size << 20));
    let path = |disk: usize| sizes[disk].path().display().to_string();
    let tiers = format!("tiers=ssd={};disks={}:{}", path(0), path(1), path(2));
    let rules = format!("rules=films/**={}:{};**/*.part=ssd;old/=disks", path(1), path(2));
    let builder = Pool::builder(BINARY).option("minfreespace=0,category.create=ff,cache.statfs=0");
    PoolBed::mount(builder.option(tiers).option(rules).option(options), sizes)
}

fn fill(bed: &PoolBed, disk: usize) {
    let mut file = File::create(bed.on(disk, ".filler")).unwrap();
    let block = vec![0; MIB];
    while file.write_all(&block).is_ok() {}
    while file.write_all(&block[..4096]).is_ok() {}
}

fn explain(bed: &PoolBed, path: &str) -> (Value, String) {
    let run = |json: &[&str]| {
        let mut program = Command::new(BINARY);
        let done = run_within(program.args(["explain", "create"]).arg(bed.at(path)).args(json), PATIENCE);
        assert!(done.success(), "{}", done.describe());
        done.stdout
    };
    (
        serde_json::from_str(&run(&["--json"])).unwrap(),
        run(&[]).split_whitespace().collect::<Vec<_>>().join(" "),
    )
}

/// Returns whether the words of a verdict come in this order. The parts of a long path, in the column beside it, may stand in
/// between.
fn says(text: &str, verdict: &str) -> bool {
    let mut words = text.split(' ');
    verdict.split(' ').all(|word| words.any(|found| found == word))
}

fn verdicts(answer: &Value) -> Vec<&str> {
    answer["branches"].as_array().unwrap().iter().map(|branch| branch["verdict"].as_str().unwrap()).collect()
}

#[test]
fn rules_and_tiers_place_whatever_is_new() {
    let bed = bed("");
    fs::create_dir_all(bed.at("films/deep")).unwrap();
    fs::create_dir_all(bed.at("old")).unwrap();
    fs::create_dir_all(bed.at("else")).unwrap();
    let table = [("a", 0), ("films/deep/a.mkv", 1), ("films/b.part", 1), ("else/c.part", 0), ("old/d", 1)];
    for (path, disk) in table {
        // As predicted.
        let (answer, _) = explain(&bed, path);
        assert_eq!(answer["chosen"][0], bed.disks[disk].path().to_str().unwrap(), "{answer:#}");
        fs::write(bed.at(path), path).unwrap();
        assert_eq!(bed.branches_with(path), [disk], "{path}");
        let (other, node) = (bed.at(&format!("{path}.link")), bed.at(&format!("{path}.fifo")));
        let expected = if path.ends_with(".part") && disk == 0 { 0 } else { disk };
        rustix::fs::symlink("target", &other).unwrap();
        rustix::fs::mknodat(CWD, &node, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(bed.branches_with(&format!("{path}.link")), [expected], "{path}");
        assert_eq!(bed.branches_with(&format!("{path}.fifo")), [expected], "{path}");
    }
    // A file without a name gets one later, and cannot change its branch then.
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let nameless = rustix::fs::open(bed.at("films"), flags, Mode::RUSR).unwrap();
    let by_number = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&nameless));
    let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
    rustix::fs::linkat(CWD, by_number, CWD, bed.at("films/named"), follow).unwrap();
    assert_eq!(bed.branches_with("films/named"), [1]);
    // A rename moves no data.
    fs::rename(bed.at("a"), bed.at("films/a")).unwrap();
    assert_eq!(bed.branches_with("films/a"), [0]);
}

#[test]
fn a_full_tier_passes_to_the_next_and_nobody_sees_enospc() {
    // Without minfreespace, so that the branch itself refuses.
    for options in ["", "moveonenospc=false"] {
        let bed = bed(options);
        fill(&bed, 0);
        let names: Vec<String> = (0..50).map(|number| format!("file{number}.part")).collect();
        // Creating needs no block as long as there is room in the directory: with minfreespace, none is asked for.
        bed.pool.set("minfreespace", "1M");
        for name in &names {
            fs::write(bed.at(name), vec![7; MIB / 10]).unwrap();
            assert_eq!(bed.branches_with(name), [1], "{name}");
        }
        let (answer, text) = explain(&bed, "x.part");
        assert_eq!(verdicts(&answer), ["below-min-free", "chosen", "lost", "outside"], "{answer:#}");
        for words in [
            "tier ssd (passed over: none can be chosen), then tier disks (chosen), then the branches in no tier; by the rule **/*.part",
            "less than its minfreespace of 1.0M",
            "not asked: it belongs to the branches in no tier",
        ] {
            assert!(says(&text, words), "{words}\n{text}");
        }
        bed.pool.set("minfreespace", "0");
    }
}

#[test]
fn a_tier_without_inodes_passes_to_the_next() {
    for options in ["", "moveonenospc=false"] {
        let bed = bed(options);
        fs::create_dir(bed.on(0, "inodes")).unwrap();
        let used =
            (0..).take_while(|number| File::create(bed.on(0, &format!("inodes/{number}"))).is_ok()).count();
        assert!(used > 1000, "{used}");
        fs::write(bed.at("a"), "").unwrap();
        rustix::fs::symlink("a", bed.at("b")).unwrap();
        assert_eq!((bed.branches_with("a"), bed.branches_with("b")), (vec![1], vec![1]), "{options}");
    }
}

#[test]
fn a_file_that_outgrows_its_tier_moves_to_the_next() {
    let bed = bed("moveonenospc=ff");
    let mut file = File::create(bed.at("growing")).unwrap();
    assert_eq!(bed.branches_with("growing"), [0]);
    for _ in 0..40 {
        file.write_all(&vec![3; MIB]).expect("no ENOSPC");
    }
    assert_eq!(bed.branches_with("growing"), [1]);
    drop(file);
    assert!(fs::read(bed.at("growing")).unwrap() == vec![3; 40 * MIB]);
}

#[test]
fn the_branches_of_a_rule_are_a_promise() {
    let bed = bed("");
    fs::create_dir(bed.at("films")).unwrap();
    bed.pool.set("minfreespace", "60M");
    // Only the disks of the rule are below it.
    fs::write(bed.on(1, ".filler"), vec![1; 20 * MIB]).unwrap();
    fs::write(bed.on(2, ".filler"), vec![1; 20 * MIB]).unwrap();
    bed.pool.set("minfreespace", "30M");
    fs::write(bed.on(1, ".more"), vec![1; 15 * MIB]).unwrap();
    fs::write(bed.at("films/there"), "").unwrap();
    assert_eq!(bed.branches_with("films/there"), [2]);
    fs::write(bed.on(2, ".more"), vec![1; 15 * MIB]).unwrap();
    let created = rustix::fs::open(bed.at("films/no"), OFlags::CREATE | OFlags::WRONLY, Mode::RUSR);
    assert_eq!(created.err(), Some(Errno::NOSPC));
    fs::write(bed.at("elsewhere"), "").unwrap();
    assert_eq!(bed.branches_with("elsewhere"), [3], "the tiers have no room, the branch in none has");
    let (answer, text) = explain(&bed, "films/no");
    assert_eq!(verdicts(&answer), ["outside", "below-min-free", "below-min-free", "outside"], "{answer:#}");
    assert!(says(&text, "not among the branches of the rule"), "{text}");
    // Without the disks of the rule as well.
    let rest = format!("{}:{}", bed.on(0, "").display(), bed.on(3, "").display());
    bed.pool.set("branches", &rest);
    fs::create_dir_all(bed.at("films")).unwrap();
    let created = rustix::fs::open(bed.at("films/no"), OFlags::CREATE | OFlags::WRONLY, Mode::RUSR);
    assert_eq!(created.err(), Some(Errno::NOSPC));
}

#[test]
fn a_policy_that_preserves_paths_gives_way_to_tiers() {
    let bed = bed("category.create=epmfs");
    fs::create_dir(bed.on(2, "films")).unwrap();
    fs::create_dir(bed.on(3, "music")).unwrap();
    fs::write(bed.at("films/a"), "").unwrap();
    assert_eq!(bed.branches_with("films/a"), [2], "the branch of the rule that has the directory");
    fs::write(bed.at("music/a"), "").unwrap();
    assert_eq!(bed.branches_with("music/a"), [0], "the tier has no branch with the directory");
}
