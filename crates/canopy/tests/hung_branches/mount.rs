//! Mounting over a branch whose root does not answer.

use super::rig::{BINARY, PATIENCE};
use canopy_fuse::Opcode;
use canopy_testkit::cmd::{run_within, spawn, wait_until, wait_within};
use canopy_testkit::{Fault, FaultyFs, ScratchDir, proc};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;
use std::time::Duration;

fn command(scratch: &ScratchDir, faulty: &FaultyFs) -> Command {
    let mut command = Command::new(BINARY);
    let branches = format!("{}:{}", scratch.path("a").display(), faulty.path().display());
    command.args(["mount", "-o", "minfreespace=0", &branches]).arg(scratch.path("p"));
    command
}

/// The commands end with one line, or are ended; nothing is mounted that nobody serves.
#[test]
fn a_mount_waits_for_no_silent_root_and_leaves_nothing() {
    for silent in [&[Opcode::Readdir, Opcode::Readdirplus][..], &[Opcode::Opendir]] {
        let scratch = ScratchDir::new("canopy-hung-", &["a", "p"]);
        let faulty = FaultyFs::mount(&scratch.dir());
        let point = scratch.path("p");
        faulty.set(Fault::Hang, silent);
        let killed = [Signal::INT, Signal::TERM, Signal::KILL].map(|signal| {
            let child = spawn(&mut command(&scratch, &faulty)).expect("canopy mount");
            std::thread::sleep(Duration::from_millis(300));
            kill_process(Pid::from_child(&child), signal).expect("a process");
            child
        });
        for mut child in killed {
            assert!(wait_within(&mut child, PATIENCE).is_some_and(|status| !status.success()));
        }
        assert!(proc::mount_at(&point).is_none(), "{silent:?}");
        let done = run_within(&mut command(&scratch, &faulty), 3 * PATIENCE);
        assert_eq!(done.code(), Some(1), "{silent:?}: {}", done.describe());
        assert!(done.stderr.contains("has not answered for 30 s"), "{}", done.describe());
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.describe());
        assert!(proc::mount_at(&point).is_none(), "{silent:?}");
        faulty.heal();
        // Those whose commands were killed have given up by now.
        assert!(wait_until(PATIENCE, || proc::daemons(&scratch.dir()).is_empty()), "{silent:?}");
        let done = run_within(&mut command(&scratch, &faulty), PATIENCE);
        assert!(done.success(), "{}", done.describe());
        assert!(run_within(Command::new(BINARY).arg("umount").arg(&point), PATIENCE).success());
    }
}
