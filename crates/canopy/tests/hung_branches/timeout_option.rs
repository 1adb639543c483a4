//! The option.

use super::rig::{DEADLINE, PATIENCE, Rig, in_time, timed_out};
use canopy_testkit::Fault;
use canopy_testkit::cmd::wait_until;
use rustix::fs::XattrFlags;
use std::fs;

/// Threads of the daemon that ask the branches whether they answer.
fn askers(rig: &Rig) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", rig.pool.pid())).expect("threads");
    let names = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "canopy-probe").count()
}

#[test]
fn it_can_be_given_and_taken_away() {
    let rig = Rig::new("branch-timeout=0");
    let control = rig.at(".mergerfs");
    let set = |value: &str| {
        rustix::fs::setxattr(&control, "user.mergerfs.branch-timeout", value.as_bytes(), XattrFlags::empty())
            .expect("a change");
    };
    assert_eq!(askers(&rig), 0);
    set(&DEADLINE.as_secs().to_string());
    assert!(wait_until(PATIENCE, || askers(&rig) == 3));
    rig.faulty.set_all(Fault::Hang);
    rig.known_to_hang();
    let path = rig.at("d/b");
    timed_out(in_time(move || fs::metadata(path)));
    rig.heal();
    // Only what is served by another program or machine is asked.
    set("auto");
    assert!(wait_until(PATIENCE, || askers(&rig) == 1));
    set("0");
    assert!(wait_until(PATIENCE, || askers(&rig) == 0));
    rig.pool.umount();
}
