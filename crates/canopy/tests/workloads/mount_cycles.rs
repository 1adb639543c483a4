//! Hundreds of mounts and unmounts: none fails, and none leaves a daemon behind.

use std::fs;
use std::process::Command;

use canopy_testkit::cmd::{run_unless_busy, run_within, wait_until};
use canopy_testkit::{LeakCheck, PATIENCE, proc};

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
    for cycle in 0..CYCLES {
        let mut mount = Command::new(canopy);
        mount.args(["mount", "-o", "minfreespace=0,category.create=rand", &branches]).arg(&point);
        let done = run_within(&mut mount, PATIENCE);
        assert!(done.success(), "cycle {cycle}: {}", done.describe());
        // A separate process writes: a child that another test forks meanwhile would inherit our open file.
        let work = "file=file$(($2 % 10)); echo $2 > $file; test $(cat $file) = $2
            if test $(($2 % 3)) = 0; then mv $file renamed; rm renamed; fi";
        let mut shell = Command::new("sh");
        shell.args(["-eu", "-c", &format!("cd \"$1\"; {work}"), "sh"]).arg(&point).arg(cycle.to_string());
        let done = run_within(&mut shell, PATIENCE);
        assert!(done.success(), "cycle {cycle}: {}", done.describe());
        let end: &[&str] = match cycle % 4 {
            0 => &["umount"],
            1 => &["fusermount3", "-u"],
            2 => &["umount", "-l"],
            _ => &[canopy, "umount"],
        };
        let done = run_unless_busy(Command::new(end[0]).args(&end[1..]).arg(&point), PATIENCE);
        assert!(done.success(), "cycle {cycle}: {end:?}: {}", done.describe());
        let gone = || proc::mount_at(&point).is_none() && proc::daemons(&dir).is_empty();
        let ended = wait_until(PATIENCE, gone);
        assert!(ended, "cycle {cycle}: after {end:?} {:?} still run", proc::daemons(&dir));
    }
    let mut left: Vec<_> = ["a", "b"].iter().flat_map(|name| fs::read_dir(dir.join(name)).unwrap()).collect();
    left.sort_by_key(|entry| entry.as_ref().unwrap().file_name());
    assert!(left.len() <= 10, "{left:?}");
}
