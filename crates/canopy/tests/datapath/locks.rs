//! flock(2) and fcntl(2) locks, between processes and between hard links of a file.

use super::files::{open, try_open};
use super::rig::{Disks, Mode};
use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::{run_within, wait_until};
use rustix::fs::{FlockOperation, OFlags, fcntl_lock, flock};
use rustix::io::Errno;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Tries to take a flock(2) lock in another process.
#[track_caller]
fn another_process_can_flock(path: &Path) -> bool {
    let mut command = Command::new("flock");
    let done = run_within(command.args(["--nonblock"]).arg(path).arg("true"), PATIENCE);
    assert!(matches!(done.code(), Some(0 | 1)), "{command:?}: {}", done.describe());
    done.success()
}

/// Tries to write to a database in another process (sqlite locks with fcntl(2)).
#[track_caller]
fn another_process_can_write(path: &Path) -> bool {
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-bail"]).arg(path).args([".timeout 0", "INSERT INTO t VALUES(1);"]);
    let done = run_within(&mut command, PATIENCE);
    assert!(done.success() || done.stderr.contains("locked"), "{command:?}: {}", done.describe());
    done.success()
}

#[test]
fn locks_exclude_other_processes_and_links_until_close() {
    let disks = Disks::new();
    for mode in [Mode::new("auto", "off"), Mode::new("off", "off"), Mode::new("off", "full")] {
        let pool = disks.mode(mode);
        let dir = disks.ext4(&pool);
        let (one, two) = (dir.pool.join("one"), dir.pool.join("two"));
        let mut make = Command::new("sqlite3");
        let made = run_within(make.arg(&one).arg("CREATE TABLE t(a);"), PATIENCE);
        assert!(made.success(), "{}", made.describe());
        fs::hard_link(&one, &two).expect("link");

        for (held, asked) in [(&one, &one), (&one, &two), (&two, &one)] {
            let file = open(held, OFlags::RDWR);
            flock(&file, FlockOperation::LockExclusive).expect("flock");
            assert!(!another_process_can_flock(asked), "{mode}: a second exclusive flock");
            let again = open(asked, OFlags::RDONLY);
            assert_eq!(
                flock(&again, FlockOperation::NonBlockingLockShared),
                Err(Errno::WOULDBLOCK),
                "{mode}"
            );
            drop((again, file));
            // Another test's thread may be between fork and exec, with a copy of the descriptor.
            let released = wait_until(PATIENCE, || another_process_can_flock(asked));
            assert!(released, "{mode}: close did not release");

            let file = open(held, OFlags::RDWR);
            fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).expect("fcntl");
            assert!(!another_process_can_write(asked), "{mode}: a second fcntl lock");
            // Closing any descriptor of the file releases the process's locks (fcntl(2)).
            drop(try_open(asked, OFlags::RDONLY));
            assert!(another_process_can_write(asked), "{mode}: close did not release");
            drop(file);
        }

        // Between two other processes.
        let mut outer = Command::new("sqlite3");
        let inner = format!(".shell sqlite3 {} 'SELECT count(*) FROM t;' 2>&1 || true", two.display());
        outer.args(["-batch"]).arg(&one).args([".timeout 0", "BEGIN EXCLUSIVE;", &inner, "COMMIT;"]);
        let done = run_within(&mut outer, PATIENCE);
        assert!(done.success() && done.stdout.contains("locked"), "{mode}: {}", done.describe());
        pool.umount();
    }
}
