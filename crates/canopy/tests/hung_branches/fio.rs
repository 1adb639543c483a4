//! fio on the other branches while one hangs, for `CANOPY_SCALE` times six seconds (100 is ten minutes).

use super::rig::{PATIENCE, Rig};
use canopy_testkit::Fault;
use canopy_testkit::cmd::{run_within, wait_until};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

#[test]
fn fio_on_other_branches_is_not_held_up() {
    let scale = std::env::var("CANOPY_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1_u64);
    let seconds = 6 * scale;
    // Every read and write is a request to the daemon.
    let rig = Rig::new("passthrough.io=off,cache.files=off");
    for branch in &rig.well {
        fs::create_dir(branch.path().join("fio")).expect("mkdir");
    }
    let files: Vec<PathBuf> =
        (0..4).map(|number| rig.well[number % 2].path().join(format!("fio/{number}.0.0"))).collect();
    for file in &files {
        fs::write(file, vec![0; 8 << 20]).expect("a file");
    }
    let changed = || -> Vec<SystemTime> {
        files
            .iter()
            .map(|file| fs::metadata(file).and_then(|stat| stat.modified()).expect("a time"))
            .collect()
    };
    let before = changed();
    let mut fio = Command::new("fio");
    fio.args(["--name=pool", "--filename_format=$jobnum.0.0", "--size=8m", "--numjobs=4", "--rw=randrw"])
        .args(["--bs=16k", "--ioengine=psync", "--fallocate=none", "--time_based", "--rate_iops=200,200"])
        .args(["--output-format=json"])
        .arg(format!("--runtime={seconds}"))
        .arg(format!("--directory={}", rig.at("fio").display()));
    let stop = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Before each of them writes, fio looks its file up, and a name that is asked for then may time out.
            wait_until(PATIENCE, || changed().iter().zip(&before).all(|(now, before)| now != before));
            rig.faulty.set_all(Fault::Hang);
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::metadata(rig.at("d/b"));
                let _ = fs::read_dir(rig.at("d")).map(Iterator::count);
                std::thread::sleep(Duration::from_millis(50));
            }
            rig.faulty.heal();
        });
        let done = run_within(&mut fio, Duration::from_secs(seconds) + PATIENCE);
        stop.store(true, Ordering::Relaxed);
        done
    });
    assert!(done.success(), "{}", done.describe());
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let jobs = report["jobs"].as_array().expect("jobs");
    let longest = |job: &Value| {
        let of = |way: &str| job[way]["lat_ns"]["max"].as_u64().expect("a latency");
        of("read").max(of("write"))
    };
    let longest = Duration::from_nanos(jobs.iter().map(longest).max().expect("a job"));
    let sum =
        |way: &str| jobs.iter().map(|job| job[way]["total_ios"].as_u64().expect("a count")).sum::<u64>();
    println!("{seconds} s: {} reads, {} writes, the longest took {longest:?}", sum("read"), sum("write"));
    rig.heal();
    assert_eq!(fs::read(rig.at("d/b")).expect("a file"), b"b");
    rig.pool.umount();
}
