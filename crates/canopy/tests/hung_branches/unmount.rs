//! Unmounting a pool while one of its branches hangs.

use super::rig::{PATIENCE, Rig, in_time};
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{Fault, proc};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::Command;

/// The mount disappears at once. The process exits when the kernel releases its threads: a thread that waits for a request
/// which the FUSE server has already read cannot be killed (fs/fuse/dev.c, request_wait_answer).
#[test]
fn umount_succeeds_while_a_branch_hangs() {
    for mut rig in Rig::over_each_transport("") {
        rig.hang();
        let path = rig.at("d/b");
        let _ = in_time(move || fs::metadata(path));
        // EBUSY is retried: a program that another test starts holds a copy of every descriptor until its exec.
        let umount = || run_within(Command::new("umount").arg(rig.pool.path()), PATIENCE).success();
        assert!(wait_until(PATIENCE, umount), "{:?}", proc::holders(rig.pool.path()));
        assert!(!rig.pool.mounted());
        rig.faulty.heal();
        rig.pool.kill();
    }
}

#[test]
fn sigterm_unmounts_while_a_branch_hangs() {
    for mut rig in Rig::over_each_transport("") {
        rig.faulty.set_all(Fault::Hang);
        let path = rig.at("d/b");
        let _ = in_time(move || fs::metadata(path));
        kill_process(Pid::from_raw(rig.pool.pid()).expect("a pid"), Signal::TERM).expect("SIGTERM");
        assert!(wait_until(PATIENCE, || !rig.pool.mounted()), "{}", rig.pool.log());
        rig.faulty.heal();
        rig.pool.kill();
    }
}
