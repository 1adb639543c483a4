//! A pool ends while one of its branches hangs.

use super::rig::{PATIENCE, Rig, in_time};
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{Fault, proc};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::Command;
use std::time::Duration;

/// The mount goes at once. The process ends when the kernel lets its threads go: one that waits for an answer which a
/// server has begun to work on cannot even be killed (fs/fuse/dev.c request_wait_answer).
#[test]
fn it_is_unmounted() {
    let mut rig = Rig::new("");
    rig.hang();
    let path = rig.at("d/b");
    let _ = in_time(move || fs::metadata(path));
    // Busy is asked again: a program that another test starts holds a copy of every descriptor until its exec.
    let umount =
        || run_within(Command::new("umount").arg(rig.pool.path()), Duration::from_secs(30)).success();
    assert!(wait_until(PATIENCE, umount), "{:?}", proc::holders(rig.pool.path()));
    assert!(!rig.pool.mounted());
    rig.faulty.heal();
    rig.pool.kill();
}

#[test]
fn a_signal_ends_it() {
    let mut rig = Rig::new("");
    rig.faulty.set_all(Fault::Hang);
    let path = rig.at("d/b");
    let _ = in_time(move || fs::metadata(path));
    kill_process(Pid::from_raw(rig.pool.pid()).expect("a pid"), Signal::TERM).expect("SIGTERM");
    assert!(wait_until(PATIENCE, || !rig.pool.mounted()), "{}", rig.pool.log());
    rig.faulty.heal();
    rig.pool.kill();
}
