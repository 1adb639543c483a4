//! `branch-timeout`.

use super::rig::{DEADLINE, PATIENCE, Rig, assert_timed_out, in_time};
use canopy_testkit::Fault;
use canopy_testkit::cmd::wait_until;
use canopy_testkit::files::is_opened;
use std::fs;

#[test]
fn the_timeout_can_be_set_and_removed_while_mounted() {
    let rig = Rig::new("branch-timeout=0");
    let set = |value: &str| rig.pool.set("branch-timeout", value);
    let branches = [rig.well[0].path(), rig.faulty.path(), rig.well[1].path()];
    let asked = || {
        std::thread::scope(|scope| {
            branches
                .map(|branch| scope.spawn(move || is_opened(branch)))
                .map(|each| each.join().expect("a thread"))
        })
    };
    // On a busy machine, an operation may have waited for one.
    assert!(wait_until(PATIENCE, || asked() == [false; 3]));
    set(&DEADLINE.as_secs().to_string());
    assert!(wait_until(PATIENCE, || asked() == [true; 3]));
    rig.faulty.set_all(Fault::Hang);
    rig.wait_until_known_to_hang();
    let path = rig.at("d/b");
    assert_timed_out(in_time(move || fs::metadata(path)));
    rig.heal();
    // `auto` asks only branches that another program or machine serves.
    set("auto");
    assert!(wait_until(PATIENCE, || asked() == [false, true, false]));
    set("0");
    assert!(wait_until(PATIENCE, || asked() == [false; 3]));
    rig.pool.umount();
}
