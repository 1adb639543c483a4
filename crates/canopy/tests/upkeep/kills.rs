//! A command that moves files is killed, or the daemon is. Every file stays whole, on one branch, with all its links.

use super::rig::{BINARY, PATIENCE, unfinished};
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{Fields, LoopFs, Pool, PoolBed, Rng, ScratchDir, Tree, TreeSpec, populate};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How often each is killed. `CANOPY_KILLS` overrides it.
const KILLS: u32 = 12;

fn kills() -> (u32, Rng) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = number("CANOPY_SEED").unwrap_or(20_261_124);
    println!("CANOPY_SEED={seed}");
    (number("CANOPY_KILLS").map_or(KILLS, |kills| kills as u32), Rng::new(seed))
}

fn disks() -> Vec<LoopFs> {
    // In memory: a killed process loses nothing that is written, so nothing needs to be synced.
    let disks = [0; 3].map(|_| LoopFs::tmpfs(96 << 20));
    let spec = TreeSpec { seed: 3, files: 300, max_file: 400 << 10, specials: 0, ..TreeSpec::default() };
    let counts = populate(disks[0].path(), &spec);
    assert!(counts.hard_links > 10 && counts.sparse > 2 && counts.xattrs > 10, "{counts:?}");
    disks.into()
}

fn mount(disks: Vec<LoopFs>) -> PoolBed {
    PoolBed::mount(Pool::builder(BINARY).option("minfreespace=0,cache.attr=0,cache.entry=0"), disks)
}

/// All but the times of directories, which a kill between two steps may change.
fn fields() -> Fields {
    Fields { sparse: true, ..Fields::without_dir_times() }
}

/// Checks that no file has two copies, and returns the whole tree, as the branches have it.
fn tree(bed: &PoolBed) -> Tree {
    assert_eq!(unfinished(bed), 0);
    let mut seen = BTreeSet::new();
    for disk in &bed.disks {
        for (path, entry) in Tree::capture_with(disk.path(), fields()).entries {
            let is_dir = entry.kind == canopy_testkit::tree::Kind::Dir;
            let once = is_dir || seen.insert(path.clone());
            assert!(once, "{} is on two branches", String::from_utf8_lossy(&path));
        }
    }
    Tree::capture_with(bed.pool.path(), fields())
}

/// The command of a round: each moves something wherever the files are.
fn command(bed: &PoolBed, records: &ScratchDir, round: u32) -> Command {
    let mut command = Command::new(BINARY);
    let fullest = (0..3).max_by_key(|disk| used(bed, *disk)).unwrap_or(0);
    match round % 4 {
        0 => command.arg("drain").arg(bed.pool.path()).arg(bed.on(fullest, "")),
        1 => command.arg("balance").arg(bed.pool.path()).args(["--to", "1%"]),
        2 => {
            // Every file of the disk leaves it.
            let disk = bed.on(fullest, "");
            bed.pool.set("tiers", &format!("full={}|older than 0 seconds", disk.display()));
            command.arg("tier").arg(bed.pool.path()).arg("--once").env("CANOPY_RUN_DIR", records.path("run"))
        }
        _ => {
            let to = bed.on((fullest + 1) % 3, "");
            command.arg("consolidate").arg(bed.pool.path()).arg(bed.pool.path()).arg("--to").arg(to)
        }
    };
    command.arg("--eager").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn used(bed: &PoolBed, disk: usize) -> u64 {
    let space = rustix::fs::statvfs(bed.on(disk, "")).expect("statvfs");
    space.f_blocks - space.f_bfree
}

/// A killed drain leaves the mode NC.
fn reset_modes(bed: &PoolBed) {
    let list: Vec<String> = bed.disks.iter().map(|disk| format!("{}=RW", disk.path().display())).collect();
    bed.pool.set("branches", &list.join(":"));
}

#[test]
fn a_killed_command_leaves_every_file_whole() {
    let (kills, mut rng) = kills();
    let records = ScratchDir::new("canopy-kills-", &["run"]);
    let bed = mount(disks());
    let before = tree(&bed);
    let (mut cut, mut ended) = (0, 0);
    for round in 0..kills {
        reset_modes(&bed);
        let places = used(&bed, 0);
        let mut child = command(&bed, &records, round).spawn().expect("canopy");
        std::thread::sleep(Duration::from_micros(rng.below(150_000)));
        let done = child.try_wait().expect("wait").is_some();
        child.kill().expect("kill");
        child.wait().expect("wait");
        ended += u32::from(done);
        cut += u32::from(!done && used(&bed, 0) != places);
        // The daemon drops what the command has waited for.
        assert!(wait_until(PATIENCE, || unfinished(&bed) == 0), "round {round}");
        before.assert_same(&tree(&bed));
    }
    println!("{cut} of {kills} were killed after they had moved something, {ended} had ended");
    reset_modes(&bed);
    // Run again, it ends.
    for round in [1, 2, 3, 0] {
        let done = run_within(&mut command(&bed, &records, round), PATIENCE);
        assert!(done.success(), "{}", done.describe());
        before.assert_same(&tree(&bed));
    }
}

#[test]
fn a_killed_daemon_leaves_every_file_whole() {
    let (kills, mut rng) = kills();
    let records = ScratchDir::new("canopy-kills-", &["run"]);
    let mut bed = mount(disks());
    let before = tree(&bed);
    let mut cut = 0;
    for round in 0..kills {
        let mut child = command(&bed, &records, round).spawn().expect("canopy");
        std::thread::sleep(Duration::from_micros(rng.below(120_000)));
        bed.pool.kill();
        child.wait().expect("wait");
        cut += u32::from(unfinished(&bed) > 0);
        let PoolBed { pool, disks } = bed;
        drop(pool);
        // The next mount finishes what was begun.
        bed = mount(disks);
        before.assert_same(&tree(&bed));
    }
    println!("{cut} of {kills} left something to clean up");
    let done = run_within(&mut command(&bed, &records, 1), PATIENCE);
    assert!(done.success(), "{}", done.describe());
    before.assert_same(&tree(&bed));
}
