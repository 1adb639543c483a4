//! Pools over disks that rest after a moment.

use canopy_testkit::cmd::{json, wait_until};
use canopy_testkit::{Kind, LoopFs, PATIENCE, Pool, PoolBed, require_root};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_canopy");

/// For how long a filesystem keeps back what was changed (the commit interval of ext4, and the age of dirty inodes).
const QUIET: Duration = Duration::from_secs(6);

/// Mounts a pool over two disks of a kind, with some files. They rest after a second.
#[track_caller]
pub(super) fn mount(kind: Kind, options: &str) -> PoolBed {
    require_root();
    let mut disks: Vec<LoopFs> = (0..2).map(|_| LoopFs::new(kind, 512 << 20)).collect();
    for (number, disk) in disks.iter().enumerate() {
        for dir in 0..10 {
            let at = disk.path().join(format!("dir{dir}"));
            fs::create_dir_all(&at).expect("a directory");
            fs::write(at.join(format!("file{number}")), vec![b'x'; 9000]).expect("a file");
        }
    }
    // What the journal has yet to write in place stays in memory.
    for disk in &mut disks {
        disk.unmount();
        disk.mount_again();
    }
    let pool = Pool::builder(BINARY)
        .option("minfreespace=0,category.create=ff")
        .option(options)
        .env("CANOPY_TEST_RESTS", "1000")
        .env("CANOPY_TEST_RESTED", "0");
    PoolBed::mount(pool, disks)
}

/// Returns how many requests each disk has completed.
pub(super) fn requests(bed: &PoolBed) -> Vec<u64> {
    requests_of(&bed.disks)
}

pub(super) fn requests_of(disks: &[LoopFs]) -> Vec<u64> {
    let of = |disk: &LoopFs| {
        let name = disk.device().and_then(Path::file_name).expect("a device").to_os_string();
        let stat = fs::read_to_string(Path::new("/sys/block").join(name).join("stat")).expect("counters");
        let field = |at: usize| stat.split_whitespace().nth(at).and_then(|n| n.parse::<u64>().ok());
        [0, 4, 11, 15].into_iter().filter_map(field).sum()
    };
    disks.iter().map(of).collect()
}

pub(super) fn status(bed: &PoolBed) -> Value {
    let path = bed.pool.path().to_str().expect("a name").to_owned();
    json(&bed.pool.command(["status", &path, "--json"]))["pools"][0].clone()
}

/// Returns what is told of the disk of a branch.
#[track_caller]
pub(super) fn sleep_of(bed: &PoolBed, status: &Value, branch: usize) -> Value {
    let path = bed.disks[branch].path().to_str().expect("a name");
    let all = status["sleep"].as_array().expect("disks");
    let is_below =
        |disk: &&Value| disk["branches"].as_array().is_some_and(|on| on.iter().any(|on| on == path));
    all.iter().find(is_below).unwrap_or_else(|| panic!("{path} in {status:#}")).clone()
}

/// Waits until both disks rest, and nothing is kept back.
#[track_caller]
pub(super) fn rest(bed: &PoolBed) {
    bed.pool.drop_dentries();
    bed.disks.iter().for_each(LoopFs::drop_caches);
    let (mut before, mut since) = (requests(bed), Instant::now());
    let quiet = wait_until(PATIENCE, || {
        let now = requests(bed);
        if now != before {
            (before, since) = (now, Instant::now());
        }
        since.elapsed() > QUIET
    });
    assert!(quiet, "the disks never rest");
    let is_idle = |status: &Value, branch| sleep_of(bed, status, branch)["state"] == "idle";
    let idle = wait_until(PATIENCE, || {
        let now = status(bed);
        [0, 1].into_iter().all(|branch| is_idle(&now, branch))
    });
    assert!(idle, "{:#}", status(bed)["sleep"]);
    bed.disks.iter().for_each(|disk| drop_dentries(disk.path()));
}

/// Drops what is cached of names and inodes.
fn drop_dentries(point: &Path) {
    let remounted = Command::new("mount").args(["-o", "remount"]).arg(point).status();
    assert!(remounted.is_ok_and(|status| status.success()));
}
