//! Option changes while fio and stress-ng work in the pool and verify what they read.

use super::rig::Dirs;
use super::under_load::random_changes;
use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::run_within;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const CHANGES: u32 = 1000;
/// The time limit for one run of either program, far more than it takes.
const DEADLINE: Duration = Duration::from_secs(2 * PATIENCE.as_secs());

/// Jobs that write at random offsets, read back and compare checksums, then verify the whole file: by system calls and by
/// mmap, with a file for each job and with a shared one.
const FIO: &[&[&str]] = &[
    &["--name=own", "--numjobs=2", "--ioengine=psync", "--size=8m"],
    &["--name=mapped", "--numjobs=2", "--ioengine=mmap", "--size=4m"],
    &["--name=direct", "--numjobs=1", "--ioengine=psync", "--size=4m", "--direct=1"],
    &["--name=together", "--numjobs=1", "--ioengine=psync", "--size=8m", "--filename=together"],
];

fn fio(dir: &Path, job: &[&str]) -> Command {
    let mut command = Command::new("fio");
    command.args([
        "--rw=randwrite",
        "--bs=4k-64k",
        "--bsrange=4k-64k",
        "--blockalign=4k",
        "--fallocate=none",
    ]);
    command.args([
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--verify_backlog=64",
        "--serialize_overlap=1",
    ]);
    command.args(["--end_fsync=1", "--minimal", "--group_reporting", "--unlink=1"]);
    // fio leaves no file, such as its verify state, in the current directory.
    command
        .args(job)
        .arg(format!("--directory={}", dir.display()))
        .arg("--verify_state_save=0")
        .current_dir(dir);
    command
}

/// Stressors that create, link, rename, list, lock and remove files.
const STRESSORS: &[&str] = &[
    "dentry",
    "dir",
    "rename",
    "link",
    "symlink",
    "hdd",
    "flock",
    "chmod",
    "utime",
    "filename",
    "seek",
    "copy-file",
];

fn stress(dir: &Path, stressor: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "100", "stress-ng", &format!("--{stressor}"), "1"]);
    command.args([
        &format!("--{stressor}-ops"),
        "200",
        "--timeout",
        "3",
        "--verify",
        "--oomable",
        "--temp-path",
    ]);
    command.arg(dir);
    command
}

#[test]
fn a_thousand_random_changes_under_fio_and_stress_ng() {
    let dirs = Dirs::new();
    let pool = dirs.pool("category.create=rand");
    let stop = AtomicBool::new(false);
    let runs = [AtomicU64::new(0), AtomicU64::new(0)];
    let again = |count: usize, command: &dyn Fn(u64) -> Command| {
        for round in 0.. {
            if stop.load(Ordering::Relaxed) && round > 0 {
                return;
            }
            let done = run_within(&mut command(round), DEADLINE);
            if !done.success() || done.stdout.contains(" fail: ") || done.stderr.contains(" fail: ") {
                stop.store(true, Ordering::Relaxed);
                panic!("round {round}: {}", done.describe());
            }
            runs[count].fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        for (number, job) in FIO.iter().enumerate() {
            let dir = pool.path().join(format!("fio{number}"));
            fs::create_dir(&dir).expect("mkdir");
            scope.spawn(move || again(0, &|_| fio(&dir, job)));
        }
        let dir = pool.path().join("stress");
        fs::create_dir(&dir).expect("mkdir");
        scope.spawn(move || again(1, &|round| stress(&dir, STRESSORS[round as usize % STRESSORS.len()])));
        random_changes(&pool, &dirs, CHANGES, 60, &|| !stop.load(Ordering::Relaxed));
        stop.store(true, Ordering::Relaxed);
    });
    let [fio, stress] = runs.map(AtomicU64::into_inner);
    println!("{CHANGES} changes under {fio} runs of fio and {stress} of stress-ng");
    assert!(fio >= FIO.len() as u64 && stress > 0);
    pool.umount();
}
