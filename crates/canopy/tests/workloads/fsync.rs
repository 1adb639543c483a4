//! fsync(2) reaches the disks of the branches. The tests trace the daemon with strace.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use canopy_testkit::cmd::{wait_until, wait_within};
use canopy_testkit::{Kind, PATIENCE, Pool};
use rustix::process::{Pid, Signal, kill_process};

use super::rig::{DATA_PATHS, Disks};

/// Records the daemon's sync calls.
struct Trace {
    child: Child,
    log: PathBuf,
}

impl Trace {
    #[track_caller]
    fn of(pool: &Pool, log: &Path) -> Self {
        let pid = pool.pid().to_string();
        let child = Command::new("strace")
            .args(["-f", "-y", "-s", "0", "-e", "trace=fsync,fdatasync,syncfs,sync", "-p", &pid, "-o"])
            .arg(log)
            .stderr(Stdio::null())
            .spawn()
            .expect("strace");
        let own = Self { child, log: log.to_owned() };
        let traced = |task: PathBuf| {
            fs::read_to_string(task.join("status")).is_ok_and(|text| !text.contains("TracerPid:\t0\n"))
        };
        let all =
            || fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| traced(task.unwrap().path()));
        assert!(wait_until(PATIENCE, all), "strace does not attach");
        own
    }

    /// Ends the recording, and returns the calls that succeeded.
    fn calls(mut self) -> Vec<String> {
        self.detach();
        let text = fs::read_to_string(&self.log).unwrap();
        // strace may split a call over two lines when threads interleave.
        text.lines().filter(|line| line.contains("sync")).map(str::to_owned).collect()
    }

    fn detach(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        if wait_within(&mut self.child, PATIENCE).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Returns the daemon's sync calls while `act` runs.
#[track_caller]
fn synced(pool: &Pool, act: impl FnOnce()) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let trace = Trace::of(pool, &dir.path().join("log"));
    act();
    trace.calls()
}

fn count(calls: &[String], call: &str, path: &Path) -> usize {
    let wanted = format!("<{}>", path.display());
    calls.iter().filter(|line| line.contains(&format!("{call}(")) && line.contains(&wanted)).count()
}

/// mergerfs reports success for fsync of a directory and syncs nothing.
#[test]
fn fsync_of_a_directory_reaches_every_branch() {
    let disks = Disks::new(&[Kind::Ext4, Kind::Xfs]);
    for branch in disks.branches() {
        fs::create_dir_all(branch.join("both/below")).unwrap();
    }
    let branches = disks.branches();
    fs::create_dir(branches[1].join("second")).unwrap();
    let pool = disks.pool("");
    let root = pool.path();
    let calls = synced(&pool, || {
        File::open(root.join("both/below")).unwrap().sync_all().unwrap();
        File::open(root).unwrap().sync_all().unwrap();
        File::open(root.join("second")).unwrap().sync_data().unwrap();
    });
    for branch in &branches {
        assert_eq!(count(&calls, "fsync", &branch.join("both/below")), 1, "{calls:#?}");
        assert_eq!(count(&calls, "fsync", branch), 1, "{calls:#?}");
    }
    let second = branches[1].join("second");
    assert_eq!(count(&calls, "fdatasync", &second) + count(&calls, "fsync", &second), 1, "{calls:#?}");
    pool.umount();
}

#[test]
fn fsync_of_a_file_reaches_its_branch() {
    for data_path in DATA_PATHS {
        let disks = Disks::new(&[Kind::Ext4, Kind::Btrfs]);
        let pool = disks.pool(data_path);
        let name = pool.path().join("file");
        let calls = synced(&pool, || {
            fs::write(&name, b"content").unwrap();
            let file = File::options().append(true).open(&name).unwrap();
            file.sync_all().unwrap();
            file.sync_data().unwrap();
        });
        let branches = disks.branches();
        let branch = branches.iter().find(|branch| branch.join("file").exists()).unwrap();
        assert_eq!(count(&calls, " fsync", &branch.join("file")), 1, "[{data_path}] {calls:#?}");
        assert_eq!(count(&calls, "fdatasync", &branch.join("file")), 1, "[{data_path}] {calls:#?}");
        pool.umount();
    }
}
