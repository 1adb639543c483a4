//! `branch-timeout`.

use super::rig::{DEADLINE, PATIENCE, Rig, in_time, timed_out};
use canopy_testkit::Fault;
use canopy_testkit::cmd::wait_until;
use std::fs;

#[test]
fn it_can_be_given_and_taken_away() {
    let rig = Rig::new("branch-timeout=0");
    let set = |value: &str| rig.pool.set("branch-timeout", value);
    assert_eq!(rig.pool.probe_threads(), 0);
    set(&DEADLINE.as_secs().to_string());
    assert!(wait_until(PATIENCE, || rig.pool.probe_threads() == 3));
    rig.faulty.set_all(Fault::Hang);
    rig.known_to_hang();
    let path = rig.at("d/b");
    timed_out(in_time(move || fs::metadata(path)));
    rig.heal();
    // Only what is served by another program or machine is asked.
    set("auto");
    assert!(wait_until(PATIENCE, || rig.pool.probe_threads() == 1));
    set("0");
    assert!(wait_until(PATIENCE, || rig.pool.probe_threads() == 0));
    rig.pool.umount();
}
