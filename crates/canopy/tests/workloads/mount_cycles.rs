//! Hundreds of mounts and unmounts: none fails, and none leaves a daemon behind.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use canopy_testkit::cmd::{run_unless_busy, run_within, wait_until};
use canopy_testkit::{LeakCheck, proc};

const CYCLES: usize = 200;

#[test]
fn two_hundred_mounts_leave_nothing() {
    canopy_testkit::require_root();
    let home = tempfile::Builder::new().prefix("canopy-cycles-").tempdir().unwrap();
    let dir = home.path().canonicalize().unwrap();
    let _guard = LeakCheck::under(&dir);
    for name in ["a", "b", "pool"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    let (point, canopy) = (dir.join("pool"), env!("CARGO_BIN_EXE_canopy"));
    let branches = format!("{}:{}", dir.join("a").display(), dir.join("b").display());
    let started = Instant::now();
    let (mut slowest_mount, mut slowest_end) = (Duration::ZERO, Duration::ZERO);
    for cycle in 0..CYCLES {
        let mut mount = Command::new(canopy);
        mount.args(["mount", "-o", "minfreespace=0,category.create=rand", &branches]).arg(&point);
        let done = run_within(&mut mount, Duration::from_secs(20));
        assert!(done.success(), "cycle {cycle}: {}", done.describe());
        slowest_mount = slowest_mount.max(done.took);
        // A separate process writes: a child that another test forks meanwhile would inherit our open file.
        let work = "file=file$(($2 % 10)); echo $2 > $file; test $(cat $file) = $2
            if test $(($2 % 3)) = 0; then mv $file renamed; rm renamed; fi";
        let mut shell = Command::new("sh");
        shell.args(["-eu", "-c", &format!("cd \"$1\"; {work}"), "sh"]).arg(&point).arg(cycle.to_string());
        let done = run_within(&mut shell, Duration::from_secs(20));
        assert!(done.success(), "cycle {cycle}: {}", done.describe());
        let end: &[&str] = match cycle % 4 {
            0 => &["umount"],
            1 => &["fusermount3", "-u"],
            2 => &["umount", "-l"],
            _ => &[canopy, "umount"],
        };
        let at = Instant::now();
        let done = run_unless_busy(Command::new(end[0]).args(&end[1..]).arg(&point), Duration::from_secs(20));
        assert!(done.success(), "cycle {cycle}: {end:?}: {}", done.describe());
        let gone = || proc::mount_at(&point).is_none() && proc::daemons(&dir).is_empty();
        let ended = wait_until(Duration::from_secs(10), gone);
        assert!(ended, "cycle {cycle}: after {end:?} {:?} still run", proc::daemons(&dir));
        slowest_end = slowest_end.max(at.elapsed());
    }
    // No cycle takes this long, even on a busy machine, unless it waits for a timeout.
    assert!(slowest_mount.max(slowest_end) < Duration::from_secs(8), "{slowest_mount:?} {slowest_end:?}");
    assert!(started.elapsed() < Duration::from_secs(120), "{:?}", started.elapsed());
    let mut left: Vec<_> = ["a", "b"].iter().flat_map(|name| fs::read_dir(dir.join(name)).unwrap()).collect();
    left.sort_by_key(|entry| entry.as_ref().unwrap().file_name());
    assert!(left.len() <= 10, "{left:?}");
}
